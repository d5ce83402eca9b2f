//! Where the answer stands in a completion. Everything here is linear in the text.

use super::quantity::doubtful;
use super::spot::{bare_latex, environment, last_number, looks_like_math};
use super::value::{self, Value};

/// An answer and the rule that found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extracted {
    pub(super) text: String,
    pub(super) rule: &'static str,
}

/// In the order of the policy: after the last `</think>`; last `<answer>`; last balanced `\boxed`; `####`;
/// `answer is` / `Answer:`; last math environment; last number.
pub(super) fn extract(completion: &str) -> Option<Extracted> {
    let text = completion.rfind("</think>").map_or(completion, |at| &completion[at + "</think>".len()..]);
    if let Some(close) = text.rfind("</answer>")
        && let Some(open) = text[..close].rfind("<answer>")
    {
        let inner = text[open + "<answer>".len()..close].trim().trim_start_matches('#').trim_start();
        return inside_tag(inner);
    }
    match boxed(text) {
        Boxed::Found(inner) => {
            let start = text[..offset(text, inner)].rfind('\\').unwrap_or(0);
            let earlier = |head: &str| match boxed(head) {
                Boxed::Found(first) if head.trim_end_matches(['$', ')', ']', '\\']).ends_with('}') => {
                    Some(first.to_owned())
                }
                _ => None,
            };
            return in_box(&hedged(text, inner, start, earlier));
        }
        Boxed::Unclosed => return None,
        Boxed::None => {}
    }
    hashes(text)
        .or_else(|| answer_is(text))
        .or_else(|| {
            let found = environment(text)?;
            let closed = |head: &str| head.ends_with(['$', ')', ']']);
            let earlier = |head: &str| closed(head).then(|| environment(head).map(str::to_owned)).flatten();
            some(&hedged(text, found, offset(text, found), earlier), "last math environment")
        })
        .or_else(|| bare_latex(text).and_then(|t| some(t, "last LaTeX expression")))
        .or_else(|| number(text).and_then(|t| some(&t, "last number")))
}

fn some(text: &str, rule: &'static str) -> Option<Extracted> {
    let text = text.trim();
    (!text.is_empty()).then(|| Extracted { text: text.to_owned(), rule })
}

/// Boxes side by side at the end, `\boxed{3}, \boxed{4}` or `$\boxed{3}$ and $\boxed{4}$`, as one list: for golds
/// that are lists. Anything else between two boxes parts them.
pub(super) fn neighbours(completion: &str) -> Option<Extracted> {
    const MOST: usize = 8;
    let text = completion.rfind("</think>").map_or(completion, |at| &completion[at + "</think>".len()..]);
    if text.contains("</answer>") {
        return None;
    }
    let (mut found, mut head) = (Vec::new(), text);
    while found.len() < MOST {
        let Boxed::Found(inner) = boxed(head) else { break };
        let start = offset(head, inner);
        if !found.is_empty() && start + inner.len() + 1 != head.len() {
            break;
        }
        found.push(inner.trim());
        head = head[..start].trim_end_matches([' ', '{']);
        let Some(before) = head.strip_suffix("\\boxed").or_else(|| head.strip_suffix("\\fbox")) else { break };
        head = joint(before);
        if head.len() == before.len() {
            break;
        }
    }
    found.reverse();
    (found.len() > 1).then(|| Extracted { text: found.join(", "), rule: "\\boxed side by side" })
}

/// `text` without what may stand between two items of a list at its end.
fn joint(text: &str) -> &str {
    const PIECES: [&str; 9] = ["$", ",", ";", " and", "\\text{ and }", "\\text{and}", "\\quad", "\\qquad", "\\,"];
    let mut rest = text;
    loop {
        let before = rest;
        rest = rest.trim_end();
        for piece in PIECES {
            rest = rest.strip_suffix(piece).unwrap_or(rest);
        }
        if rest.len() == before.len() {
            return rest;
        }
    }
}

/// `\boxed{\text{The answer is } 42}` holds a sentence, everything else is the answer itself.
fn in_box(inner: &str) -> Option<Extracted> {
    match sentence(inner) {
        Some(text) => some(&text, "answer phrase in the last \\boxed"),
        None => some(inner, "last \\boxed"),
    }
}

/// What a short text says to be the answer, if it is a sentence about it; some golds are.
pub(super) fn sentence(text: &str) -> Option<String> {
    const LONGEST: usize = 200;
    let found = (text.len() <= LONGEST).then(|| answer_is(text))??;
    // The brace is that of `\text{The answer is }`.
    let text = found.text.trim_start_matches(['}', ' ']);
    (!text.is_empty()).then(|| text.to_owned())
}

fn inside_tag(inner: &str) -> Option<Extracted> {
    match boxed(inner) {
        Boxed::Found(inner) => return some(inner, "\\boxed in the last <answer>"),
        Boxed::Unclosed => return None,
        Boxed::None => {}
    }
    if let Some(mut found) = answer_is(inner) {
        found.rule = "answer phrase in the last <answer>";
        return Some(found);
    }
    some(inner, "last <answer>")
}

enum Boxed<'a> {
    Found(&'a str),
    /// There is a box, but none that is closed.
    Unclosed,
    None,
}

fn boxed(text: &str) -> Boxed<'_> {
    let bytes = text.as_bytes();
    let mut stack: Vec<Option<usize>> = Vec::new();
    let mut best: Option<(usize, usize)> = None;
    let mut bare: Option<&str> = None;
    let mut any = false;
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => {
                let rest = &bytes[i + 1..];
                let name = if rest.starts_with(b"boxed") {
                    5
                } else if rest.starts_with(b"fbox") {
                    4
                } else {
                    i += 2;
                    continue;
                };
                let mut j = i + 1 + name;
                while j < bytes.len() && bytes[j] == b' ' {
                    j += 1;
                }
                if bytes.get(j) == Some(&b'{') {
                    any = true;
                    stack.push(Some(j + 1));
                    j += 1;
                } else if bytes.get(j).is_some_and(|b| b.is_ascii_digit() || *b == b'-') {
                    let end = text[j..].find(|c: char| c.is_whitespace() || matches!(c, '$' | '\\' | '}' | ','));
                    let end = end.map_or(bytes.len(), |e| j + e);
                    bare = Some(text[j..end].trim_end_matches('.'));
                    j = end;
                }
                i = j;
                continue;
            }
            b'{' => stack.push(None),
            b'}' => {
                if let Some(Some(start)) = stack.pop()
                    && best.is_none_or(|(s, _)| start > s)
                {
                    best = Some((start, i));
                }
            }
            _ => {}
        }
        i += 1;
    }
    match (best, bare, any) {
        (Some((start, end)), ..) => Boxed::Found(&text[start..end]),
        (None, Some(bare), _) if !bare.is_empty() => Boxed::Found(bare),
        (None, _, true) => Boxed::Unclosed,
        _ => Boxed::None,
    }
}

/// The line behind the last `####` that holds an answer and is not a heading.
fn hashes(text: &str) -> Option<Extracted> {
    let mut end = text.len();
    for _ in 0..16 {
        let at = text[..end].rfind("####")?;
        let line = text[at + 4..].lines().next().unwrap_or("").trim();
        end = at;
        if line.starts_with('#') {
            continue;
        }
        if let Some(mut found) = answer_is(line) {
            found.rule = "####";
            return Some(found);
        }
        let start = line.trim_start_matches(['*', ' ', '-', '+']);
        if start.starts_with(|c: char| c.is_ascii_digit() || "$\\([{.€£√".contains(c)) {
            let text = shorten(line);
            return some(&text, "####");
        }
        // At the end of the text it is no heading: an expression, or words without a number.
        let last = text[at + 4..].trim().len() == line.len();
        let readable = || {
            !matches!(value::read(line), Value::Text(_)) || !line.chars().any(char::is_numeric) && !line.contains('\\')
        };
        if last && !line.is_empty() && line.len() <= 400 && readable() {
            return some(line.trim_matches(['*', '`', ' ']).trim_end_matches('.'), "####");
        }
    }
    None
}

/// Where the text behind the last `answer is`, `answer:` or `answer ... is` starts.
fn answer_is(text: &str) -> Option<Extracted> {
    let lower = text.to_ascii_lowercase();
    let mut end = lower.len();
    for _ in 0..64 {
        let at = lower[..end].rfind("answer")?;
        end = at;
        let rest_at = at + "answer".len();
        let tail = &text[rest_at..];
        let Some(skip) = connector(tail) else { continue };
        let after = tail[skip..].trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '`' | ':' | '_'));
        // `Final Answer: The final answer is $670$` is seen from its last phrase on.
        if let Some(found) = phrase(after) {
            return some(&found, "answer phrase");
        }
    }
    None
}

/// Length of `is`, `:`, ` to the question is` and the like behind `answer`.
fn connector(tail: &str) -> Option<usize> {
    let line_end = tail.find(['\n', '.']).unwrap_or(tail.len()).min(80);
    let mut line_end = line_end;
    while !tail.is_char_boundary(line_end) {
        line_end -= 1;
    }
    let line = &tail[..line_end];
    let marks = line.trim_start_matches(['*', ' ', '_']);
    if marks.starts_with(':') || marks.starts_with('=') {
        return Some(line.len() - marks.len() + 1);
    }
    if line.trim_matches(['*', ' ', '_']).is_empty() && tail[line_end..].starts_with('\n') {
        // A heading of its own: the answer follows on the next line.
        return Some(line_end);
    }
    [" is ", " is:", " is\n", " would be ", " equals ", " are "]
        .iter()
        .filter_map(|w| line.find(w).map(|p| p + w.len()))
        .chain((line.ends_with(" is") && line_end < tail.len()).then_some(line_end))
        .min()
}

/// The answer at the head of `after`: a math environment (with its alternatives) or the rest of the sentence.
fn phrase(after: &str) -> Option<String> {
    if after.starts_with('$') || after.starts_with("\\(") || after.starts_with("\\[") {
        let mut found = String::new();
        let mut rest = after;
        for _ in 0..16 {
            let Some((inner, behind)) = head_environment(rest) else { break };
            found.push_str(inner);
            rest = behind;
            let next = rest.trim_start_matches([' ', ',']);
            let (word, skip) = if let Some(n) = next.strip_prefix("or ") {
                (" \\text{ or } ", n)
            } else if let Some(n) = next.strip_prefix("and ") {
                (" \\text{ and } ", n)
            } else if rest.starts_with(',') && next.starts_with(['$', '\\']) {
                (", ", next)
            } else {
                // A unit or a percent sign behind the closing dollar.
                if rest.starts_with(['%', '°']) || rest.starts_with("\\%") {
                    found.push('%');
                }
                break;
            };
            if head_environment(skip.trim_start()).is_none() {
                break;
            }
            found.push_str(word);
            rest = skip.trim_start();
        }
        if !found.trim().is_empty() {
            return Some(found);
        }
    }
    let line = after.lines().next().unwrap_or("");
    let found = shorten(line);
    (!found.is_empty()).then_some(found)
}

/// `$..$`, `$$..$$`, `\(..\)`, `\[..\]` at the head: content and rest.
fn head_environment(text: &str) -> Option<(&str, &str)> {
    for (open, close) in [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")] {
        if let Some(rest) = text.strip_prefix(open) {
            let end = rest.find(close)?;
            let inner = &rest[..end];
            if open == "$" && !looks_like_math(inner, &rest[end + close.len()..]) {
                return None;
            }
            return Some((inner, &rest[end + close.len()..]));
        }
    }
    None
}

/// A sentence cut down to the answer it starts with.
fn shorten(line: &str) -> String {
    let mut line = line.trim().trim_matches(['*', '`', '_']).trim();
    // The sentence ends at a full stop (or `!`, `?`) before a blank, so that decimals stay whole.
    let mut ends = line.char_indices().zip(line.chars().skip(1));
    if let Some(((at, _), _)) = ends.find(|((_, c), next)| matches!(c, '.' | '?') && next.is_whitespace()) {
        line = &line[..at];
    }
    let line = line.trim_end_matches(['.', '*', '`', ';', ' ']);
    // `(D) 42`: the letter and what it stands for.
    if let [b'(', b'A'..=b'J', b')', ..] = line.as_bytes() {
        return line.to_owned();
    }
    let line =
        if line.ends_with('!') && !line.ends_with("!!") && line.len() < 400 { &line[..line.len() - 1] } else { line };
    if line.len() > 400 {
        return leading_number(line).map(str::to_owned).unwrap_or_default();
    }
    if !matches!(value::read(line), Value::Text(_)) && !line.contains(", ") {
        return line.to_owned();
    }
    // `72, in total, so ...`: up to a comma before a word.
    let mut cut = line;
    for (at, _) in line.match_indices(", ") {
        if line[at + 2..].chars().take_while(char::is_ascii_alphabetic).count() >= 2
            && !line[at + 2..].starts_with("or ")
            && !line[at + 2..].starts_with("and ")
        {
            cut = &line[..at];
            break;
        }
    }
    if !matches!(value::read(cut), Value::Text(_)) {
        return cut.to_owned();
    }
    let lower = cut.to_lowercase();
    let doubt =
        lower.split(|c: char| !c.is_alphabetic()).any(|w| matches!(w, "either" | "between" | "t") || doubtful(w));
    if doubt {
        return cut.to_owned();
    }
    if let Some((inner, _)) = cut.find(['$', '\\']).and_then(|at| head_environment(&cut[at..]))
        && !inner.trim().is_empty()
        && cut.matches('$').count() <= 2
    {
        return inner.to_owned();
    }
    if let Some(number) = leading_number(cut) {
        return number.to_owned();
    }
    // One number in a sentence of words.
    if let Some(number) = last_number(cut)
        && cut
            .find(number)
            .is_some_and(|at| last_number(&cut[..at]).is_none() && !changed_behind(&cut[at + number.len()..]))
    {
        return number.to_owned();
    }
    cut.to_owned()
}

fn leading_number(text: &str) -> Option<&str> {
    let body = text.trim_start_matches(['$', '€', '£', ' ', '*']);
    let sign = usize::from(body.starts_with('-'));
    let end = body[sign..]
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | '/' | '%'))
        .map_or(body.len(), |e| e + sign);
    let number = body[..end].trim_end_matches(['.', ',', '/']);
    // `3x` or `2^5` is more than its number.
    let next = body[end..].chars().next();
    if changed_behind(&body[end..]) {
        return None;
    }
    (number.len() > sign
        && number[sign..].starts_with(|c: char| c.is_ascii_digit())
        && next.is_none_or(|c| c == ' ' || c == '*' || c == ',' || c == '.'))
    .then_some(number)
}

/// Does what follows a number make another value of it? `35 + y`, `35 x 10^2`, `35 million`: none of them is 35.
fn changed_behind(rest: &str) -> bool {
    let rest = rest.trim_start();
    let word: String = rest.chars().take_while(|c| c.is_alphabetic()).collect();
    let markup = ["**", "- ", "\\)", "\\]", "\\%", "\\text"].iter().any(|m| rest.starts_with(m));
    let operator = rest.starts_with(['+', '*', '^', '/', '=', '<', '>', '!', '×', '÷', '\\', '_', '-']);
    operator && !markup || word == "x" || doubtful(&word)
}

/// `found` with what stands before it and an "or": an answer that hedges is not the last of its alternatives.
fn hedged(text: &str, found: &str, before: usize, earlier: impl Fn(&str) -> Option<String>) -> String {
    let marks = |t: &str| t.trim_end().trim_end_matches(['$', '(', '[', '\\']).trim_end().len();
    let head = &text[..marks(&text[..before])];
    match head.strip_suffix("or").filter(|h| h.ends_with([' ', '$'])).map(str::trim_end).and_then(earlier) {
        Some(first) => format!("{first} \\text{{ or }} {found}"),
        None => found.to_owned(),
    }
}

/// Where `part`, a piece of `text`, starts in it.
fn offset(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}

/// [`last_number`] with a number joined to it by "or".
fn number(text: &str) -> Option<String> {
    let found = last_number(text)?;
    Some(hedged(text, found, offset(text, found), |head| {
        last_number(head).filter(|n| head.ends_with(n)).map(str::to_owned)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<String> {
        extract(text).map(|e| e.text)
    }

    #[test]
    fn rules_apply_in_the_order_of_the_policy() {
        assert_eq!(of("<think>\\boxed{1}</think> \\boxed{2} #### 3 <answer>4</answer>").as_deref(), Some("4"));
        assert_eq!(of("\\boxed{1} and \\boxed{\\frac{1}{2}} and 7").as_deref(), Some("\\frac{1}{2}"));
        assert_eq!(of("#### 1\nAnswer: 2\n#### 3").as_deref(), Some("3"));
        assert_eq!(of("The answer is 72, in total, so that is 5.").as_deref(), Some("72"));
        assert_eq!(of("So $t = 40$. There were 3.").as_deref(), Some("t = 40"));
        assert_eq!(of("It costs $29.00.").as_deref(), Some("29.00"));
        assert_eq!(of("The result is \\boxed{670"), None);
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn prices_are_not_math_environments() {
        assert_eq!(of("He has $30 and then pays the man $20").as_deref(), Some("20"));
    }
}
