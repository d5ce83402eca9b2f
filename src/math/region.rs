//! Relations and brackets read as regions of the real line.

use super::compare::is_label;
use super::expr::Expr;
use super::value::{Op, Value};

/// [`interval`], and `x \in (0, 1)`.
pub(super) fn region(sides: &[Value], ops: &[Op]) -> Option<(Value, Value)> {
    match (sides, ops) {
        ([label, set], [Op::In]) if is_label(label) => Some((label.clone(), set.clone())),
        _ => interval(sides, ops),
    }
}

/// `x > 3`, `-2 <= x < 5`, `|x| < 3`, `x \ne 2` as the label and an interval or a union of two.
pub(super) fn interval(sides: &[Value], ops: &[Op]) -> Option<(Value, Value)> {
    let inf = || Value::Expr(Expr::Infinity);
    let minus = || Value::Expr(Expr::Infinity.negated());
    let symbol = |v: &Value| matches!(v, Value::Expr(Expr::Symbol(_)));
    let up = |op: Op| matches!(op, Op::Less | Op::LessEqual);
    let down = |op: Op| matches!(op, Op::Greater | Op::GreaterEqual);
    let closed = |op: Op| matches!(op, Op::LessEqual | Op::GreaterEqual);
    let group = |low: Value, l: bool, high: Value, h: bool| {
        Value::Group(if l { '[' } else { '(' }, vec![low, high], if h { ']' } else { ')' })
    };
    match (sides, ops) {
        ([Value::Expr(Expr::Call(name, args)), Value::Expr(bound)], [op])
            if name == "abs" && matches!(args.as_slice(), [Expr::Symbol(_)]) && !bound.has_symbol() =>
        {
            let (low, high) = (Value::Expr(bound.clone().negated()), Value::Expr(bound.clone()));
            let found = if up(*op) {
                group(low, closed(*op), high, closed(*op))
            } else if down(*op) {
                let outer = [group(minus(), false, low, closed(*op)), group(high, closed(*op), inf(), false)];
                Value::Union(outer.into())
            } else {
                return None;
            };
            Some((Value::Expr(args[0].clone()), found))
        }
        ([x, b @ Value::Expr(bound)], [Op::NotEqual]) if symbol(x) && !bound.has_symbol() => {
            let (low, high) = (group(minus(), false, b.clone(), false), group(b.clone(), false, inf(), false));
            Some((x.clone(), Value::Union(vec![low, high])))
        }
        ([a, b], [op]) if up(*op) || down(*op) => {
            let (label, bound, below) = match (symbol(a), symbol(b)) {
                (true, false) => (a, b, up(*op)),
                (false, true) => (b, a, down(*op)),
                _ => return None,
            };
            let found = if below {
                group(minus(), false, bound.clone(), closed(*op))
            } else {
                group(bound.clone(), closed(*op), inf(), false)
            };
            Some((label.clone(), found))
        }
        ([a, x, b], [p, q]) if symbol(x) && (up(*p) && up(*q) || down(*p) && down(*q)) => {
            let found = if up(*p) {
                group(a.clone(), closed(*p), b.clone(), closed(*q))
            } else {
                group(b.clone(), closed(*q), a.clone(), closed(*p))
            };
            Some((x.clone(), found))
        }
        _ => None,
    }
}

/// `x > -1 \text{ and } x < 4` as `-1 < x < 4`: two inequalities that hold together, one bound below and one above.
pub(super) fn both(items: &[Value]) -> Option<Value> {
    let [first, second] = items else { return None };
    let (mut low, mut high, mut label) = (None, None, None);
    for item in [first, second] {
        let Value::Relation(sides, ops) = item else { return None };
        let ([a, b], [op]) = (sides.as_slice(), ops.as_slice()) else { return None };
        let symbol = |v: &Value| matches!(v, Value::Expr(Expr::Symbol(_)));
        let (name, bound, below, op) = match (symbol(a), symbol(b), op) {
            (true, false, Op::Less | Op::LessEqual) => (a, b, false, *op),
            (true, false, Op::Greater) => (a, b, true, Op::Less),
            (true, false, Op::GreaterEqual) => (a, b, true, Op::LessEqual),
            (false, true, Op::Less | Op::LessEqual) => (b, a, true, *op),
            (false, true, Op::Greater) => (b, a, false, Op::Less),
            (false, true, Op::GreaterEqual) => (b, a, false, Op::LessEqual),
            _ => return None,
        };
        if label.is_some_and(|l: &Value| l != name) {
            return None;
        }
        label = Some(name);
        *(if below { &mut low } else { &mut high }) = Some((bound.clone(), op));
    }
    let ((low, p), (high, q)) = (low?, high?);
    Some(Value::Relation(vec![low, label?.clone(), high], vec![p, q]))
}

/// The real line without some numbers, `\mathbb{R} \setminus \{2, -1\}`, as a union of open intervals.
pub(super) fn without(points: &[Value]) -> Option<Value> {
    let mut numbers = Vec::with_capacity(points.len());
    for point in points {
        let Value::Expr(Expr::Number(n)) = point else { return None };
        numbers.push(n.clone());
    }
    numbers.sort();
    numbers.dedup();
    let ends = numbers.into_iter().map(Expr::Number).chain([Expr::Infinity]);
    let mut from = Expr::Infinity.negated();
    let mut parts = Vec::new();
    for to in ends {
        let ends = [std::mem::replace(&mut from, to.clone()), to].map(Value::Expr);
        parts.push(Value::Group('(', ends.into(), ')'));
    }
    (parts.len() > 1).then_some(Value::Union(parts))
}

/// `[0, 1[` and `]-\infty, 2]`, the notation of many schools outside of the United States, with round brackets at
/// open ends; `None` where nothing is written so.
pub(super) fn outward(text: &str) -> Option<String> {
    if !text.contains(['[', ']']) {
        return None;
    }
    let mut changed = false;
    let mut out = Vec::new();
    for part in text.split("\\cup") {
        let bare = part.replace("\\left", "").replace("\\right", "");
        let bare = bare.trim();
        let inner = bare.strip_prefix(['[', ']']).and_then(|b| b.strip_suffix(['[', ']']));
        let reversed = bare.starts_with(']') || bare.ends_with('[');
        match inner {
            Some(inner) if reversed && !inner.contains(['[', ']']) && inner.contains([',', ';']) => {
                let open = if bare.starts_with(']') { '(' } else { '[' };
                let close = if bare.ends_with('[') { ')' } else { ']' };
                // `]0; 1[` where the comma is the decimal point's.
                let inner = if inner.contains(',') { inner.to_owned() } else { inner.replace(';', ",") };
                out.push(format!("{open}{inner}{close}"));
                changed = true;
            }
            _ => out.push(part.to_owned()),
        }
    }
    changed.then(|| out.join("\\cup"))
}
