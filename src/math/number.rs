//! Number literals as exact rationals.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::One;

use super::lex::Unreadable;

/// Digits of one number literal.
const MAX_DIGITS: usize = 2_000;

/// An exact rational from digits with at most one point, and the period in brackets behind: `0.1(6)` is 1/6.
pub(super) fn rational(text: &str) -> Result<BigRational, Unreadable> {
    if text.len() > MAX_DIGITS {
        return Err(Unreadable);
    }
    if let Some((start, period)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
        // 0.1(6) = 0.1 + 6 / 9 / 10.
        let places = start.split_once('.').map_or(0, |(_, f)| f.len());
        let ten = |n: usize| u32::try_from(n).map(|n| BigInt::from(10).pow(n)).map_err(|_| Unreadable);
        let numerator = BigInt::parse_bytes(period.as_bytes(), 10).ok_or(Unreadable)?;
        let denominator = (ten(period.len())? - BigInt::one()) * ten(places)?;
        return Ok(rational(start)? + BigRational::new(numerator, denominator));
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("0{whole}{fraction}");
    let numerator = BigInt::parse_bytes(digits.as_bytes(), 10).ok_or(Unreadable)?;
    if fraction.is_empty() {
        return Ok(BigRational::from_integer(numerator));
    }
    let exponent = u32::try_from(fraction.len()).map_err(|_| Unreadable)?;
    Ok(BigRational::new(numerator, BigInt::from(10).pow(exponent)))
}
