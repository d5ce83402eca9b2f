//! Quotients of polynomials over the rationals in atoms with rational exponents: what [`super::exact`] computes with.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::{BigRational, Ratio};
use num_traits::{CheckedAdd, One, ToPrimitive, Zero};

const MAX_BITS: u64 = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// 0/0, log 0 and the like: equal to nothing.
    Undefined,
    /// Too large to be written out.
    Budget,
}

pub(super) type Exponent = Ratio<i64>;
/// Sorted by atom.
pub(super) type Monomial = Vec<(String, Exponent)>;
pub(super) type Poly = BTreeMap<Monomial, BigRational>;

/// numerator / denominator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fraction {
    pub(super) num: Poly,
    pub(super) den: Poly,
}

pub(super) fn constant(c: BigRational) -> Poly {
    let mut poly = Poly::new();
    if !c.is_zero() {
        poly.insert(Vec::new(), c);
    }
    poly
}

pub(super) fn one() -> Poly {
    constant(BigRational::one())
}

pub(super) fn is_one(poly: &Poly) -> bool {
    poly.len() == 1 && poly.get(&Vec::new() as &Monomial).is_some_and(One::is_one)
}

pub(super) fn small(c: BigRational) -> Result<BigRational, Trouble> {
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
    pub(super) fn of(num: Poly) -> Self {
        Self { num, den: one() }
    }

    pub(super) fn atom(name: String, exponent: Exponent) -> Self {
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

    pub(super) fn monomial(&self) -> Option<(&Monomial, &BigRational)> {
        (is_one(&self.den) && self.num.len() == 1).then(|| self.num.iter().next()).flatten()
    }
}

/// Product of monomials; whole powers of primes and of i move into the returned factor.
pub(super) fn mul_monomial(a: &Monomial, b: &Monomial) -> Result<(Monomial, BigRational), Trouble> {
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
