//! Numbers and expressions with what stands around them: currency, unit, percent sign, number word.

use super::expr::{self, Expr};
use super::lex::{Token, Unreadable};
use super::value::Value;

/// An expression with a currency before it or a unit or percent sign after it.
pub(super) fn quantity(tokens: &[Token]) -> Result<Value, Unreadable> {
    let mut tokens = tokens;
    let mut unit = String::new();
    if tokens.iter().all(|t| matches!(t, Token::Text(_))) {
        return Err(Unreadable);
    }
    // Currency first, also behind a sign (`-$5`).
    let kept;
    if let Some(at) = tokens
        .iter()
        .take(2)
        .position(|t| matches!(t, Token::Text(c) if matches!(c.as_str(), "$" | "€" | "£" | "¥" | "₹")))
        // `18€` is read from its end.
        .filter(|at| *at == 0 || tokens[0] == Token::Char('-'))
    {
        if let Token::Text(c) = &tokens[at] {
            unit.clone_from(c);
        }
        kept = tokens.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, t)| t.clone()).collect::<Vec<_>>();
        tokens = &kept;
    }
    // `\cos 60^\circ`: the degrees are the angle's.
    let angle = tokens.iter().any(|t| matches!(t, Token::Command(c) if expr::TRIGONOMETRIC.contains(&c.as_str())));
    let mut percent = false;
    let mut words: Vec<String> = Vec::new();
    let mut power = None;
    loop {
        match tokens {
            [_, .., Token::Char('%')] if percent => return Err(Unreadable),
            [rest @ .., Token::Char('%')] => {
                percent = true;
                tokens = rest;
            }
            [.., Token::Command(c)] | [.., Token::Command(c), Token::Char('}')] if angle && c == "circ" => break,
            [rest @ .., Token::Char('^'), Token::Command(c)] if c == "circ" || c == "degree" => {
                words.push("degree".to_owned());
                tokens = rest;
            }
            [rest @ .., Token::Char('^'), Token::Char('{'), Token::Command(c), Token::Char('}')] if c == "circ" => {
                words.push("degree".to_owned());
                tokens = rest;
            }
            // `25^\circ C`.
            [rest @ .., Token::Char('^'), Token::Command(c), Token::Symbol(s) | Token::Text(s)]
            | [
                rest @ ..,
                Token::Char('^'),
                Token::Char('{'),
                Token::Command(c),
                Token::Char('}'),
                Token::Symbol(s) | Token::Text(s),
            ] if c == "circ" && matches!(s.trim(), "C" | "F" | "K") => {
                words.push(s.trim().to_owned());
                words.push("degree".to_owned());
                tokens = rest;
            }
            // `7^{\text{th}}`.
            [rest @ .., Token::Char('^'), Token::Char('{'), Token::Text(t), Token::Char('}')]
            | [rest @ .., Token::Char('^'), Token::Text(t)]
                if matches!(t.trim(), "st" | "nd" | "rd" | "th") && matches!(rest.last(), Some(Token::Number(_))) =>
            {
                tokens = rest;
            }
            // `90 km/h`.
            [rest @ .., Token::Text(a), Token::Char('/'), Token::Symbol(b)]
                if !rest.is_empty() && matches!(b.as_str(), "h" | "s" | "m" | "g" | "l" | "L") =>
            {
                words.push(format!("{a}/{b}"));
                tokens = rest;
            }
            // `5 \pmod{9}`, `5 (mod 9)`.
            [rest @ .., Token::Command(c), Token::Char('{'), Token::Number(n), Token::Char('}')]
            | [rest @ .., Token::Command(c), Token::Number(n)]
                if !rest.is_empty() && matches!(c.as_str(), "pmod" | "bmod" | "mod") =>
            {
                words.push(format!("mod {n}"));
                tokens = rest;
            }
            [rest @ .., Token::Char('('), Token::Text(t), Token::Number(n), Token::Char(')')]
                if !rest.is_empty() && t.trim() == "mod" =>
            {
                words.push(format!("mod {n}"));
                tokens = rest;
            }
            [rest @ .., Token::Command(c)] if c == "degree" => {
                words.push("degree".to_owned());
                tokens = rest;
            }
            [rest @ .., Token::Text(t), Token::Char('^'), Token::Number(n)] if n.len() == 1 => {
                power = Some(n.clone());
                words.push(t.clone());
                tokens = rest;
            }
            [rest @ .., Token::Text(t), Token::Char('^'), Token::Char('{'), Token::Number(n), Token::Char('}')]
                if n.len() == 1 =>
            {
                power = Some(n.clone());
                words.push(t.clone());
                tokens = rest;
            }
            [rest @ .., Token::Text(a), Token::Char('/'), Token::Text(b)] if !rest.is_empty() => {
                words.push(format!("{a}/{b}"));
                tokens = rest;
            }
            [rest @ .., Token::Text(t)] => {
                if matches!(t.trim().to_lowercase().as_str(), "percent" | "per cent" | "percents") {
                    percent = true;
                } else {
                    words.push(t.clone());
                }
                tokens = rest;
            }
            _ => break,
        }
        if words.len() > 6 {
            return Err(Unreadable);
        }
    }
    if tokens.is_empty() {
        return Err(Unreadable);
    }
    let mut expr = expr::parse(tokens)?;
    words.reverse();
    // `2.5 million dollars`.
    if let (Expr::Number(_), Some(first)) = (&expr, words.first_mut()) {
        let (word, rest) = first.trim().split_once(' ').unwrap_or((first.trim(), ""));
        if let Some(zeros) = zeros(word) {
            expr = Expr::Product(vec![expr, Expr::integer(10i64.pow(zeros))]);
            *first = rest.to_owned();
        }
    }
    if words.iter().any(|w| doubtful(w)) {
        return Err(Unreadable);
    }
    let mut name = super::units::normalise(&words.join(" "));
    if let Some(p) = power
        && !name.is_empty()
    {
        name = format!("{name}^{p}");
    }
    if !unit.is_empty() && !name.is_empty() && name != unit {
        // `$5 per hour`: the currency says enough.
        name = String::new();
    }
    if unit.is_empty() {
        unit = name;
    }
    let value = if percent {
        Value::Percent(expr)
    } else if expr.has_double_sign() {
        Value::List(vec![Value::Expr(expr.signed(1)), Value::Expr(expr.signed(-1))])
    } else {
        Value::Expr(expr)
    };
    Ok(if unit.is_empty() { value } else { Value::Unit(Box::new(value), unit) })
}

/// The zeros of a number word behind a number.
fn zeros(word: &str) -> Option<u32> {
    Some(match word.to_lowercase().trim_end_matches('s') {
        "hundred" => 2,
        "thousand" => 3,
        "million" => 6,
        "billion" => 9,
        "trillion" => 12,
        _ => return None,
    })
}

/// Words behind a number that are not a unit but change it or take something back.
pub(super) fn doubtful(text: &str) -> bool {
    text.to_lowercase().split(|c: char| !c.is_alphabetic()).any(|w| {
        matches!(
            w,
            "or" | "and"
                | "not"
                | "maybe"
                | "either"
                | "about"
                | "approximately"
                | "but"
                | "if"
                | "for"
                | "where"
                | "when"
                | "possibly"
                | "else"
                | "except"
                | "million"
                | "thousand"
                | "billion"
                | "hundred"
                | "dozen"
                | "base"
                | "millions"
                | "thousands"
                | "billions"
                | "trillion"
                | "trillions"
                | "hundreds"
                | "dozens"
                | "half"
                | "halves"
                | "third"
                | "thirds"
                | "fourth"
                | "fourths"
                | "fifth"
                | "fifths"
                | "sixth"
                | "sixths"
                | "seventh"
                | "sevenths"
                | "eighth"
                | "eighths"
                | "ninth"
                | "ninths"
                | "tenth"
                | "tenths"
                | "hundredth"
                | "hundredths"
                | "thousandth"
                | "thousandths"
                | "squared"
                | "cubed"
                | "factorial"
                | "plus"
                | "minus"
                | "wrong"
                | "incorrect"
                | "false"
                | "unknown"
                | "guess"
        )
    })
}
