//! Weights as they come: the type they are stored in decides how intermediate results are rounded.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::{Error, Result};

/// A borrowed tensor of floats.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl<'a> Source<'a> {
    pub fn len(self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::Bf16(x) => x.len(),
            Self::F16(x) => x.len(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn slice(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::F32(x) => Self::F32(&x[range]),
            Self::Bf16(x) => Self::Bf16(&x[range]),
            Self::F16(x) => Self::F16(&x[range]),
        }
    }

    /// Widens into `out`, of the same length (exact).
    pub fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(x) => out.copy_from_slice(x),
            Self::Bf16(x) => out.iter_mut().zip(x).for_each(|(o, x)| *o = x.to_f32()),
            Self::F16(x) => out.iter_mut().zip(x).for_each(|(o, x)| *o = x.to_f32()),
        }
    }

    /// `x` rounded to the stored type, to nearest even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F32(_) => x,
            Self::Bf16(_) => bf16::from_f32(x).to_f32(),
            Self::F16(_) => f16::from_f32(x).to_f32(),
        }
    }

    /// The stored type's smallest normal number.
    pub fn tiny(self) -> f32 {
        match self {
            Self::F32(_) => f32::MIN_POSITIVE,
            Self::Bf16(_) => bf16::MIN_POSITIVE.to_f32(),
            Self::F16(_) => f16::MIN_POSITIVE.to_f32(),
        }
    }

    /// The largest magnitude; an error that names the first weight which is not a finite number.
    pub fn amax(self) -> Result<f32> {
        const CHUNK: usize = 1 << 16;
        let chunk = |index: usize| {
            let start = index * CHUNK;
            let part = self.slice(start..(start + CHUNK).min(self.len()));
            let fold = |amax: f32, (i, x): (usize, f32)| match x.is_finite() {
                true => Ok(amax.max(x.abs())),
                false => Err((start + i, x)),
            };
            match part {
                Self::F32(x) => x.iter().copied().enumerate().try_fold(0.0, fold),
                Self::Bf16(x) => x.iter().map(|x| x.to_f32()).enumerate().try_fold(0.0, fold),
                Self::F16(x) => x.iter().map(|x| x.to_f32()).enumerate().try_fold(0.0, fold),
            }
        };
        let parts: Vec<Result<f32, (usize, f32)>> =
            (0..self.len().div_ceil(CHUNK)).into_par_iter().map(chunk).collect();
        parts.into_iter().try_fold(0.0f32, |amax, part| match part {
            Ok(part) => Ok(amax.max(part)),
            Err((index, x)) => Err(Error::input(format!("weight {index} is {x}"))
                .hint("a model with such weights is broken: fetch it again or ask its author")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_weight_that_is_no_number_is_named() {
        let mut weights = vec![bf16::from_f32(-3.5); 200_000];
        assert_eq!(Source::Bf16(&weights).amax().unwrap(), 3.5);
        weights[199_999] = bf16::NAN;
        weights[70_001] = bf16::INFINITY;
        let message = Source::Bf16(&weights).amax().unwrap_err().to_string();
        assert!(message.contains("weight 70001 is inf"), "{message}");
        assert_eq!(Source::F32(&[]).amax().unwrap(), 0.0);
    }
}
