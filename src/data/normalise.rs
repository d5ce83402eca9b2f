//! When two problems are the same problem.

/// A problem's text without what does not change it: case, white space, `$`, LaTeX's spacing and sizing commands, and
/// punctuation. Operators, digits, decimal points and commas between digits stay: `3 - 2` is not `3 + 2`.
pub fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(command) = SILENT.iter().find(|command| silent(rest, command)) {
            rest = &rest[command.len()..];
            continue;
        }
        let behind = &rest[c.len_utf8()..];
        let kept = match c {
            c if c.is_whitespace() || c.is_control() => false,
            '.' | ',' => {
                out.ends_with(|c: char| c.is_ascii_digit()) && behind.starts_with(|c: char| c.is_ascii_digit())
            }
            '$' | ';' | ':' | '?' | '"' | '\'' | '`' | '~' | '\u{2018}'..='\u{201f}' | '\u{200b}'..='\u{200f}' => false,
            _ => true,
        };
        match c {
            _ if !kept => {}
            '\u{2212}' | '\u{2013}' | '\u{2014}' => out.push('-'),
            c => out.extend(c.to_lowercase()),
        }
        rest = behind;
    }
    // `\dfrac` and `\tfrac` are drawn larger or smaller.
    if out.contains("frac") { out.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac") } else { out }
}

/// LaTeX that only moves or sizes what is there.
const SILENT: [&str; 10] =
    ["\\left", "\\right", "\\,", "\\!", "\\;", "\\:", "\\ ", "\\quad", "\\qquad", "\\displaystyle"];

/// Whether `rest` starts with the command and not with a longer one of letters (`\leftarrow`).
fn silent(rest: &str, command: &str) -> bool {
    rest.strip_prefix(command).is_some_and(|behind| {
        !command.ends_with(|c: char| c.is_ascii_alphabetic()) || !behind.starts_with(|c: char| c.is_ascii_alphabetic())
    })
}

/// A digest that equal problems share.
pub fn key(text: &str) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(normalise(text).as_bytes()).as_bytes()[..16]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_does_not_make_another_problem() {
        let same = [
            ("What is $2 + 3$?", "what  is 2+3"),
            ("Find \\left( \\dfrac{1}{2} \\right).", "find (\\frac{1}{2})"),
            ("Tom\u{2019}s 5 \u{2212} 3,", "Tom's 5 - 3."),
        ];
        for (a, b) in same {
            assert_eq!(key(a), key(b), "{} / {}", normalise(a), normalise(b));
        }
    }

    #[test]
    fn numbers_and_operators_do() {
        let different = [
            ("3 - 2", "3 + 2"),
            ("1.5 m", "15 m"),
            ("f(1,2)", "f(12)"),
            ("\\leftarrow", "\\rightarrow"),
            ("x^2", "x_2"),
        ];
        for (a, b) in different {
            assert_ne!(key(a), key(b), "{a} / {b}");
        }
    }
}
