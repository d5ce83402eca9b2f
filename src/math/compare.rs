//! Equivalence by type.

use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive};

use super::exact::Exact;
use super::expr::Expr;
use super::poly::Trouble;
use super::probe;
use super::region::{interval, region};
use super::value::{Op, Value};

const MAX_COMPARISONS: usize = 1_200;
/// A decimal answer may differ this much (relative) from a gold that has no finite decimal form.
const DECIMAL_TOLERANCE: f64 = 1e-6;

/// Compares one answer with one gold; holds the budget of the pair.
#[derive(Default)]
pub(super) struct Comparison {
    exact: Exact,
    count: usize,
    /// What decided, for explanations.
    pub(super) evidence: &'static str,
}

impl Comparison {
    pub(super) fn equal(&mut self, gold: &Value, answer: &Value) -> bool {
        self.count += 1;
        if self.count > MAX_COMPARISONS {
            self.evidence = "comparison budget spent";
            return false;
        }
        match (gold, answer) {
            (Value::Unit(g, u), Value::Unit(a, v)) => u == v && self.equal(g, a),
            (Value::Unit(g, u), a) => {
                self.equal(g, a) || matches!((&**g, a), (Value::Expr(g), Value::Expr(a)) if self.bare_unit(g, u, a))
            }
            (g, Value::Unit(a, _)) => self.equal(g, a),
            (Value::Percent(g), Value::Percent(a)) => self.expressions(g, a),
            (Value::Percent(g), Value::Expr(a)) => self.expressions(g, a) || self.expressions(&hundredth(g), a),
            // A gold that is a fraction below 1 is a share: `0.25%` is not 1/4, although a gold `25` accepts `25%`.
            (Value::Expr(g), Value::Percent(a)) => {
                !share(g) && self.expressions(g, a) || self.expressions(g, &hundredth(a))
            }
            (Value::Expr(g), Value::Expr(a)) => self.expressions(g, a),
            (Value::Text(g), Value::Text(a)) => {
                self.evidence = "same words";
                bare_words(g) == bare_words(a)
            }
            (Value::Base(g, b), Value::Base(a, c)) => {
                self.evidence = "digits and base";
                g == a && b == c
            }
            (Value::Ratio(g, gt, gs), Value::Ratio(a, at, s)) => self.ratios((g, *gt, gs), (a, *at, s)),
            (Value::Group(o, g, c), Value::Group(p, a, d)) => o == p && c == d && self.in_order(g, a),
            (Value::Matrix(g), Value::Matrix(a)) => {
                g.len() == a.len()
                    && g.iter().zip(a).all(|(x, y)| {
                        x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.step() && self.expressions(x, y))
                    })
            }
            (Value::Relation(..), Value::Relation(..)) => self.relations(gold, answer),
            (Value::Relation(sides, ops), _) => {
                if let Some((_, interval)) = interval(sides, ops) {
                    return !matches!(answer, Value::Expr(_)) && self.equal(&interval, answer);
                }
                match self.bare(gold) {
                    Some((_, g)) => self.equal(&g, answer),
                    None => false,
                }
            }
            (_, Value::Relation(sides, ops)) => {
                if let Some((_, interval)) = interval(sides, ops) {
                    return !matches!(gold, Value::Expr(_)) && self.equal(gold, &interval);
                }
                match self.bare(answer) {
                    Some((_, a)) => self.equal(gold, &a),
                    None => false,
                }
            }
            (Value::List(g) | Value::Set(g) | Value::Union(g), Value::List(a) | Value::Set(a) | Value::Union(a)) => {
                let union = |v: &Value| matches!(v, Value::Union(_));
                let (g, a) = (flat(g, union(gold)), flat(a, union(answer)));
                self.any_order(&g, &a)
            }
            (Value::Group('(', g, ')'), Value::List(a)) => match labelled(a) {
                Some(a) => self.in_order(g, &a),
                None => false,
            },
            (Value::List(g), Value::Group('(', a, ')')) => match labelled(g) {
                Some(g) => self.in_order(&g, a),
                None => false,
            },
            // `0.5 or 1/2`: the same twice.
            (Value::Expr(_) | Value::Percent(_), Value::List(a)) if a.len() > 1 => {
                a.iter().all(|a| matches!(a, Value::Expr(_)) && self.equal(gold, a))
            }
            (Value::List(g) | Value::Set(g), _) if g.len() == 1 => self.equal(&g[0], answer),
            (_, Value::List(a) | Value::Set(a)) if a.len() == 1 => self.equal(gold, &a[0]),
            _ => {
                self.evidence = "different types";
                false
            }
        }
    }

    /// `12 m^2` without `\text`: the unit of one letter was read as a symbol.
    fn bare_unit(&mut self, gold: &Expr, unit: &str, answer: &Expr) -> bool {
        let (letter, power) = unit.split_once('^').unwrap_or((unit, "1"));
        let Ok(power) = power.parse() else { return false };
        if !matches!(letter, "m" | "g" | "l") || gold.has_symbol() {
            return false;
        }
        let symbol = Expr::Power(Box::new(Expr::Symbol(letter.to_owned())), Box::new(Expr::integer(power)));
        self.expressions(&Expr::Product(vec![gold.clone(), symbol]), answer)
    }

    fn step(&mut self) -> bool {
        self.count += 1;
        self.count <= MAX_COMPARISONS
    }

    fn in_order(&mut self, gold: &[Value], answer: &[Value]) -> bool {
        gold.len() == answer.len() && gold.iter().zip(answer).all(|(g, a)| self.equal(g, a))
    }

    fn any_order(&mut self, gold: &[Value], answer: &[Value]) -> bool {
        if gold.len() != answer.len() {
            self.evidence = "different number of items";
            return false;
        }
        let mut left: Vec<&Value> = answer.iter().collect();
        gold.iter().all(|g| match left.iter().position(|a| self.equal(g, a)) {
            Some(at) => {
                left.remove(at);
                true
            }
            None => false,
        })
    }

    /// `a:b` up to a common factor; clock times and three and more parts only as they stand.
    fn ratios(&mut self, gold: (&[Expr], bool, &str), answer: (&[Expr], bool, &str)) -> bool {
        // With `a.m.` it is a time, which has two digits of minutes: 7:5 is not 7:05.
        if (!gold.2.is_empty() || !answer.2.is_empty()) && gold.1 != answer.1 {
            return false;
        }
        if gold.0.len() != answer.0.len() || !gold.2.is_empty() && !answer.2.is_empty() && gold.2 != answer.2 {
            return false;
        }
        if gold.0.iter().zip(answer.0).all(|(g, a)| self.expressions(g, a)) {
            return true;
        }
        if gold.0.len() != 2 || gold.1 && answer.1 {
            return false;
        }
        let cross = |x: &Expr, y: &Expr| Expr::Product(vec![x.clone(), y.clone()]);
        let zero = |e: &Expr| matches!(e, Expr::Number(n) if n.numer().bits() == 0);
        !gold.0.iter().chain(answer.0).any(zero)
            && self.expressions(&cross(&gold.0[0], &answer.0[1]), &cross(&gold.0[1], &answer.0[0]))
    }

    pub(super) fn expressions(&mut self, gold: &Expr, answer: &Expr) -> bool {
        if let (Expr::Number(g), Expr::Number(a)) = (gold, answer) {
            self.evidence = "exact rationals";
            return g == a || decimal_near(g, a);
        }
        self.exact.opaque = false;
        let pair = self.exact.convert(gold).and_then(|g| {
            let a = self.exact.convert(answer)?;
            let same = self.exact.equal(&g, &a)?;
            Ok((g, a, same))
        });
        match pair {
            Ok((_, _, true)) => {
                self.evidence = "exact arithmetic";
                true
            }
            Ok((g, a, false)) => {
                self.evidence = "exact arithmetic";
                if let (Some(g), Some(a)) = (g.rational(), a.rational()) {
                    return decimal_near(&g, &a);
                }
                if let Some(a) = a.rational()
                    && !gold.has_symbol()
                {
                    return near(gold, &a);
                }
                // One term cannot vanish unless its atoms do: sin x and 1.0000001 sin x, or sin x + 1e-10.
                if self.exact.single_term(&g, &a) {
                    return false;
                }
                if self.exact.opaque {
                    self.evidence = "numeric probes";
                    return probe::agree(gold, answer);
                }
                false
            }
            Err(Trouble::Undefined) => {
                self.evidence = "undefined value";
                false
            }
            Err(Trouble::Budget) if gold == answer => {
                self.evidence = "same structure";
                true
            }
            Err(Trouble::Budget) => {
                self.evidence = "too large for exact arithmetic";
                (gold.has_symbol() || answer.has_symbol()) && probe::agree(gold, answer)
            }
        }
    }

    /// `x = 5`, `5 = x`, `t = 39 + 1 = 40`, `x \in [1, 2]`: the label and what it equals.
    fn bare(&mut self, value: &Value) -> Option<(Option<Value>, Value)> {
        let Value::Relation(sides, ops) = value else { return None };
        if ops.as_slice() == [Op::In] {
            return is_label(&sides[0]).then(|| (Some(sides[0].clone()), sides[1].clone()));
        }
        if ops.iter().any(|op| *op != Op::Equal) {
            return None;
        }
        let (label, rest) = if is_label(&sides[0]) {
            (Some(sides[0].clone()), &sides[1..])
        } else if is_label(sides.last()?) {
            (sides.last().cloned(), &sides[..sides.len() - 1])
        } else {
            (None, sides.as_slice())
        };
        let last = rest.last()?.clone();
        // `a = b = 3`: more labels are fine; everything else in the chain must agree.
        for side in &rest[..rest.len() - 1] {
            if !is_label(side) && !self.equal(side, &last) {
                return None;
            }
        }
        // An equation without a label such as `2x + y = 0` is not a value.
        if label.is_none() && (has_symbol(&last) || rest.iter().any(has_symbol)) {
            return None;
        }
        Some((label, last))
    }

    fn relations(&mut self, gold: &Value, answer: &Value) -> bool {
        let (Value::Relation(gs, go), Value::Relation(aa, ao)) = (gold, answer) else { return false };
        if let (Some((gl, g)), Some((al, a))) = (region(gs, go), region(aa, ao)) {
            return gl == al && self.equal(&g, &a);
        }
        if let (Some((gl, g)), Some((al, a))) = (self.bare(gold), self.bare(answer)) {
            let comparable = match (&gl, &al) {
                // Words are not compared: `number of girls = 20`.
                (Some(Value::Text(_)), _) | (_, Some(Value::Text(_))) | (None, _) | (_, None) => true,
                (Some(x), Some(y)) => x == y,
            };
            if comparable && self.equal(&g, &a) {
                return true;
            }
        }
        if go == ao && gs.len() == aa.len() && self.in_order(gs, aa) {
            return true;
        }
        self.proportional((gs, go), (aa, ao))
    }

    /// left - right of both, up to a factor (positive for inequalities).
    fn proportional(&mut self, gold: (&[Value], &[Op]), answer: (&[Value], &[Op])) -> bool {
        let ([Value::Expr(gl), Value::Expr(gr)], [g_op]) = gold else { return false };
        let ([Value::Expr(al), Value::Expr(ar)], [a_op]) = answer else { return false };
        let (gl, gr, g_op) = less(gl, gr, *g_op);
        let (al, ar, a_op) = less(al, ar, *a_op);
        if g_op != a_op {
            return false;
        }
        let difference = |l: &Expr, r: &Expr| Expr::Sum(vec![l.clone(), r.clone().negated()]);
        self.exact.opaque = false;
        let ratio = self.exact.convert(&difference(gl, gr)).and_then(|g| {
            let a = self.exact.convert(&difference(al, ar))?;
            self.exact.ratio(&g, &a)
        });
        self.evidence = "equations up to a factor";
        match ratio {
            Ok(Some(c)) => g_op == Op::Equal || g_op == Op::NotEqual || c.is_positive(),
            _ => false,
        }
    }
}

/// Turns `>` and `>=` around.
fn less<'a>(l: &'a Expr, r: &'a Expr, op: Op) -> (&'a Expr, &'a Expr, Op) {
    match op {
        Op::Greater => (r, l, Op::Less),
        Op::GreaterEqual => (r, l, Op::LessEqual),
        _ => (l, r, op),
    }
}

/// Words without the article before them.
fn bare_words(text: &str) -> &str {
    ["the ", "an ", "a "].iter().find_map(|article| text.strip_prefix(article)).unwrap_or(text)
}

/// Is it a quotient of two numbers, the first the smaller?
fn share(gold: &Expr) -> bool {
    let Expr::Product(parts) = gold else { return false };
    let [Expr::Number(above), Expr::Inverse(below)] = parts.as_slice() else { return false };
    matches!(&**below, Expr::Number(below) if above.abs() < below.abs())
}

fn hundredth(expr: &Expr) -> Expr {
    Expr::Product(vec![expr.clone(), Expr::Inverse(Box::new(Expr::integer(100)))])
}

/// `x = 1, y = 2` as the items of `(1, 2)`: one letter each, in the order of the alphabet.
fn labelled(items: &[Value]) -> Option<Vec<Value>> {
    let mut pairs = Vec::with_capacity(items.len());
    for item in items {
        let Value::Relation(sides, ops) = item else { return None };
        let ([Value::Expr(Expr::Symbol(name)), value], [Op::Equal]) = (sides.as_slice(), ops.as_slice()) else {
            return None;
        };
        pairs.push((name, value));
    }
    pairs.sort_by_key(|(name, _)| *name);
    let distinct = pairs.windows(2).all(|w| w[0].0 != w[1].0);
    distinct.then(|| pairs.into_iter().map(|(_, value)| value.clone()).collect())
}

/// Lists inside of lists are one; so are finite sets inside of a union.
fn flat(items: &[Value], union: bool) -> Vec<Value> {
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Value::List(inner) => out.extend(inner.iter().cloned()),
            Value::Set(inner) if union => out.extend(inner.iter().cloned()),
            other => out.push(other.clone()),
        }
    }
    out
}

fn finite_decimal(r: &BigRational) -> bool {
    let mut d = r.denom().clone();
    if d.bits() > 4096 {
        return false;
    }
    for p in [2u32, 5] {
        let p = num_bigint::BigInt::from(p);
        while (&d % &p).bits() == 0 {
            d /= &p;
        }
    }
    d == num_bigint::BigInt::from(1)
}

fn decimal_near(gold: &BigRational, answer: &BigRational) -> bool {
    if answer.is_integer() || gold.is_integer() || gold.numer().bits() == 0 {
        return false;
    }
    if !finite_decimal(answer) || finite_decimal(gold) {
        return false;
    }
    let tolerance = BigRational::new(1.into(), 1_000_000.into());
    (answer - gold).abs() <= gold.abs() * tolerance
}

/// A finite decimal against an irrational gold.
fn near(gold: &Expr, answer: &BigRational) -> bool {
    if answer.is_integer() || !finite_decimal(answer) {
        return false;
    }
    let Some(g) = probe::value(gold, &std::collections::BTreeMap::new()) else { return false };
    let Some(a) = answer.to_f64() else { return false };
    g.im == 0.0 && g.re.is_finite() && (g.re - a).abs() <= DECIMAL_TOLERANCE * g.re.abs()
}

fn has_symbol(value: &Value) -> bool {
    match value {
        Value::Expr(e) => e.has_symbol(),
        Value::Unit(v, _) => has_symbol(v),
        _ => false,
    }
}

/// A name for something: a symbol, `f(x)`, `P(4)`, `(x, y)`, words; no arithmetic.
pub(super) fn is_label(value: &Value) -> bool {
    match value {
        Value::Text(_) => true,
        Value::Expr(Expr::Symbol(_)) => true,
        Value::Expr(Expr::Product(list)) => match list.as_slice() {
            // `f^{-1}(x)`.
            [Expr::Power(f, _), Expr::Symbol(_)] => {
                matches!(f.as_ref(), Expr::Symbol(f) if matches!(f.as_str(), "f" | "g" | "h"))
            }
            [Expr::Symbol(f), Expr::Number(_) | Expr::Sum(_)] => {
                f.starts_with(|c: char| c.is_ascii_uppercase() || matches!(c, 'f' | 'g' | 'h'))
            }
            list => list.len() <= 3 && list.iter().all(|x| matches!(x, Expr::Symbol(_) | Expr::E | Expr::I)),
        },
        Value::Expr(e @ (Expr::Call(..) | Expr::Power(..))) => {
            matches!(e, Expr::Call(..)) && e.has_symbol() && !e.any(&|x| matches!(x, Expr::Number(_) | Expr::Sum(_)))
        }
        Value::Group(_, items, _) => items.iter().all(is_label),
        Value::Matrix(rows) => rows.iter().flatten().all(|cell| matches!(cell, Expr::Symbol(_))),
        _ => false,
    }
}

/// One text for all equal answers, as far as exact arithmetic goes; for votes.
pub(super) fn key(value: &Value) -> String {
    let many = |items: &[Value]| items.iter().map(key).collect::<Vec<_>>();
    let expr = |e: &Expr| {
        let mut exact = Exact::default();
        exact.convert(e).map_or_else(|_| format!("{e:?}"), |f| f.key())
    };
    match value {
        Value::Expr(e) => expr(e),
        Value::Percent(e) => format!("{}%", expr(e)),
        Value::Unit(inner, _) => key(inner),
        Value::Text(t) => format!("\"{t}\""),
        Value::Base(d, b) => format!("{d}_{b}"),
        Value::Ratio(parts, _, suffix) => {
            format!("{} {suffix}", parts.iter().map(expr).collect::<Vec<_>>().join(":"))
        }
        Value::Group(o, items, c) => format!("{o}{}{c}", many(items).join(",")),
        Value::List(items) | Value::Set(items) | Value::Union(items) => {
            let mut keys = many(items);
            keys.sort();
            if keys.len() == 1 { keys.remove(0) } else { format!("{{{}}}", keys.join(",")) }
        }
        Value::Matrix(rows) => {
            rows.iter().map(|r| r.iter().map(expr).collect::<Vec<_>>().join("&")).collect::<Vec<_>>().join(";")
        }
        Value::Relation(sides, ops) => {
            if let Some((_, found)) = interval(sides, ops) {
                return key(&found);
            }
            match Comparison::default().bare(value) {
                Some((_, bare)) => key(&bare),
                None => format!("{}{ops:?}", many(sides).join(" ? ")),
            }
        }
    }
}
