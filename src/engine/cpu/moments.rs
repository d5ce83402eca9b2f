//! AdamW's moments of one tensor, in f32 or as 8-bit codes, and the step that reads and writes them.

use super::kernels::Parts;
use crate::engine::adamw8::{self, BLOCK, Which};
use crate::engine::{AdamW, Moments, NamedTensor};
use crate::{Error, Result};

/// One moment of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Moment {
    F32(Vec<f32>),
    /// One code per value, one scale per [`BLOCK`] of them.
    Codes {
        codes: Vec<u8>,
        scales: Vec<f32>,
    },
}

impl Moment {
    /// The zero moment of a tensor of `len` values. Small tensors stay in f32 whatever is asked for.
    pub fn zero(which: Which, len: usize, kept: Moments) -> Self {
        if Self::is_coded(len, kept) {
            Self::Codes { codes: vec![adamw8::zero_code(which); len], scales: vec![0.0; len.div_ceil(BLOCK)] }
        } else {
            Self::F32(vec![0.0; len])
        }
    }

    fn is_coded(len: usize, kept: Moments) -> bool {
        kept == Moments::Blockwise8 && len >= adamw8::MIN_SIZE
    }

    /// Whether this is how `kept` keeps the moments of a tensor of `len` values.
    pub fn fits(&self, len: usize, kept: Moments) -> bool {
        matches!(self, Self::Codes { .. }) == Self::is_coded(len, kept)
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Self::F32(values) => 4 * values.len() as u64,
            Self::Codes { codes, scales } => codes.len() as u64 + 4 * scales.len() as u64,
        }
    }

    /// As tensors of an optimizer state: `NAME`, or `NAME.codes` and `NAME.scales`.
    pub fn export(&self, name: &str, shape: &[usize]) -> Vec<NamedTensor> {
        match self {
            Self::F32(values) => {
                vec![NamedTensor { name: name.to_owned(), shape: shape.to_vec(), data: values.clone() }]
            }
            Self::Codes { codes, scales } => vec![
                NamedTensor {
                    name: format!("{name}.codes"),
                    shape: shape.to_vec(),
                    data: codes.iter().map(|&code| f32::from(code)).collect(),
                },
                NamedTensor { name: format!("{name}.scales"), shape: vec![scales.len()], data: scales.clone() },
            ],
        }
    }

    /// The reverse of [`Self::export`]; `find` gives a tensor of the state by name.
    ///
    /// # Errors
    /// Where tensors are missing or hold what no moment can be.
    pub fn import<'t>(
        name: &str,
        shape: &[usize],
        find: &mut dyn FnMut(&str) -> Option<&'t NamedTensor>,
    ) -> Result<Self> {
        let len: usize = shape.iter().product();
        let bad = |what: String| Error::input(format!("optimizer state `{name}` {what}"));
        let check = |tensor: &NamedTensor, want: &[usize]| {
            if tensor.shape != want || tensor.data.len() != want.iter().product::<usize>() {
                return Err(bad(format!("has shape {:?}, expected {want:?}", tensor.shape)));
            }
            match tensor.data.iter().position(|x| !x.is_finite()) {
                Some(at) => Err(bad(format!("holds {} at index {at}", tensor.data[at]))),
                None => Ok(()),
            }
        };
        if let Some(tensor) = find(name) {
            check(tensor, shape)?;
            return Ok(Self::F32(tensor.data.clone()));
        }
        let (Some(codes), Some(scales)) = (find(&format!("{name}.codes")), find(&format!("{name}.scales"))) else {
            return Err(bad("is missing".to_owned())
                .hint("resume with the same adapter and `trainable` as the checkpoint was made with"));
        };
        check(codes, shape)?;
        check(scales, &[len.div_ceil(BLOCK)])?;
        let codes: Option<Vec<u8>> =
            codes.data.iter().map(|&x| (x.fract() == 0.0 && (0.0..=255.0).contains(&x)).then_some(x as u8)).collect();
        let codes = codes.ok_or_else(|| bad("holds codes that are no bytes".to_owned()))?;
        Ok(Self::Codes { codes, scales: scales.data.clone() })
    }

    pub fn parts(&mut self) -> MomentParts {
        match self {
            Self::F32(values) => MomentParts::F32(Parts::new(values)),
            Self::Codes { codes, scales } => MomentParts::Codes(Parts::new(codes), Parts::new(scales)),
        }
    }
}

/// A moment shared by tasks that write disjoint parts of it.
pub(super) enum MomentParts {
    F32(Parts<f32>),
    Codes(Parts<u8>, Parts<f32>),
}

/// The numbers of one AdamW step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    clip: f32,
    b1: f32,
    b2: f32,
    /// lr / (1 - b1^t).
    size: f32,
    /// sqrt(1 - b2^t).
    root: f32,
    eps: f32,
    /// Factor of weights that decay.
    keep: f32,
}

impl Rule {
    /// Step number `step` (from 1) over gradients of joint norm `norm`. Clipping as torch's clip_grad_norm_: by
    /// max / (norm + 1e-6).
    pub fn new(adamw: &AdamW, norm: f64, step: u64) -> Self {
        let clip = if adamw.max_grad_norm > 0.0 {
            (f64::from(adamw.max_grad_norm) / (norm + 1e-6)).min(1.0) as f32
        } else {
            1.0
        };
        let (b1, b2) = adamw.betas;
        let t = step as f64;
        Self {
            clip,
            b1,
            b2,
            size: (f64::from(adamw.lr) / (1.0 - f64::from(b1).powf(t))) as f32,
            root: (1.0 - f64::from(b2).powf(t)).sqrt() as f32,
            eps: adamw.eps,
            keep: 1.0 - adamw.lr * adamw.weight_decay,
        }
    }

    /// Updates values and moments of the same length, and clears the gradients.
    fn update(self, decays: bool, p: &mut [f32], g: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let keep = if decays { self.keep } else { 1.0 };
        for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let x = *g * self.clip;
            *m = self.b1 * *m + (1.0 - self.b1) * x;
            *v = self.b2 * *v + (1.0 - self.b2) * x * x;
            *p = *p * keep - self.size * *m / (v.sqrt() / self.root + self.eps);
            *g = 0.0;
        }
    }

    /// Steps the values `p` with gradients `g`, which are `[from, from + p.len())` of their tensor, and those parts of
    /// its moments. `from` is a multiple of [`BLOCK`].
    ///
    /// # Safety
    /// No other task works on this part of the moments.
    pub unsafe fn step(
        self,
        decays: bool,
        from: usize,
        p: &mut [f32],
        g: &mut [f32],
        m: &MomentParts,
        v: &MomentParts,
    ) {
        match (m, v) {
            (MomentParts::F32(m), MomentParts::F32(v)) => {
                // SAFETY: the caller's promise.
                let (m, v) = unsafe { (m.slice(from, p.len()), v.slice(from, p.len())) };
                self.update(decays, p, g, m, v);
            }
            (MomentParts::Codes(m, m_scales), MomentParts::Codes(v, v_scales)) => {
                let (mut first, mut second) = ([0f32; BLOCK], [0f32; BLOCK]);
                for (i, (p, g)) in p.chunks_mut(BLOCK).zip(g.chunks_mut(BLOCK)).enumerate() {
                    let (at, block) = (from + i * BLOCK, from / BLOCK + i);
                    // SAFETY: the caller's promise; the blocks of a part are disjoint.
                    let (m, v, m_scale, v_scale) = unsafe {
                        (m.slice(at, p.len()), v.slice(at, p.len()), m_scales.slice(block, 1), v_scales.slice(block, 1))
                    };
                    let (first, second) = (&mut first[..p.len()], &mut second[..p.len()]);
                    adamw8::dequantize(Which::First, m, m_scale[0], first);
                    adamw8::dequantize(Which::Second, v, v_scale[0], second);
                    self.update(decays, p, g, first, second);
                    m_scale[0] = adamw8::quantize(Which::First, first, m);
                    v_scale[0] = adamw8::quantize(Which::Second, second, v);
                }
            }
            _ => unreachable!("both moments of a tensor are kept in one way"),
        }
    }
}
