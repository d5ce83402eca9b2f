//! Draws tokens from rows of logits on the device, by the definition of [`crate::engine::sampling`].

use super::super::block::Net;
use super::super::gpu::{Buffer, Grid, Plain, Ptr, args};
use crate::engine::Sampling;
use crate::engine::sampling::{self, Draw};
use crate::{Error, Result};

/// How a row is drawn: `struct Ask` of kernels/sample.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    seed: u64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: i32,
    /// Place of the token in its completion.
    position: i32,
    pad: i32,
}
// SAFETY: numbers without padding (32 bytes).
unsafe impl Plain for Ask {}

/// `struct Draw` there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawn {
    token: i32,
    log_prob: f32,
}
// SAFETY: two numbers (8 bytes).
unsafe impl Plain for Drawn {}
// SAFETY: as above.
unsafe impl cudarc::driver::DeviceRepr for Drawn {}
// SAFETY: zero is a token and a log-prob.
unsafe impl cudarc::driver::ValidAsZeroBits for Drawn {}

impl Ask {
    pub fn new(sampling: &Sampling, seed: u64, position: usize) -> Self {
        Self {
            seed,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            top_k: i32::try_from(sampling.top_k).unwrap_or(i32::MAX),
            position: i32::try_from(position).unwrap_or(i32::MAX),
            pad: 0,
        }
    }

    /// Whether only a part of the vocabulary may be drawn.
    pub fn is_filtered(&self) -> bool {
        self.temperature > 0.0 && (self.top_k != 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temperature, top_p: self.top_p, top_k: self.top_k as usize, min_p: self.min_p }
    }
}

/// Launches the draw of `rows` rows of f32 logits, which are overwritten. `next` receives the tokens (may be null).
pub fn launch(net: &Net<'_>, logits: Ptr, asks: Ptr, draws: Ptr, next: Ptr, rows: usize) -> Result<()> {
    let vocab = net.config.vocab_size;
    let shared = 2 * 8 * vocab.div_ceil(128);
    net.gpu.allow_shared("sample", shared)?;
    let grid = Grid::new([rows, 1, 1], 1024).shared(shared);
    net.gpu.launch("sample", grid, args![draws, next, logits, asks, vocab as i32])
}

/// Draws a token for each row of `logits` `[asks.len(), vocab]`. Rows with top-k, top-p or min-p are drawn on the host.
pub fn draw(net: &Net<'_>, logits: &Buffer, asks: &[Ask]) -> Result<Vec<Draw>> {
    let (gpu, vocab) = (net.gpu, net.config.vocab_size);
    let mut out = vec![Draw::default(); asks.len()];
    let filtered: Vec<usize> = (0..asks.len()).filter(|&i| asks[i].is_filtered()).collect();
    if !filtered.is_empty() {
        let mut rows = vec![0f32; filtered.len() * vocab];
        for (&i, row) in filtered.iter().zip(rows.chunks_exact_mut(vocab)) {
            gpu.read(logits.at(4 * i * vocab), row)?;
        }
        use rayon::prelude::*;
        let draws: Vec<Option<Draw>> = rows
            .par_chunks_exact_mut(vocab)
            .zip(&filtered)
            .map_init(sampling::Scratch::default, |scratch, (row, &i)| {
                let ask = &asks[i];
                sampling::draw(row, &ask.sampling(), ask.seed, ask.position as u64, scratch)
            })
            .collect();
        for (&i, draw) in filtered.iter().zip(draws) {
            out[i] = draw.ok_or_else(not_finite)?;
        }
    }
    if filtered.len() == asks.len() {
        return Ok(out);
    }
    let on_device = gpu.upload(asks)?;
    let draws = gpu.alloc(8 * asks.len())?;
    launch(net, logits.ptr(), on_device.ptr(), draws.ptr(), Ptr::NULL, asks.len())?;
    let drawn: Vec<Drawn> = gpu.download(draws.ptr(), asks.len())?;
    for (i, drawn) in drawn.iter().enumerate().filter(|&(i, _)| !asks[i].is_filtered()) {
        out[i] = drawn.finished()?;
    }
    Ok(out)
}

impl Drawn {
    pub fn from_draw(draw: &Draw) -> Self {
        Self { token: draw.token as i32, log_prob: draw.log_prob }
    }

    /// # Errors
    /// Where the logits were not finite.
    pub fn finished(&self) -> Result<Draw> {
        match u32::try_from(self.token) {
            Ok(token) => Ok(Draw { token, log_prob: self.log_prob }),
            Err(_) => Err(not_finite()),
        }
    }
}

fn not_finite() -> Error {
    Error::failed("the model's logits are not finite")
        .hint("the weights or the adapter are damaged, or training has diverged: lower the learning rate")
}
