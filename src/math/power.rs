//! Powers of exact values: whole ones, roots, and exponents with symbols.

use num_rational::BigRational;
use num_traits::{CheckedMul, One, Signed, ToPrimitive};

use super::exact::Exact;
use super::poly::{
    Exponent, Fraction, Monomial, Poly, Trouble, constant, factors, int_power, is_one, mul_monomial, one, small,
};

/// Powers of sums are multiplied out up to this exponent.
const MAX_EXPAND: i64 = 24;

impl Exact {
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
        if let (Some(([(e, one)], c)), Some((turn, t))) =
            (base.monomial().map(|(m, c)| (m.as_slice(), c)), exponent.monomial())
            && e == "#e"
            && one.is_one()
            && c.is_one()
            && matches!(turn.as_slice(), [(i, a), (pi, b)] if i == "#i" && pi == "#pi" && a.is_one() && b.is_one())
            && let Some(value) = super::calls::turned(self, &t.clone())?
        {
            return Ok(value);
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
        // Each prime of the base repeats it: a tower of sixes would double its text with every storey.
        if inner.len() > 4096 {
            return Err(Trouble::Budget);
        }
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
}
