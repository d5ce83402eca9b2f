//! Mathematics spotted in prose where nothing marks the answer: the last environment, the LaTeX around the last number,
//! the last number.

use super::value::{self, Value};

/// Content of the last math environment that is not empty and not prose.
pub(super) fn environment(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut open: Option<(usize, &str)> = None;
    let mut last: Option<&str> = None;
    let mut i = 0;
    while i < bytes.len() {
        let rest = &text.as_bytes()[i..];
        let mark = if rest.starts_with(b"$$") {
            "$$"
        } else if rest.starts_with(b"\\$") {
            i += 2;
            continue;
        } else if rest.starts_with(b"$") {
            "$"
        } else if rest.starts_with(b"\\(") {
            "\\("
        } else if rest.starts_with(b"\\)") {
            "\\)"
        } else if rest.starts_with(b"\\[") {
            "\\["
        } else if rest.starts_with(b"\\]") {
            "\\]"
        } else {
            i += 1;
            continue;
        };
        let after = i + mark.len();
        match open {
            Some((start, m))
                if m == mark && mark.starts_with('$')
                    || matches!((open.map(|o| o.1), mark), (Some("\\("), "\\)") | (Some("\\["), "\\]")) =>
            {
                let start = open.map_or(start, |o| o.0);
                let inner = &text[start..i];
                if mark != "$" || looks_like_math(inner, &text[after..]) {
                    if !inner.trim().is_empty() {
                        last = Some(inner);
                    }
                    open = None;
                } else {
                    // The closing dollar of prose may open the next environment.
                    open = Some((after, "$"));
                }
            }
            Some(_) if mark == "$" || mark == "\\)" || mark == "\\]" => {}
            _ if mark == "\\)" || mark == "\\]" => {}
            _ => open = Some((after, mark)),
        }
        i = after;
    }
    last
}

/// The expression without dollars that holds the last number, as `is \frac{1}{2}.` at the end of a sentence: words
/// between blanks as long as braces are open or an operator joins them.
pub(super) fn bare_latex(text: &str) -> Option<&str> {
    const LONGEST: usize = 400;
    let digit = text.bytes().rposition(|b| b.is_ascii_digit())?;
    let line_start = text[..digit].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[digit..].find('\n').map_or(text.len(), |at| digit + at);
    let blank = |c: char| c.is_whitespace();
    let behind = |at: usize| at + text[at..].chars().next().map_or(1, char::len_utf8);
    let word_end = |from: usize| text[from..line_end].find(blank).map_or(line_end, |at| from + at);
    let word_start = |to: usize| text[line_start..to].rfind(blank).map_or(line_start, |at| behind(line_start + at));
    let open = |part: &str| part.bytes().map(|b| i32::from(b == b'{') - i32::from(b == b'}')).sum::<i32>();
    let (mut start, mut end) = (word_start(digit), word_end(digit));
    while end < line_end && end - start <= LONGEST && open(&text[start..end]) > 0 {
        end = word_end(behind(end));
    }
    while start > line_start && end - start <= LONGEST {
        let before = line_start + text[line_start..start].trim_end().len();
        let at = word_start(before);
        if open(&text[start..end]) < 0 {
            start = at;
        } else if matches!(&text[at..before], "+" | "-" | "*" | "/" | "\\cdot" | "\\times" | "\\pm") && at > line_start
        {
            start = word_start(line_start + text[line_start..at].trim_end().len());
        } else {
            break;
        }
    }
    if end - start > LONGEST {
        return None;
    }
    let found = text[start..end].trim_matches(|c: char| matches!(c, '.' | ',' | ';' | ':' | '!' | '?' | '*' | '`'));
    let is_latex = found.contains('\\') && open(found) == 0;
    (is_latex && !matches!(value::read(found), Value::Text(_))).then_some(found)
}

/// The last number with its sign, separators, fraction and percent sign.
pub(super) fn last_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let mut start = end;
    while start > 0
        && (bytes[start - 1].is_ascii_digit()
            || matches!(bytes[start - 1], b'.' | b',' | b'/') && start > 1 && bytes[start - 2].is_ascii_digit())
    {
        start -= 1;
    }
    if start > 0 && bytes[start - 1] == b'.' {
        start -= 1;
    }
    if start > 0 && bytes[start - 1] == b'-' && (start == 1 || !bytes[start - 2].is_ascii_alphanumeric()) {
        start -= 1;
    }
    let end = if bytes.get(end) == Some(&b'%') { end + 1 } else { end };
    Some(&text[start..end])
}

/// Tells `$x + 1$` from the prose between two prices.
pub(super) fn looks_like_math(inner: &str, behind: &str) -> bool {
    if behind.starts_with(|c: char| c.is_ascii_digit()) || inner.len() > 2_000 {
        return false;
    }
    let mut words = 0;
    let mut command = false;
    let mut depth = 0i32;
    let mut run = 0;
    for c in inner.chars().chain([' ']) {
        match c {
            '\\' => command = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c.is_alphabetic() {
            run += 1;
        } else {
            words += usize::from(run >= 3 && !command && depth <= 0);
            run = 0;
            command = c == '\\';
        }
    }
    words < 2
}
