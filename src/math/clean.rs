//! Text -> plain text: unicode look-alikes to ASCII or LaTeX, invisible characters out, wrappings off.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longer answers are compared as text only.
pub(super) const MAX_ANSWER: usize = 4_000;

/// Replaces look-alikes (fullwidth forms, minus signs, Greek letters, roots, superscripts) and drops NUL,
/// zero-width characters and combining marks.
pub(super) fn unify(text: &str) -> Cow<'_, str> {
    if text.is_ascii() && !text.bytes().any(|b| b == 0 || b == b'\r' || b == b'\t') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\0' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{300}'..='\u{36f}' => {}
            '\r' => out.push('\n'),
            '\t' | '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => out.push(' '),
            '\u{ff01}'..='\u{ff5e}' => {
                out.push(char::from_u32(u32::from(c) - 0xfee0).unwrap_or(' '));
            }
            // Digits of Arabic, Persian, Devanagari and Bengali.
            '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}' | '\u{966}'..='\u{96f}' | '\u{9e6}'..='\u{9ef}' => {
                let zero = match u32::from(c) {
                    code @ 0x660..=0x669 => code - 0x660,
                    code @ 0x6f0..=0x6f9 => code - 0x6f0,
                    code @ 0x966..=0x96f => code - 0x966,
                    code => code - 0x9e6,
                };
                out.push(char::from_digit(zero, 10).unwrap_or('?'));
            }
            '≈' => out.push_str("\\approx "),
            '−' | '–' | '‐' | '‑' | '‒' | '﹣' => out.push('-'),
            '×' | '✕' => out.push_str("\\times "),
            '·' | '⋅' | '∙' => out.push_str("\\cdot "),
            '÷' => out.push_str("\\div "),
            '±' => out.push_str("\\pm "),
            '∓' => out.push_str("\\mp "),
            '°' | 'º' => out.push_str("^\\circ "),
            '≤' | '⩽' | '≦' => out.push_str("\\le "),
            '≥' | '⩾' | '≧' => out.push_str("\\ge "),
            '≠' => out.push_str("\\ne "),
            '∞' => out.push_str("\\infty "),
            '∪' => out.push_str("\\cup "),
            '∩' => out.push_str("\\cap "),
            '∈' => out.push_str("\\in "),
            '∅' | '⌀' => out.push_str("\\emptyset "),
            'ℝ' => out.push_str("\\mathbb{R}"),
            '⌊' => out.push_str("\\lfloor "),
            '⌋' => out.push_str("\\rfloor "),
            '⌈' => out.push_str("\\lceil "),
            '⌉' => out.push_str("\\rceil "),
            '√' => root(&mut out, &mut chars, "\\sqrt"),
            '∛' => root(&mut out, &mut chars, "\\sqrt[3]"),
            '¼'..='¾' | '⅐'..='⅞' => {
                let (above, below) = vulgar(c);
                let _ = write!(out, "\\frac{{{above}}}{{{below}}}");
            }
            '⁄' | '∕' => out.push('/'),
            '∶' => out.push(':'),
            '“' | '”' => out.push('"'),
            '‘' | '’' | '′' => out.push('\''),
            '。' => out.push('.'),
            _ => {
                if let Some(digit) = superscript(c) {
                    let mut power = String::from(digit);
                    while let Some(next) = chars.peek().copied().and_then(superscript) {
                        power.push(next);
                        chars.next();
                    }
                    let _ = write!(out, "^{{{power}}}");
                } else if let Some(digit) = subscript(c) {
                    let mut below = String::from(digit);
                    while let Some(next) = chars.peek().copied().and_then(subscript) {
                        below.push(next);
                        chars.next();
                    }
                    let _ = write!(out, "_{{{below}}}");
                } else if let Some(name) = greek(c) {
                    let _ = write!(out, "\\{name} ");
                } else {
                    out.push(c);
                }
            }
        }
    }
    Cow::Owned(out)
}

/// `√12` takes the digits (or one letter) after it; `√(..)` and `√{..}` are left to the parser.
fn root(out: &mut String, chars: &mut std::iter::Peekable<std::str::Chars<'_>>, command: &str) {
    out.push_str(command);
    while chars.peek() == Some(&' ') {
        chars.next();
    }
    let mut digits = String::new();
    while let Some(c) = chars.peek().copied().filter(char::is_ascii_digit) {
        digits.push(c);
        chars.next();
    }
    if !digits.is_empty() {
        let _ = write!(out, "{{{digits}}}");
    } else {
        out.push(' ');
    }
}

/// Numerator and denominator of `½` and its kind.
fn vulgar(c: char) -> (u8, u8) {
    match c {
        '¼' => (1, 4),
        '½' => (1, 2),
        '¾' => (3, 4),
        '⅐' => (1, 7),
        '⅑' => (1, 9),
        '⅒' => (1, 10),
        '⅓' => (1, 3),
        '⅔' => (2, 3),
        '⅕' => (1, 5),
        '⅖' => (2, 5),
        '⅗' => (3, 5),
        '⅘' => (4, 5),
        '⅙' => (1, 6),
        '⅚' => (5, 6),
        '⅛' => (1, 8),
        '⅜' => (3, 8),
        '⅝' => (5, 8),
        _ => (7, 8),
    }
}

fn superscript(c: char) -> Option<char> {
    Some(match c {
        '⁰' => '0',
        '¹' => '1',
        '²' => '2',
        '³' => '3',
        '⁴'..='⁹' => char::from(b'4' + u8::try_from(u32::from(c) - 0x2074).unwrap_or(0)),
        '⁻' => '-',
        'ⁿ' => 'n',
        _ => return None,
    })
}

fn subscript(c: char) -> Option<char> {
    matches!(c, '₀'..='₉').then(|| char::from(b'0' + u8::try_from(u32::from(c) - 0x2080).unwrap_or(0)))
}

fn greek(c: char) -> Option<&'static str> {
    Some(match c {
        'α' => "alpha",
        'β' => "beta",
        'γ' => "gamma",
        'δ' => "delta",
        'ε' | 'ϵ' => "epsilon",
        'θ' => "theta",
        'λ' => "lambda",
        'μ' | 'µ' => "mu",
        'π' | '𝜋' | '𝛑' | '𝝅' => "pi",
        'ρ' => "rho",
        'σ' => "sigma",
        'τ' => "tau",
        'φ' | 'ϕ' => "phi",
        'ω' => "omega",
        'Δ' => "Delta",
        'Ω' => "Omega",
        _ => return None,
    })
}

/// Takes off what surrounds an answer without being part of it: blanks, `$`, `\( \)`, `**`, backticks, a final
/// full stop, and braces that have no partner.
pub(super) fn unwrap(text: &str) -> &str {
    let mut s = text;
    loop {
        let before = s;
        s = s.trim_matches(|c: char| c.is_whitespace() || matches!(c, '`' | '*' | '"'));
        for (open, close) in [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")] {
            if let Some(inner) = s.strip_prefix(open).and_then(|x| x.strip_suffix(close))
                && !inner.contains(open)
            {
                s = inner;
            }
        }
        for end in [".", ",", ";", ":", "\\\\", "?"] {
            // A lone final `?` is left, so that it is an answer that says nothing.
            if s.len() > end.len() {
                s = s.strip_suffix(end).unwrap_or(s);
            }
        }
        if s.ends_with('\\') && !s.ends_with("\\\\") {
            s = &s[..s.len() - 1];
        }
        for blank in ["\\,", "\\;", "\\!", "\\:", "\\quad", "\\qquad", "\\ ", "~"] {
            s = s.strip_prefix(blank).unwrap_or(s);
            s = s.strip_suffix(blank).unwrap_or(s);
        }
        if s == before {
            return s;
        }
    }
}

/// Drops closing braces without an opening one and closes those left open.
pub(super) fn balance(text: &str) -> Cow<'_, str> {
    let (mut depth, mut bad, mut escaped) = (0usize, false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 0 => bad = true,
            '}' => depth -= 1,
            _ => {}
        }
    }
    if !bad && depth == 0 {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + depth);
    let (mut depth, mut escaped) = (0usize, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 0 => continue,
            '}' => depth -= 1,
            _ => {}
        }
        out.push(c);
    }
    out.extend(std::iter::repeat_n('}', depth));
    Cow::Owned(out)
}

/// The key under which texts are compared: lower case, no markup, words separated by one blank.
pub(super) fn text_key(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let mut name = String::new();
                while let Some(l) = chars.peek().copied().filter(char::is_ascii_alphabetic) {
                    name.push(l);
                    chars.next();
                }
                match name.as_str() {
                    "" => {
                        if let Some(next) = chars.next().filter(|n| matches!(n, '{' | '}' | '%' | '$' | '#' | '&')) {
                            out.push(next);
                        } else {
                            out.push(' ');
                        }
                    }
                    "text" | "textbf" | "textit" | "mathrm" | "mathbf" | "mbox" | "textrm" | "emph" | "left"
                    | "right" | "displaystyle" | "bf" | "rm" | "it" | "mathit" | "boldsymbol" | "mathsf" | "large"
                    | "Large" | "underline" | "textsf" | "texttt" => {}
                    "quad" | "qquad" => out.push(' '),
                    "dfrac" | "tfrac" | "cfrac" => out.push_str("\\frac"),
                    "leq" | "leqslant" => out.push_str("\\le"),
                    "geq" | "geqslant" => out.push_str("\\ge"),
                    other => {
                        out.push('\\');
                        out.push_str(other);
                    }
                }
            }
            '{' | '}' | '$' | '~' | '*' | '`' | '"' => out.push(' '),
            c if c.is_whitespace() => out.push(' '),
            c => out.extend(c.to_lowercase()),
        }
    }
    let mut key = String::with_capacity(out.len());
    for word in out.split(' ').filter(|w| !w.is_empty()) {
        if !key.is_empty() {
            key.push(' ');
        }
        key.push_str(word);
    }
    key.trim_matches(|c: char| matches!(c, '.' | ',' | ';' | ':' | '!' | ' ')).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_alikes_become_ascii_and_braces_balance() {
        assert_eq!(unify("６７６ − √12 x²"), "676 - \\sqrt{12} x^{2}");
        assert_eq!(balance("(0, \\frac{1}{2}]}"), "(0, \\frac{1}{2}]");
        assert_eq!(balance("\\sqrt{2"), "\\sqrt{2}");
        assert_eq!(unwrap(" **$310$**. "), "310");
        assert_eq!(text_key("\\text{ Not  Even }."), "not even");
    }
}
