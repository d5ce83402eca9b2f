//! Typed answers: numbers and expressions, tuples, intervals, sets, lists, matrices, relations, bases, texts.

use super::clean;
use super::expr::{self, Expr};
use super::lex::{self, Token, Unreadable};
use super::{quantity, region};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Expr(Expr),
    /// N of `N%`.
    Percent(Expr),
    /// With a unit, normalised.
    Unit(Box<Value>, String),
    /// Compared by its key.
    Text(String),
    /// Upper-case digits and the base.
    Base(String, u32),
    /// `a:b`, also clock times; the last field holds `am`, `pm` or nothing.
    Ratio(Vec<Expr>, bool, String),
    /// A tuple or an interval: brackets and items.
    Group(char, Vec<Value>, char),
    Set(Vec<Value>),
    List(Vec<Value>),
    Union(Vec<Value>),
    Matrix(Vec<Vec<Expr>>),
    Relation(Vec<Value>, Vec<Op>),
}

impl Value {
    /// The type's name, for explanations.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Expr(Expr::Number(_)) => "number",
            Self::Expr(_) => "expression",
            Self::Percent(_) => "percent",
            Self::Unit(inner, _) => inner.kind(),
            Self::Text(_) => "text",
            Self::Base(..) => "number in a base",
            Self::Ratio(..) => "ratio or time",
            Self::Group(..) => "tuple or interval",
            Self::Set(_) => "set",
            Self::List(_) => "list",
            Self::Union(_) => "union",
            Self::Matrix(_) => "matrix",
            Self::Relation(..) => "equation or inequality",
        }
    }
}

const MAX_ITEMS: usize = 400;
const MAX_NESTING: usize = 6;

/// Reads `text`; what is not mathematics is a text.
pub(super) fn read(text: &str) -> Value {
    let unified = clean::unify(text);
    let balanced = clean::balance(&unified);
    let inner = clean::unwrap(&balanced);
    let outward = (inner.len() <= clean::MAX_ANSWER).then(|| region::outward(inner)).flatten();
    let parsed = lex::lex(outward.as_deref().unwrap_or(inner)).and_then(|tokens| value(&tokens, 0));
    parsed.unwrap_or_else(|_| Value::Text(clean::text_key(inner)))
}

fn level(token: &Token) -> i32 {
    match token {
        Token::Char('(' | '[' | '{' | '«') => 1,
        Token::Char(')' | ']' | '}' | '»') => -1,
        Token::Command(name) if name.starts_with("begin:") || name == "lfloor" => 1,
        Token::Command(name) if name.starts_with("end:") || name == "rfloor" => -1,
        _ => 0,
    }
}

/// Parts between separators outside of all brackets.
fn split<'a>(tokens: &'a [Token], separator: &dyn Fn(&Token) -> bool) -> Vec<&'a [Token]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (i, token) in tokens.iter().enumerate() {
        depth += level(token);
        if depth == 0 && separator(token) {
            parts.push(&tokens[start..i]);
            start = i + 1;
        }
    }
    parts.push(&tokens[start..]);
    parts
}

/// Is the slice one bracket pair from end to end?
fn enclosed(tokens: &[Token]) -> Option<(char, char)> {
    let (Some(Token::Char(open)), Some(Token::Char(close))) = (tokens.first(), tokens.last()) else { return None };
    if !matches!(open, '(' | '[' | '{' | '«') || !matches!(close, ')' | ']' | '}' | '»') || tokens.len() < 2 {
        return None;
    }
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        depth += level(token);
        if depth == 0 && i + 1 < tokens.len() {
            return None;
        }
    }
    (depth == 0).then_some((*open, *close))
}

fn word(token: &Token, words: &[&str]) -> bool {
    matches!(token, Token::Text(t) if words.iter().any(|w| t.trim_matches(|c: char| c == ',' || c.is_whitespace()).eq_ignore_ascii_case(w)))
}

fn about(token: &Token) -> bool {
    matches!(token, Token::Command(c) if matches!(c.as_str(), "approx" | "simeq" | "thickapprox"))
}

fn operator(token: &Token) -> Option<Op> {
    Some(match token {
        Token::Char('=') => Op::Equal,
        Token::Char('<') => Op::Less,
        Token::Char('>') => Op::Greater,
        Token::Command(name) => match name.as_str() {
            "lt" => Op::Less,
            "gt" => Op::Greater,
            "le" | "leq" | "leqslant" | "leqq" => Op::LessEqual,
            "ge" | "geq" | "geqslant" | "geqq" => Op::GreaterEqual,
            "ne" | "neq" => Op::NotEqual,
            "equiv" => Op::Equal,
            "in" => Op::In,
            _ => return None,
        },
        _ => return None,
    })
}

fn values(parts: &[&[Token]], nesting: usize) -> Result<Vec<Value>, Unreadable> {
    if parts.len() > MAX_ITEMS {
        return Err(Unreadable);
    }
    parts.iter().map(|p| value(p, nesting + 1)).collect()
}

fn value(tokens: &[Token], nesting: usize) -> Result<Value, Unreadable> {
    if nesting > MAX_NESTING || tokens.is_empty() {
        return Err(Unreadable);
    }
    let mut tokens = tokens;
    while let Some(('{', '}')) = enclosed(tokens) {
        // `{37 \over 21}` is read by the expression parser, from its braces.
        if tokens.iter().any(|t| matches!(t, Token::Command(c) if c == "over" || c == "choose")) {
            break;
        }
        tokens = &tokens[1..tokens.len() - 1];
        if tokens.is_empty() {
            return Err(Unreadable);
        }
    }
    if word(&tokens[0], &["either", "both"]) && tokens.len() > 1 {
        tokens = &tokens[1..];
    }
    if matches!(tokens, [Token::Command(c)] if c == "emptyset" || c == "varnothing") {
        return Ok(Value::Set(Vec::new()));
    }
    if tokens.len() == 1 && word(&tokens[0], &["empty set", "the empty set"]) {
        return Ok(Value::Set(Vec::new()));
    }
    if matches!(tokens, [Token::Command(c)] if c == "mathbb:R") {
        let all = [Expr::Infinity.negated(), Expr::Infinity].map(Value::Expr);
        return Ok(Value::Group('(', all.into(), ')'));
    }
    let joined = |t: &Token| word(t, &["or", "and", "and maybe", "or maybe"]) || matches!(t, Token::Char(';'));
    if tokens.iter().any(joined) {
        let mut parts = split(tokens, &|t| joined(t) || matches!(t, Token::Char(',')));
        parts.retain(|p| !p.is_empty());
        if parts.len() > 1 {
            let items = values(&parts, nesting)?;
            let together = tokens.iter().any(|t| word(t, &["and"])) && !tokens.iter().any(|t| word(t, &["or"]));
            return match region::both(&items).filter(|_| together) {
                Some(found) => Ok(found),
                None => list(items),
            };
        }
    }
    let mut parts = split(tokens, &|t| matches!(t, Token::Char(',')));
    if parts.len() > 1 {
        parts.retain(|p| !p.is_empty());
        return list(values(&parts, nesting)?);
    }
    // `\frac{10}{3} \approx 3.33`: what stands before it is the answer, unless that is only a name for it.
    if tokens.iter().any(about) {
        let parts = split(tokens, &about);
        if parts.len() > 1 {
            let label = |p: &&[Token]| matches!(p, [] | [Token::Symbol(_)]);
            let at = usize::from(label(&parts[0]));
            return value(parts[at], nesting + 1);
        }
    }
    if tokens.iter().any(|t| operator(t).is_some()) {
        let parts = split(tokens, &|t| operator(t).is_some());
        if parts.len() > 1 {
            let mut ops = Vec::new();
            let mut depth = 0;
            for t in tokens {
                depth += level(t);
                if depth == 0 {
                    ops.extend(operator(t));
                }
            }
            let sides = parts.iter().map(|p| side(p, nesting + 1)).collect::<Result<Vec<_>, _>>()?;
            return Ok(Value::Relation(sides, ops));
        }
    }
    if let [Token::Command(all), minus, points @ ..] = tokens
        && all == "mathbb:R"
        && (matches!(minus, Token::Char('-'))
            || matches!(minus, Token::Command(c) if c == "setminus" || c == "backslash"))
        && enclosed(points) == Some(('«', '»'))
        && let Value::Set(points) = set(&points[1..points.len() - 1], nesting)?
        && let Some(found) = region::without(&points)
    {
        return Ok(found);
    }
    let unions = split(tokens, &|t| matches!(t, Token::Command(c) if c == "cup" || c == "bigcup"));
    if unions.len() > 1 {
        return Ok(Value::Union(values(&unions, nesting)?));
    }
    if let Some(found) = ratio(tokens)? {
        return Ok(found);
    }
    // `P(3, -4)`: a point with its name.
    if let [Token::Symbol(name), point @ ..] = tokens
        && name.len() == 1
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && enclosed(point) == Some(('(', ')'))
        && split(&point[1..point.len() - 1], &|t| matches!(t, Token::Char(','))).len() > 1
    {
        return value(point, nesting + 1);
    }
    if let Some((open, close)) = enclosed(tokens) {
        let inner = &tokens[1..tokens.len() - 1];
        if open == '«' {
            return set(inner, nesting);
        }
        let items = split(inner, &|t| matches!(t, Token::Char(',')));
        if items.len() > 1 && matches!(open, '(' | '[') && matches!(close, ')' | ']') {
            let items = values(&items, nesting)?;
            return Ok(Value::Group(open, items, close));
        }
        if open == '(' && close == ')' && !inner.is_empty() && inner.iter().all(|t| matches!(t, Token::Text(_))) {
            return value(inner, nesting + 1);
        }
    }
    if let Some(found) = base(tokens) {
        return Ok(found);
    }
    if let Some(found) = matrix(tokens)? {
        return Ok(found);
    }
    quantity::quantity(tokens)
}

/// A side of a relation may be words (`number of girls = 20`) or a label such as `\angle A`.
fn side(tokens: &[Token], nesting: usize) -> Result<Value, Unreadable> {
    if tokens.is_empty() {
        return Err(Unreadable);
    }
    value(tokens, nesting).or_else(|_| {
        if tokens.iter().any(|t| matches!(t, Token::Number(_))) {
            return Err(Unreadable);
        }
        Ok(Value::Text(format!("{tokens:?}")))
    })
}

fn list(mut items: Vec<Value>) -> Result<Value, Unreadable> {
    if items.len() == 1 {
        return Ok(items.remove(0));
    }
    if items.iter().all(|v| matches!(v, Value::Text(_))) {
        return Err(Unreadable);
    }
    // `n = 3, 4, 5`: the label stands for all.
    if let Some(Value::Relation(sides, ops)) = items.first()
        && sides.len() == 2
        && ops == &[Op::Equal]
        && items[1..].iter().all(|v| !matches!(v, Value::Relation(..)))
    {
        let (label, first) = (sides[0].clone(), sides[1].clone());
        items[0] = first;
        let all = items.into_iter().map(|v| Value::Relation(vec![label.clone(), v], vec![Op::Equal])).collect();
        return Ok(Value::List(all));
    }
    Ok(Value::List(items))
}

fn set(inner: &[Token], nesting: usize) -> Result<Value, Unreadable> {
    if inner.is_empty() {
        return Ok(Value::Set(Vec::new()));
    }
    let bar = |t: &Token| matches!(t, Token::Char('|' | ':')) || matches!(t, Token::Command(c) if c == "mid");
    let parts = split(inner, &bar);
    if parts.len() == 2 && parts[0].len() <= 4 {
        return value(parts[1], nesting + 1);
    }
    let items = split(inner, &|t| matches!(t, Token::Char(',')));
    Ok(Value::Set(values(&items, nesting)?))
}

fn ratio(tokens: &[Token]) -> Result<Option<Value>, Unreadable> {
    let parts = split(tokens, &|t| matches!(t, Token::Char(':')) || word(t, &["to"]));
    if !(2..=6).contains(&parts.len()) {
        return Ok(None);
    }
    let mut suffix = String::new();
    let mut exprs = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let mut part = *part;
        if i + 1 == parts.len() {
            while let Some((Token::Text(t), rest)) = part.split_last() {
                suffix = t.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
                part = rest;
            }
        }
        exprs.push(expr::parse(part)?);
    }
    let clock = parts.len() == 2
        && matches!(parts[0], [Token::Number(h)] if h.len() <= 2)
        && matches!(parts[1].first(), Some(Token::Number(m)) if m.len() == 2 && !m.contains('.'));
    Ok(Some(Value::Ratio(exprs, clock, suffix)))
}

fn base(tokens: &[Token]) -> Option<Value> {
    // `212_3`, `(212)_{(3)}`, `212_{\text{three}}`, `212 base 3`.
    let (at, radix) = match tokens.iter().position(|t| matches!(t, Token::Char('_'))) {
        Some(at) => (at, &tokens[at + 1..]),
        None => {
            let at = tokens.iter().position(|t| word(t, &["base", "in base"]))?;
            (at, &tokens[at + 1..])
        }
    };
    let mut radix = radix;
    while let [Token::Char('{' | '('), inner @ .., Token::Char('}' | ')')] = radix {
        radix = inner;
    }
    let radix: u32 = match radix {
        [Token::Number(n)] => n.parse().ok(),
        [Token::Text(t)] => radix_word(t),
        _ => None,
    }
    .filter(|r| (2..=36).contains(r))?;
    let mut number = &tokens[..at];
    if let [Token::Char('('), inner @ .., Token::Char(')')] = number {
        number = inner;
    }
    let mut digits = String::new();
    for token in number {
        match token {
            Token::Number(n) => digits.push_str(n),
            Token::Symbol(s) if s.len() == 1 => digits.push_str(&s.to_uppercase()),
            Token::Char('-') if digits.is_empty() => digits.push('-'),
            _ => return None,
        }
    }
    let trimmed = digits.trim_start_matches('0').to_owned();
    (!digits.is_empty()).then(|| Value::Base(if trimmed.is_empty() { "0".to_owned() } else { trimmed }, radix))
}

/// `three` of `212_{\text{three}}`, `base 3` of one text.
fn radix_word(text: &str) -> Option<u32> {
    let name = text.trim().to_lowercase();
    let names = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    let at = names.iter().position(|n| *n == name).or_else(|| (name == "sixteen").then_some(14))?;
    u32::try_from(at + 2).ok()
}

fn matrix(tokens: &[Token]) -> Result<Option<Value>, Unreadable> {
    let Some(begin) = tokens.iter().position(|t| matches!(t, Token::Command(c) if c.starts_with("begin:"))) else {
        return Ok(None);
    };
    let Some(end) = tokens.iter().rposition(|t| matches!(t, Token::Command(c) if c.starts_with("end:"))) else {
        return Ok(None);
    };
    let Token::Command(name) = &tokens[begin] else { return Ok(None) };
    // A determinant (vmatrix) is no matrix.
    let known = ["matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"];
    if end < begin || !known.iter().any(|k| name == &format!("begin:{k}")) {
        return Ok(None);
    }
    // `\left[ \begin{array}..\end{array} \right]`.
    let (mut before, mut after) = (&tokens[..begin], &tokens[end + 1..]);
    if let (Some((Token::Char('(' | '['), b)), Some((Token::Char(')' | ']'), a))) =
        (before.split_last(), after.split_first())
    {
        (before, after) = (b, a);
    }
    if !after.is_empty() {
        return Err(Unreadable);
    }
    let scale = match before {
        [] => Expr::integer(1),
        [Token::Char('-')] => Expr::integer(-1),
        more => expr::parse(more)?,
    };
    let mut rows = Vec::new();
    let mut cells = 0;
    for row in split(&tokens[begin + 1..end], &|t| matches!(t, Token::Command(c) if c == "newline")) {
        if row.is_empty() {
            continue;
        }
        let mut out = Vec::new();
        for cell in split(row, &|t| matches!(t, Token::Char('&'))) {
            cells += 1;
            if cells > MAX_ITEMS {
                return Err(Unreadable);
            }
            let cell = expr::parse(cell)?;
            out.push(if before.is_empty() { cell } else { Expr::Product(vec![scale.clone(), cell]) });
        }
        rows.push(out);
    }
    Ok(Some(Value::Matrix(rows)))
}
