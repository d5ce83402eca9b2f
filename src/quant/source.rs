//! Weights as they come: the type they are stored in decides how intermediate results are rounded.

use half::{bf16, f16};

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
        let fold = |x: f32, (index, amax): (usize, f32)| -> Result<(usize, f32)> {
            if !x.is_finite() {
                return Err(Error::input(format!("weight {index} is {x}"))
                    .hint("a model with such weights is broken: fetch it again or ask its author"));
            }
            Ok((index + 1, amax.max(x.abs())))
        };
        let start = (0, 0.0);
        let end = match self {
            Self::F32(x) => x.iter().try_fold(start, |state, x| fold(*x, state)),
            Self::Bf16(x) => x.iter().try_fold(start, |state, x| fold(x.to_f32(), state)),
            Self::F16(x) => x.iter().try_fold(start, |state, x| fold(x.to_f32(), state)),
        };
        Ok(end?.1)
    }
}
