//! Numeric probes: both expressions at the same seeded points. Used only where exact arithmetic cannot decide.

use std::collections::BTreeMap;

use num_traits::ToPrimitive;

use super::expr::Expr;

/// re + im i.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Complex {
    pub(super) re: f64,
    pub(super) im: f64,
}

const POINTS: usize = 6;
const NEEDED: usize = 3;
const TOLERANCE: f64 = 1e-9;

fn real(re: f64) -> Complex {
    Complex { re, im: 0.0 }
}

impl Complex {
    fn add(self, o: Self) -> Self {
        Self { re: self.re + o.re, im: self.im + o.im }
    }

    fn mul(self, o: Self) -> Self {
        Self { re: self.re * o.re - self.im * o.im, im: self.re * o.im + self.im * o.re }
    }

    fn inverse(self) -> Self {
        let d = self.re * self.re + self.im * self.im;
        Self { re: self.re / d, im: -self.im / d }
    }

    fn ln(self) -> Self {
        Self { re: self.re.hypot(self.im).ln(), im: self.im.atan2(self.re) }
    }

    fn exp(self) -> Self {
        let r = self.re.exp();
        if self.im == 0.0 { real(r) } else { Self { re: r * self.im.cos(), im: r * self.im.sin() } }
    }

    fn power(self, e: Self) -> Self {
        if e.im == 0.0 && self.im == 0.0 {
            let whole = e.re.fract() == 0.0;
            if self.re >= 0.0 || whole {
                return real(self.re.powf(e.re));
            }
            // The real odd root, as \sqrt[3]{-8} = -2.
            let index = 1.0 / e.re;
            if (index - index.round()).abs() < 1e-12 && index.round() % 2.0 != 0.0 {
                return real(-(-self.re).powf(e.re));
            }
        }
        if self.re == 0.0 && self.im == 0.0 {
            return real(if e.re > 0.0 { 0.0 } else { f64::NAN });
        }
        self.ln().mul(e).exp()
    }

    fn finite(self) -> bool {
        self.re.is_finite() && self.im.is_finite() && self.re.abs() < 1e200 && self.im.abs() < 1e200
    }

    fn close(self, o: Self, tolerance: f64) -> bool {
        let scale = self.re.hypot(self.im).max(o.re.hypot(o.im));
        (self.re - o.re).hypot(self.im - o.im) <= tolerance * scale
    }
}

/// Value at `point`; None where a function is not defined for such numbers.
pub(super) fn value(expr: &Expr, point: &BTreeMap<String, f64>) -> Option<Complex> {
    Some(match expr {
        Expr::Number(n) => real(n.to_f64()?),
        Expr::Symbol(s) => real(*point.get(s)?),
        Expr::Pi => real(std::f64::consts::PI),
        Expr::E => real(std::f64::consts::E),
        Expr::I => Complex { re: 0.0, im: 1.0 },
        Expr::Infinity => return None,
        Expr::Sum(list) => {
            let mut sum = real(0.0);
            for x in list {
                sum = sum.add(value(x, point)?);
            }
            sum
        }
        Expr::Product(list) => {
            let mut product = real(1.0);
            for x in list {
                product = product.mul(value(x, point)?);
            }
            product
        }
        Expr::Inverse(x) => value(x, point)?.inverse(),
        Expr::Power(a, b) => value(a, point)?.power(value(b, point)?),
        Expr::Call(name, args) => {
            let args: Vec<Complex> = args.iter().map(|a| value(a, point)).collect::<Option<_>>()?;
            return call(name, &args);
        }
    })
}

fn call(name: &str, args: &[Complex]) -> Option<Complex> {
    let first = *args.first()?;
    if matches!(name, "ln" | "log") {
        let value = first.ln();
        return Some(match args.get(1) {
            Some(base) => value.mul(base.ln().inverse()),
            None if name == "log" => value.mul(real(1.0 / std::f64::consts::LN_10)),
            None => value,
        });
    }
    if name == "abs" {
        return Some(real(first.re.hypot(first.im)));
    }
    let reals: Vec<f64> = args.iter().map(|a| (a.im.abs() < 1e-12).then_some(a.re)).collect::<Option<_>>()?;
    let x = reals[0];
    Some(real(match name {
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "cot" => 1.0 / x.tan(),
        "sec" => 1.0 / x.cos(),
        "csc" => 1.0 / x.sin(),
        "arcsin" => x.asin(),
        "arccos" => x.acos(),
        "arctan" => x.atan(),
        "arccot" => std::f64::consts::FRAC_PI_2 - x.atan(),
        "sinh" => x.sinh(),
        "cosh" => x.cosh(),
        "tanh" => x.tanh(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "max" => reals.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "min" => reals.iter().copied().fold(f64::INFINITY, f64::min),
        // Probed at whole numbers only; anything else is left undecided.
        "!" if x >= 0.0 && x.fract() == 0.0 && x <= 150.0 => (1..=whole(x)).map(f64::from).product(),
        "binom" if reals.len() == 2 && reals.iter().all(|r| *r >= 0.0 && r.fract() == 0.0 && *r <= 60.0) => {
            let (n, k) = (whole(x), whole(reals[1]));
            if k > n { 0.0 } else { (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product() }
        }
        _ => return None,
    }))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "callers checked 0..=150 and whole")]
fn whole(x: f64) -> u32 {
    x as u32
}

fn symbols(expr: &Expr, out: &mut BTreeMap<String, f64>) {
    match expr {
        Expr::Symbol(s) => {
            out.insert(s.clone(), 0.0);
        }
        Expr::Sum(list) | Expr::Product(list) | Expr::Call(_, list) => list.iter().for_each(|x| symbols(x, out)),
        Expr::Inverse(x) => symbols(x, out),
        Expr::Power(a, b) => {
            symbols(a, out);
            symbols(b, out);
        }
        _ => {}
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same points on every machine.
fn next(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let bits = u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or(0);
    f64::from(bits) / 4_294_967_296.0
}

/// Do both agree at enough points? Points: positive, then whole numbers (factorials), then of either sign,
/// near zero and farther away (`|x + 3|` is `x + 3` near zero).
pub(super) fn agree(a: &Expr, b: &Expr) -> bool {
    let mut point = BTreeMap::new();
    symbols(a, &mut point);
    symbols(b, &mut point);
    if point.len() > 12 {
        return false;
    }
    if point.is_empty() {
        return match (value(a, &point), value(b, &point)) {
            (Some(x), Some(y)) if x.finite() && y.finite() => x.close(y, 1e-13),
            _ => false,
        };
    }
    let mut state = 0x7165_726c;
    let mut same = 0;
    for round in 0..4 {
        for _ in 0..POINTS {
            for x in point.values_mut() {
                let u = next(&mut state);
                *x = match round {
                    0 => 0.3 + 2.4 * u,
                    1 => (2.0 + 9.0 * u).floor(),
                    2 => 4.0 * u - 2.0,
                    _ => 24.0 * u - 12.0,
                };
            }
            match (value(a, &point), value(b, &point)) {
                (Some(x), Some(y)) if x.finite() && y.finite() => {
                    if !x.close(y, TOLERANCE) {
                        // Off the common domain (roots of negative numbers) branches may differ.
                        if round >= 2 && (x.im.abs() > 1e-9 || y.im.abs() > 1e-9) {
                            continue;
                        }
                        return false;
                    }
                    same += 1;
                }
                _ => {}
            }
        }
    }
    same >= NEEDED
}
