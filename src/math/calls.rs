//! Exact values of functions where they have one: factorials, binomials, logarithms, trigonometry of simple angles.

use num_bigint::BigInt;
use num_rational::{BigRational, Ratio};
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::exact::Exact;
use super::poly::{Fraction, Trouble, factors};

pub(super) fn call(exact: &mut Exact, name: &str, args: &[Fraction]) -> Result<Fraction, Trouble> {
    let first = args.first().ok_or(Trouble::Undefined)?;
    match name {
        "!" => exact.factorial(first),
        "binom" if args.len() == 2 => binomial(exact, first, &args[1]),
        "abs" => match first.rational() {
            Some(r) => Ok(exact.number(r.abs())),
            None => {
                // |x - a| is |a - x|: the key with the smaller text stands for both.
                let negated = exact.negate(first);
                let key = first.key().min(negated.key());
                Ok(exact.opaque_atom(format!("abs({key})"), Ratio::one()))
            }
        },
        "floor" => rounded(exact, first, "floor", |r| r.floor()),
        "ceil" => rounded(exact, first, "ceil", |r| r.ceil()),
        "ln" => logarithm(exact, first),
        "log" => {
            // `log` without a base stays its own function: some mean 10, some mean e.
            let Some(base) = args.get(1) else {
                let key = first.key();
                return Ok(exact.opaque_atom(format!("log({key})"), Ratio::one()));
            };
            let top = logarithm(exact, first)?;
            let bottom = logarithm(exact, base)?;
            let inverse = exact.inverse(&bottom)?;
            exact.mul(&top, &inverse)
        }
        "sin" | "cos" | "tan" | "cot" | "sec" | "csc" => trigonometric(exact, name, first),
        "max" | "min" | "gcd" | "lcm" => many(exact, name, args),
        _ => {
            let keys: Vec<String> = args.iter().map(Fraction::key).collect();
            let key = keys.join(",");
            if key.len() > 4096 {
                return Err(Trouble::Budget);
            }
            Ok(exact.opaque_atom(format!("{name}({key})"), Ratio::one()))
        }
    }
}

fn many(exact: &mut Exact, name: &str, args: &[Fraction]) -> Result<Fraction, Trouble> {
    let values: Option<Vec<BigRational>> = args.iter().map(Fraction::rational).collect();
    if let Some(values) = values {
        use num_integer::Integer;
        let whole = values.iter().all(BigRational::is_integer);
        let fold = |f: fn(&BigInt, &BigInt) -> BigInt| {
            values.iter().map(BigRational::to_integer).reduce(|a, b| f(&a, &b)).map(BigRational::from_integer)
        };
        let found = match name {
            "max" => values.iter().max().cloned(),
            "min" => values.iter().min().cloned(),
            "gcd" if whole => fold(|a, b| a.gcd(b)),
            "lcm" if whole && values.len() <= 16 => fold(|a, b| a.lcm(b)),
            _ => None,
        };
        return found.map(|n| exact.number(n)).ok_or(Trouble::Undefined);
    }
    let mut keys: Vec<String> = args.iter().map(Fraction::key).collect();
    keys.sort();
    Ok(exact.opaque_atom(format!("{name}({})", keys.join(",")), Ratio::one()))
}

fn rounded(
    exact: &mut Exact,
    arg: &Fraction,
    name: &str,
    round: fn(&BigRational) -> BigRational,
) -> Result<Fraction, Trouble> {
    match arg.rational() {
        Some(r) => Ok(exact.number(round(&r))),
        None => {
            let key = arg.key();
            Ok(exact.opaque_atom(format!("{name}({key})"), Ratio::one()))
        }
    }
}

fn binomial(exact: &mut Exact, n: &Fraction, k: &Fraction) -> Result<Fraction, Trouble> {
    let numbers = (n.rational().and_then(|n| whole(&n)), k.rational().and_then(|k| whole(&k)));
    if let (Some(n), Some(k)) = numbers
        && n <= 3000
    {
        if k > n {
            return Ok(exact.number(BigRational::zero()));
        }
        let k = k.min(n - k);
        let mut value = BigInt::one();
        for i in 0..k {
            value = value * (n - i) / (i + 1);
        }
        return Ok(exact.number(BigRational::from_integer(value)));
    }
    // C(n, k) for small fixed k is a polynomial in n.
    if let Some(k) = k.rational().and_then(|k| whole(&k))
        && k <= 6
    {
        let mut product = exact.number(BigRational::one());
        for i in 0..k {
            let shift = exact.number(-BigRational::from_integer(i.into()));
            let factor = exact.add(n, &shift)?;
            let divisor = exact.number(BigRational::new(1.into(), (i + 1).into()));
            product = exact.mul(&product, &factor)?;
            product = exact.mul(&product, &divisor)?;
        }
        return Ok(product);
    }
    let key = format!("binom({},{})", n.key(), k.key());
    Ok(exact.opaque_atom(key, Ratio::one()))
}

fn whole(r: &BigRational) -> Option<u64> {
    if r.is_integer() { r.to_integer().to_u64() } else { None }
}

/// ln of a positive rational is a sum over its primes; of e it is 1.
fn logarithm(exact: &mut Exact, arg: &Fraction) -> Result<Fraction, Trouble> {
    if let Some(r) = arg.rational() {
        if !r.is_positive() {
            return Err(Trouble::Undefined);
        }
        if let Some(primes) = factors(&r) {
            let mut sum = exact.number(BigRational::zero());
            for (p, k) in primes {
                // Logarithms of distinct primes are independent over the rationals.
                let term = exact.symbolic(&format!("#ln{p}"));
                let scale = exact.number(BigRational::from_integer(k.into()));
                let term = exact.mul(&term, &scale)?;
                sum = exact.add(&sum, &term)?;
            }
            return Ok(sum);
        }
    }
    if let Some(value) = of_monomial(exact, arg)? {
        return Ok(value);
    }
    let key = arg.key();
    if key.len() > 4096 {
        return Err(Trouble::Budget);
    }
    Ok(exact.opaque_atom(format!("ln({key})"), Ratio::one()))
}

/// ln of a product of powers of primes and of e, such as `2 e^3` or `\sqrt{2}`: a sum of exponents.
fn of_monomial(exact: &mut Exact, arg: &Fraction) -> Result<Option<Fraction>, Trouble> {
    let Some((atoms, c)) = arg.monomial().map(|(m, c)| (m.clone(), c.clone())) else { return Ok(None) };
    let positive = |name: &str| name == "#e" || name.bytes().all(|b| b.is_ascii_digit());
    if atoms.is_empty() || !c.is_positive() || !atoms.iter().all(|(name, _)| positive(name)) {
        return Ok(None);
    }
    let mut sum = logarithm(exact, &exact.number(c))?;
    for (name, e) in atoms {
        let one = if name == "#e" { exact.number(BigRational::one()) } else { exact.symbolic(&format!("#ln{name}")) };
        let scale = exact.number(BigRational::new((*e.numer()).into(), (*e.denom()).into()));
        let term = exact.mul(&one, &scale)?;
        sum = exact.add(&sum, &term)?;
    }
    Ok(Some(sum))
}

/// e^(i pi t) for a rational t whose cosine and sine are known (Euler).
pub(super) fn turned(exact: &mut Exact, t: &BigRational) -> Result<Option<Fraction>, Trouble> {
    let steps = t * BigRational::from_integer(12.into());
    if !steps.is_integer() {
        return Ok(None);
    }
    let Some(step) = (steps.to_integer() % BigInt::from(24) + BigInt::from(24)).to_i64().map(|s| s % 24) else {
        return Ok(None);
    };
    if step % 2 != 0 && step % 3 != 0 {
        return Ok(None);
    }
    let (sine, cosine) = (sine(exact, step)?, sine(exact, (step + 6) % 24)?);
    let i = exact.symbolic("#i");
    let turn = exact.mul(&i, &sine)?;
    exact.add(&cosine, &turn).map(Some)
}

/// Angles that are multiples of 30 or 45 degrees have exact values.
fn trigonometric(exact: &mut Exact, name: &str, arg: &Fraction) -> Result<Fraction, Trouble> {
    let pi = exact.symbolic("#pi");
    let over = exact.inverse(&pi)?;
    let turns = exact.mul(arg, &over)?;
    // In units of 15 degrees.
    let steps = turns.rational().map(|t| t * BigRational::from_integer(12.into()));
    if let Some(steps) = steps.as_ref().filter(|s| s.is_integer()).map(BigRational::to_integer) {
        let step: i64 = ((steps % BigInt::from(24) + BigInt::from(24)) % BigInt::from(24)).to_i64().unwrap_or(0);
        if step % 2 == 0 || step % 3 == 0 {
            let sine = sine(exact, step)?;
            let cosine = self::sine(exact, (step + 6) % 24)?;
            return match name {
                "sin" => Ok(sine),
                "cos" => Ok(cosine),
                "csc" => exact.inverse(&sine),
                "sec" => exact.inverse(&cosine),
                "tan" => {
                    let inverse = exact.inverse(&cosine)?;
                    exact.mul(&sine, &inverse)
                }
                _ => {
                    let inverse = exact.inverse(&sine)?;
                    exact.mul(&cosine, &inverse)
                }
            };
        }
    }
    let key = arg.key();
    if key.len() > 4096 {
        return Err(Trouble::Budget);
    }
    Ok(exact.opaque_atom(format!("{name}({key})"), Ratio::one()))
}

/// sin(step * 15 degrees) for steps that are multiples of 2 or 3, as +- sqrt(k) / 2.
fn sine(exact: &mut Exact, step: i64) -> Result<Fraction, Trouble> {
    let (half, sign) = if step >= 12 { (step - 12, -1) } else { (step, 1) };
    let square = match half.min(12 - half) {
        0 => 0,
        2 => 1,
        3 => 2,
        4 => 3,
        _ => 4,
    };
    let square = exact.number(BigRational::from_integer(square.into()));
    if square.is_zero() {
        return Ok(square);
    }
    let half = exact.number(BigRational::new(1.into(), 2.into()));
    let root = exact.power(&square, &half)?;
    let scale = exact.number(BigRational::new(sign.into(), 2.into()));
    exact.mul(&root, &scale)
}
