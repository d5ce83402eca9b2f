//! Exact arithmetic: an expression as a quotient of polynomials over the rationals in "atoms" with rational
//! exponents. Atoms are symbols, pi, e, i (i^2 = -1), primes under a root, and opaque calls and powers.
//!
//! Distinct atoms other than opaque ones are independent, so a difference that is not zero proves inequality as
//! long as no opaque atom occurs (roots of distinct primes: Besicovitch 1940).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::{BigRational, Ratio};
use num_traits::{CheckedAdd, CheckedMul, One, Signed, ToPrimitive, Zero};

use super::expr::Expr;

const MAX_TERMS: usize = 300;
const MAX_BITS: u64 = 40_000;
/// Powers of sums are multiplied out up to this exponent.
const MAX_EXPAND: i64 = 24;
const MAX_FACTORIAL: u64 = 3_000;
/// Term products of one comparison.
const MAX_WORK: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// 0/0, log 0 and the like: equal to nothing.
    Undefined,
    /// Too large to be written out.
    Budget,
}

type Exponent = Ratio<i64>;
/// Sorted by atom.
type Monomial = Vec<(String, Exponent)>;
type Poly = BTreeMap<Monomial, BigRational>;

/// numerator / denominator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fraction {
    num: Poly,
    den: Poly,
}

#[derive(Default)]
pub(super) struct Exact {
    work: usize,
    /// An atom that may hide a relation to others has been made.
    pub(super) opaque: bool,
}

fn constant(c: BigRational) -> Poly {
    let mut poly = Poly::new();
    if !c.is_zero() {
        poly.insert(Vec::new(), c);
    }
    poly
}

fn one() -> Poly {
    constant(BigRational::one())
}

fn is_one(poly: &Poly) -> bool {
    poly.len() == 1 && poly.get(&Vec::new() as &Monomial).is_some_and(One::is_one)
}

fn small(c: BigRational) -> Result<BigRational, Trouble> {
    if c.numer().bits().max(c.denom().bits()) > MAX_BITS { Err(Trouble::Budget) } else { Ok(c) }
}

/// Integer power with a bound on the result's size.
pub(super) fn int_power(base: &BigRational, exponent: i64) -> Result<BigRational, Trouble> {
    if base.is_zero() {
        return match exponent {
            0 => Err(Trouble::Undefined),
            e if e > 0 => Ok(BigRational::zero()),
            _ => Err(Trouble::Undefined),
        };
    }
    let bits = base.numer().bits().max(base.denom().bits());
    let unit = base.denom().is_one() && base.numer().magnitude().is_one();
    if !unit && bits.saturating_mul(exponent.unsigned_abs()) > MAX_BITS {
        return Err(Trouble::Budget);
    }
    if unit {
        return Ok(if exponent % 2 == 0 { BigRational::one() } else { base.clone() });
    }
    let e = i32::try_from(exponent).map_err(|_| Trouble::Budget)?;
    Ok(base.pow(e))
}

impl Fraction {
    fn of(num: Poly) -> Self {
        Self { num, den: one() }
    }

    fn atom(name: String, exponent: Exponent) -> Self {
        Self::of(Poly::from([(vec![(name, exponent)], BigRational::one())]))
    }

    pub(super) fn rational(&self) -> Option<BigRational> {
        if !is_one(&self.den) {
            return None;
        }
        match self.num.len() {
            0 => Some(BigRational::zero()),
            1 => self.num.get(&Vec::new() as &Monomial).cloned(),
            _ => None,
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.num.is_empty()
    }

    /// A text that is the same for the same terms.
    pub(super) fn key(&self) -> String {
        let mut out = String::new();
        let scale = self.den.values().next().cloned().unwrap_or_else(BigRational::one);
        let write = |out: &mut String, poly: &Poly| {
            for (mono, c) in poly {
                let _ = write!(out, "{:+}", c / &scale);
                for (name, e) in mono {
                    let _ = write!(out, "*{name}^{e}");
                }
            }
            if poly.is_empty() {
                out.push('0');
            }
        };
        write(&mut out, &self.num);
        if !is_one(&self.den) {
            out.push('/');
            write(&mut out, &self.den);
        }
        out
    }

    fn monomial(&self) -> Option<(&Monomial, &BigRational)> {
        (is_one(&self.den) && self.num.len() == 1).then(|| self.num.iter().next()).flatten()
    }
}

impl Exact {
    fn spend(&mut self, n: usize) -> Result<(), Trouble> {
        self.work += n;
        if self.work > MAX_WORK { Err(Trouble::Budget) } else { Ok(()) }
    }

    fn add_poly(&mut self, a: &Poly, b: &Poly) -> Result<Poly, Trouble> {
        self.spend(b.len())?;
        let mut out = a.clone();
        for (mono, c) in b {
            let slot = out.entry(mono.clone()).or_insert_with(BigRational::zero);
            *slot = small(&*slot + c)?;
            if slot.is_zero() {
                out.remove(mono);
            }
        }
        if out.len() > MAX_TERMS { Err(Trouble::Budget) } else { Ok(out) }
    }

    fn mul_poly(&mut self, a: &Poly, b: &Poly) -> Result<Poly, Trouble> {
        let mut out = Poly::new();
        for (ma, ca) in a {
            for (mb, cb) in b {
                self.spend(1 + ma.len() + mb.len())?;
                let (mono, extra) = mul_monomial(ma, mb)?;
                let slot = out.entry(mono).or_insert_with(BigRational::zero);
                *slot = small(&*slot + ca * cb * extra)?;
            }
            if out.len() > MAX_TERMS {
                return Err(Trouble::Budget);
            }
        }
        out.retain(|_, c| !c.is_zero());
        Ok(out)
    }

    /// Folds a denominator of one term into the numerator.
    fn fold(&mut self, mut f: Fraction) -> Result<Fraction, Trouble> {
        if f.den.is_empty() {
            return Err(Trouble::Undefined);
        }
        if f.num.is_empty() {
            return Ok(Fraction::of(f.num));
        }
        if f.den.len() == 1 && !is_one(&f.den) {
            let Some((mono, c)) = f.den.iter().next() else { return Err(Trouble::Undefined) };
            let inverse: Monomial = mono.iter().map(|(n, e)| (n.clone(), -*e)).collect();
            let (inverse, extra) = mul_monomial(&inverse, &Vec::new())?;
            let factor = Poly::from([(inverse, extra / c)]);
            f = Fraction::of(self.mul_poly(&f.num, &factor)?);
        }
        Ok(f)
    }

    pub(super) fn add(&mut self, a: &Fraction, b: &Fraction) -> Result<Fraction, Trouble> {
        if a.den == b.den {
            let num = self.add_poly(&a.num, &b.num)?;
            return self.fold(Fraction { num, den: a.den.clone() });
        }
        let left = self.mul_poly(&a.num, &b.den)?;
        let right = self.mul_poly(&b.num, &a.den)?;
        let num = self.add_poly(&left, &right)?;
        let den = self.mul_poly(&a.den, &b.den)?;
        self.fold(Fraction { num, den })
    }

    pub(super) fn mul(&mut self, a: &Fraction, b: &Fraction) -> Result<Fraction, Trouble> {
        let num = self.mul_poly(&a.num, &b.num)?;
        let den = if is_one(&a.den) { b.den.clone() } else { self.mul_poly(&a.den, &b.den)? };
        self.fold(Fraction { num, den })
    }

    pub(super) fn inverse(&mut self, a: &Fraction) -> Result<Fraction, Trouble> {
        if a.num.is_empty() {
            return Err(Trouble::Undefined);
        }
        self.fold(Fraction { num: a.den.clone(), den: a.num.clone() })
    }

    pub(super) fn negate(&mut self, a: &Fraction) -> Fraction {
        Fraction { num: a.num.iter().map(|(m, c)| (m.clone(), -c)).collect(), den: a.den.clone() }
    }

    pub(super) fn equal(&mut self, a: &Fraction, b: &Fraction) -> Result<bool, Trouble> {
        if a.den == b.den {
            return Ok(a.num == b.num);
        }
        Ok(self.mul_poly(&a.num, &b.den)? == self.mul_poly(&b.num, &a.den)?)
    }

    /// Is a = c * b for a rational c != 0? Gives c.
    pub(super) fn ratio(&mut self, a: &Fraction, b: &Fraction) -> Result<Option<BigRational>, Trouble> {
        if a.is_zero() || b.is_zero() {
            return Ok(None);
        }
        // Denominators do not matter for where an equation holds.
        let (Some((ma, ca)), Some(cb)) = (a.num.iter().next(), a.num.keys().next().and_then(|m| b.num.get(m))) else {
            return Ok(None);
        };
        let _ = ma;
        let c = ca / cb;
        self.spend(b.num.len())?;
        let same = a.num.len() == b.num.len() && b.num.iter().all(|(m, x)| a.num.get(m) == Some(&(x * &c)));
        Ok(same.then_some(c))
    }

    pub(super) fn convert(&mut self, expr: &Expr) -> Result<Fraction, Trouble> {
        self.spend(1)?;
        match expr {
            Expr::Number(n) => Ok(Fraction::of(constant(small(n.clone())?))),
            Expr::Symbol(s) => Ok(Fraction::atom(s.clone(), Exponent::one())),
            Expr::Pi => Ok(Fraction::atom("#pi".to_owned(), Exponent::one())),
            Expr::E => Ok(Fraction::atom("#e".to_owned(), Exponent::one())),
            Expr::I => Ok(Fraction::atom("#i".to_owned(), Exponent::one())),
            Expr::Infinity => Ok(Fraction::atom("#inf".to_owned(), Exponent::one())),
            Expr::Sum(list) => {
                let mut sum = Fraction::of(Poly::new());
                for x in list {
                    let x = self.convert(x)?;
                    sum = self.add(&sum, &x)?;
                }
                Ok(sum)
            }
            Expr::Product(list) => {
                let mut product = Fraction::of(one());
                for x in list {
                    let x = self.convert(x)?;
                    product = self.mul(&product, &x)?;
                }
                Ok(product)
            }
            Expr::Inverse(x) => {
                let x = self.convert(x)?;
                self.inverse(&x)
            }
            Expr::Power(base, exponent) => {
                let base = self.convert(base)?;
                let exponent = self.convert(exponent)?;
                self.power(&base, &exponent)
            }
            Expr::Call(name, args) => {
                let args = args.iter().map(|a| self.convert(a)).collect::<Result<Vec<_>, _>>()?;
                super::calls::call(self, name, &args)
            }
        }
    }

    pub(super) fn opaque_atom(&mut self, name: String, exponent: Exponent) -> Fraction {
        self.opaque = true;
        Fraction::atom(name, exponent)
    }

    pub(super) fn number(&self, n: BigRational) -> Fraction {
        Fraction::of(constant(n))
    }

    pub(super) fn symbolic(&self, name: &str) -> Fraction {
        Fraction::atom(name.to_owned(), Exponent::one())
    }

    pub(super) fn power(&mut self, base: &Fraction, exponent: &Fraction) -> Result<Fraction, Trouble> {
        if let Some(e) = exponent.rational() {
            if e.is_integer() {
                return match e.to_integer().to_i64() {
                    Some(n) => self.int_power(base, n),
                    None => self.opaque_power(base, exponent),
                };
            }
            let (Some(n), Some(d)) = (e.numer().to_i64(), e.denom().to_i64()) else {
                return self.opaque_power(base, exponent);
            };
            if d <= 64 && n.abs() <= 4096 {
                return self.root(base, n, d);
            }
            return self.opaque_power(base, exponent);
        }
        // A sum in the exponent splits into powers: 2^(n+1) = 2 * 2^n.
        if is_one(&exponent.den) {
            let mut product = Fraction::of(one());
            for (mono, c) in &exponent.num {
                let part = if mono.is_empty() {
                    let c = Fraction::of(constant(c.clone()));
                    self.power(base, &c)?
                } else {
                    self.symbolic_power(base, mono, c)?
                };
                product = self.mul(&product, &part)?;
            }
            return Ok(product);
        }
        self.opaque_power(base, exponent)
    }

    /// base^(c * mono) as the atom (base^mono) to the power c; integers are split into primes first.
    fn symbolic_power(&mut self, base: &Fraction, mono: &Monomial, c: &BigRational) -> Result<Fraction, Trouble> {
        let inner = Fraction::of(Poly::from([(mono.clone(), BigRational::one())])).key();
        let (Some(n), Some(d)) = (c.numer().to_i64(), c.denom().to_i64()) else { return Err(Trouble::Budget) };
        let c = Exponent::new(n, d);
        let parts: Vec<(String, Exponent)> = match base.rational() {
            Some(r) if r.is_positive() => match factors(&r) {
                Some(primes) => primes.into_iter().map(|(p, k)| (p.to_string(), Exponent::from(k))).collect(),
                None => vec![(base.key(), Exponent::one())],
            },
            _ => match base.monomial() {
                Some((m, k)) if k.is_one() && m.len() == 1 => m.clone(),
                _ => vec![(base.key(), Exponent::one())],
            },
        };
        self.opaque = true;
        let mut product = Fraction::of(one());
        for (name, k) in parts {
            let e = c.checked_mul(&k).ok_or(Trouble::Budget)?;
            product = self.mul(&product, &Fraction::atom(format!("({name})^[{inner}]"), e))?;
        }
        Ok(product)
    }

    fn opaque_power(&mut self, base: &Fraction, exponent: &Fraction) -> Result<Fraction, Trouble> {
        let name = format!("({})^[{}]", base.key(), exponent.key());
        if name.len() > 4096 {
            return Err(Trouble::Budget);
        }
        Ok(self.opaque_atom(name, Exponent::one()))
    }

    fn int_power(&mut self, base: &Fraction, n: i64) -> Result<Fraction, Trouble> {
        if n < 0 {
            let inverse = self.inverse(base)?;
            return self.int_power(&inverse, n.checked_neg().ok_or(Trouble::Budget)?);
        }
        if let Some(r) = base.rational() {
            return match int_power(&r, n) {
                Ok(x) => Ok(Fraction::of(constant(x))),
                Err(Trouble::Budget) => {
                    let e = self.number(BigRational::from_integer(n.into()));
                    self.opaque_power(base, &e)
                }
                Err(e) => Err(e),
            };
        }
        if let Some((mono, c)) = base.monomial() {
            let c = int_power(c, n)?;
            let scaled = mono
                .iter()
                .map(|(name, e)| Some((name.clone(), e.checked_mul(&Exponent::from(n))?)))
                .collect::<Option<Monomial>>()
                .ok_or(Trouble::Budget)?;
            let (mono, extra) = mul_monomial(&scaled, &Vec::new())?;
            return Ok(Fraction::of(Poly::from([(mono, small(c * extra)?)])));
        }
        if n > MAX_EXPAND {
            let name = format!("({})", base.key());
            return if name.len() > 4096 {
                Err(Trouble::Budget)
            } else {
                Ok(self.opaque_atom(name, Exponent::from(n)))
            };
        }
        let mut result = Fraction::of(one());
        for _ in 0..n {
            result = self.mul(&result, base)?;
        }
        Ok(result)
    }

    /// base^(n/d), in lowest terms with d > 1.
    fn root(&mut self, base: &Fraction, n: i64, d: i64) -> Result<Fraction, Trouble> {
        if base.is_zero() {
            return if n > 0 { Ok(base.clone()) } else { Err(Trouble::Undefined) };
        }
        let Some((mono, c)) = base.monomial().map(|(m, c)| (m.clone(), c.clone())) else {
            let name = format!("({})", base.key());
            // sqrt of a square sum such as sqrt((x+1)^2) is left to the probes.
            return if name.len() > 4096 {
                Err(Trouble::Budget)
            } else {
                Ok(self.opaque_atom(name, Exponent::new(n, d)))
            };
        };
        let mut out: Monomial = Vec::new();
        for (name, e) in &mono {
            let power = e.checked_mul(&Exponent::new(n, d)).ok_or(Trouble::Budget)?;
            let even_base = e.is_integer() && e.to_integer() % 2 == 0 && !name.starts_with('#') && d % 2 == 0;
            let odd_result = !power.is_integer() || power.to_integer() % 2 != 0;
            if even_base && odd_result && !name.starts_with(|c: char| c.is_ascii_digit())
                || name == "#i"
                || name == "#inf"
            {
                // sqrt(x^2) is |x|, not x.
                let name = format!("({})", base.key());
                return if name.len() > 4096 {
                    Err(Trouble::Budget)
                } else {
                    Ok(self.opaque_atom(name, Exponent::new(n, d)))
                };
            }
            out.push((name.clone(), power));
        }
        let negative = c.is_negative();
        let mut sign = Fraction::of(one());
        if negative {
            if d % 2 == 1 {
                if n % 2 != 0 {
                    sign = self.number(-BigRational::one());
                }
            } else if d == 2 {
                let i = self.symbolic("#i");
                sign = self.int_power(&i, n)?;
            } else {
                let e = self.number(BigRational::new(n.into(), d.into()));
                return self.opaque_power(base, &e);
            }
        }
        let c = c.abs();
        let mut number = Fraction::of(one());
        if !c.is_one() {
            let Some(primes) = factors(&c) else {
                let e = self.number(BigRational::new(n.into(), d.into()));
                return self.opaque_power(base, &e);
            };
            for (p, k) in primes {
                let e = Exponent::from(k).checked_mul(&Exponent::new(n, d)).ok_or(Trouble::Budget)?;
                let (m, extra) = mul_monomial(&vec![(p.to_string(), e)], &Vec::new())?;
                let part = Fraction::of(Poly::from([(m, extra)]));
                number = self.mul(&number, &part)?;
            }
        }
        let (out, extra) = mul_monomial(&out, &Vec::new())?;
        let symbols = Fraction::of(Poly::from([(out, extra)]));
        let product = self.mul(&sign, &number)?;
        self.mul(&product, &symbols)
    }

    pub(super) fn factorial(&mut self, arg: &Fraction) -> Result<Fraction, Trouble> {
        match arg.rational() {
            Some(n) if n.is_integer() && !n.is_negative() => match n.to_integer().to_u64() {
                Some(n) if n <= MAX_FACTORIAL => {
                    let mut product = BigInt::one();
                    for k in 2..=n {
                        product *= k;
                    }
                    Ok(Fraction::of(constant(small(BigRational::from_integer(product))?)))
                }
                _ => Ok(self.opaque_atom(format!("fact({n})"), Exponent::one())),
            },
            Some(_) => Err(Trouble::Undefined),
            None => {
                let key = arg.key();
                Ok(self.opaque_atom(format!("fact({key})"), Exponent::one()))
            }
        }
    }
}

/// Product of monomials; whole powers of primes and of i move into the returned factor.
fn mul_monomial(a: &Monomial, b: &Monomial) -> Result<(Monomial, BigRational), Trouble> {
    let mut out: Monomial = Vec::with_capacity(a.len() + b.len());
    let mut factor = BigRational::one();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let take_a = j >= b.len() || i < a.len() && a[i].0 <= b[j].0;
        let both = i < a.len() && j < b.len() && a[i].0 == b[j].0;
        let (name, exponent) = if both {
            let e = a[i].1.checked_add(&b[j].1).ok_or(Trouble::Budget)?;
            i += 1;
            j += 1;
            (a[i - 1].0.clone(), e)
        } else if take_a {
            i += 1;
            a[i - 1].clone()
        } else {
            j += 1;
            b[j - 1].clone()
        };
        if exponent.numer().unsigned_abs() > 1 << 40 || *exponent.denom() > 1 << 20 {
            return Err(Trouble::Budget);
        }
        let mut rest = exponent;
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            let whole = exponent.floor();
            if !whole.is_zero() {
                let prime = BigInt::parse_bytes(name.as_bytes(), 10).ok_or(Trouble::Budget)?;
                factor = small(factor * int_power(&BigRational::from_integer(prime), whole.to_integer())?)?;
            }
            rest = exponent - whole;
        } else if name == "#i" && exponent.is_integer() {
            let turns = exponent.to_integer().mod_floor(&4);
            if turns >= 2 {
                factor = -factor;
            }
            rest = Exponent::from(turns % 2);
        }
        if !rest.is_zero() {
            out.push((name, rest));
        }
    }
    Ok((out, factor))
}

/// Prime factors of a positive rational with their powers; None where a factor may not be prime.
pub(super) fn factors(r: &BigRational) -> Option<Vec<(u64, i64)>> {
    let mut out = Vec::new();
    for (n, sign) in [(r.numer(), 1), (r.denom(), -1)] {
        let mut n = n.to_u64().filter(|n| *n < 1 << 52)?;
        let mut p = 2;
        while p * p <= n && p <= 20_000 {
            let mut k = 0;
            while n % p == 0 {
                n /= p;
                k += 1;
            }
            if k > 0 {
                out.push((p, sign * k));
            }
            p += if p == 2 { 1 } else { 2 };
        }
        if n > 1 {
            if p * p <= n {
                return None;
            }
            out.push((n, sign));
        }
    }
    out.sort_unstable();
    Some(out)
}
