//! Exact arithmetic: an expression as a quotient of polynomials over the rationals in "atoms" with rational
//! exponents. Atoms are symbols, pi, e, i (i^2 = -1), primes under a root, and opaque calls and powers.
//!
//! Distinct atoms other than opaque ones are independent, so a difference that is not zero proves inequality as
//! long as no opaque atom occurs (roots of distinct primes: Besicovitch 1940).

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::expr::Expr;
use super::poly::{Exponent, Fraction, Monomial, Poly, Trouble, constant, is_one, mul_monomial, one, small};

const MAX_TERMS: usize = 300;
const MAX_FACTORIAL: u64 = 3_000;
/// Term products of one comparison.
const MAX_WORK: usize = 60_000;

#[derive(Default)]
pub(super) struct Exact {
    work: usize,
    /// An atom that may hide a relation to others has been made.
    pub(super) opaque: bool,
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

    /// Is a - b one term, a rational times powers of atoms?
    pub(super) fn single_term(&mut self, a: &Fraction, b: &Fraction) -> bool {
        let minus = self.negate(b);
        self.add(a, &minus).is_ok_and(|difference| difference.num.len() == 1)
    }

    /// Is a = c * b for a rational c != 0? Gives c.
    pub(super) fn ratio(&mut self, a: &Fraction, b: &Fraction) -> Result<Option<BigRational>, Trouble> {
        if a.is_zero() || b.is_zero() {
            return Ok(None);
        }
        // Denominators do not matter for where an equation holds.
        let Some((mono, ca)) = a.num.iter().next() else { return Ok(None) };
        let Some(cb) = b.num.get(mono) else { return Ok(None) };
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
