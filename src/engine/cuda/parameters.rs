//! Every trained (or adapter) value in one flat arena on the device, with gradients and AdamW moments of its layout.

use std::collections::BTreeSet;
use std::ops::Range;

use super::compile::Width;
use super::gpu::{Buffer, Gpu, Grid, Plain, Ptr, args};
use super::phases::Phase;
use crate::engine::adamw8::{self, Which};
use crate::engine::{AdamW, Moments, NamedTensor, OptimizerState};
use crate::{Error, Result};

/// Elements of a piece of the optimizer's work, a multiple of [`adamw8::BLOCK`].
const PIECE: usize = 1 << 14;
/// Tensors start at multiples of so many elements, so that the matrix units can read them.
const ALIGN: usize = 8;

/// One named tensor of the arena.
#[derive(Clone, Debug)]
struct Slot {
    name: String,
    shape: Vec<usize>,
    offset: usize,
    trained: bool,
}

impl Slot {
    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.shape.iter().product::<usize>()
    }

    /// Weight decay spares norms and biases: everything of one dimension.
    fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// The arena while it is being filled, on the host.
#[derive(Debug, Default)]
pub struct Arena {
    slots: Vec<Slot>,
    values: Vec<f32>,
}

impl Arena {
    /// Adds a tensor at the next aligned place and returns its offset.
    pub fn push(&mut self, name: String, shape: Vec<usize>, data: &[f32], trained: bool) -> usize {
        self.values.resize(self.values.len().next_multiple_of(ALIGN), 0.0);
        self.push_behind(name, shape, data, trained)
    }

    /// Adds a tensor right behind the last one.
    pub fn push_behind(&mut self, name: String, shape: Vec<usize>, data: &[f32], trained: bool) -> usize {
        let offset = self.values.len();
        self.values.extend_from_slice(data);
        self.slots.push(Slot { name, shape, offset, trained });
        offset
    }
}

/// A run of trained values: `struct Piece` of kernels/optimizer.cu; bit 0 of `decays`: weight decay applies, bit 1: large
/// enough for 8-bit moments.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: i64,
    length: i32,
    decays: i32,
}
// SAFETY: three numbers without padding (16 bytes).
unsafe impl Plain for Piece {}

/// See the module's header.
#[derive(Debug)]
pub struct Parameters {
    slots: Vec<Slot>,
    len: usize,
    values: Buffer,
    /// The values as activations are stored; `None` where that is f32.
    narrow: Option<Buffer>,
    gradients: Option<Buffer>,
    moments: Option<(Buffer, Buffer)>,
    pieces: Buffer,
    piece_count: usize,
    step: u64,
}

impl Parameters {
    pub fn new(gpu: &Gpu, arena: Arena) -> Result<Self> {
        let Arena { slots, values } = arena;
        let mut pieces = Vec::new();
        for slot in slots.iter().filter(|s| s.trained) {
            let Range { start, end } = slot.range();
            let coded = end - start >= adamw8::MIN_SIZE;
            let decays = i32::from(slot.decays()) | i32::from(coded) << 1;
            for at in (start..end).step_by(PIECE) {
                let length = (end - at).min(PIECE) as i32;
                pieces.push(Piece { start: at as i64, length, decays });
            }
        }
        let len = values.len();
        let gradients = if pieces.is_empty() { None } else { Some(gpu.zeros(4 * len)?) };
        let narrow = if gpu.width() == Width::Bf16 { Some(gpu.alloc_act(len)?) } else { None };
        let out = Self {
            slots,
            len,
            values: gpu.upload(&values)?,
            narrow,
            gradients,
            moments: None,
            piece_count: pieces.len(),
            pieces: gpu.upload(&pieces)?,
            step: 0,
        };
        out.refresh(gpu)?;
        Ok(out)
    }

    /// Rounds the values anew for the products.
    fn refresh(&self, gpu: &Gpu) -> Result<()> {
        match &self.narrow {
            Some(narrow) if self.len > 0 => {
                gpu.launch("to_act", Grid::each(self.len), args![narrow, &self.values, self.len as i64])
            }
            _ => Ok(()),
        }
    }

    /// f32 values from `at` on.
    pub fn value(&self, at: usize) -> Ptr {
        self.values.at(4 * at)
    }

    /// The same as activations are stored.
    pub fn act(&self, at: usize) -> Ptr {
        self.narrow.as_ref().map_or_else(|| self.value(at), |narrow| narrow.at(2 * at))
    }

    /// Gradients from `at` on.
    pub fn gradient(&self, at: usize) -> Option<Ptr> {
        self.gradients.as_ref().map(|g| g.at(4 * at))
    }

    pub fn is_trained(&self) -> bool {
        self.gradients.is_some()
    }

    pub fn clear_gradients(&mut self, gpu: &Gpu) -> Result<()> {
        match &self.gradients {
            Some(gradients) => gpu.clear(gradients.ptr(), 4 * self.len),
            None => Ok(()),
        }
    }

    fn export(&self, gpu: &Gpu, from: &Buffer, suffix: &str, all: bool) -> Result<Vec<NamedTensor>> {
        let host: Vec<f32> = gpu.download(from.ptr(), self.len)?;
        let slots = self.slots.iter().filter(|s| all || s.trained);
        let tensor = |s: &Slot| NamedTensor {
            name: format!("{}{suffix}", s.name),
            shape: s.shape.clone(),
            data: host[s.range()].to_vec(),
        };
        Ok(slots.map(tensor).collect())
    }

    /// All tensors of the arena: trained ones and those of a frozen adapter.
    pub fn export_values(&self, gpu: &Gpu) -> Result<Vec<NamedTensor>> {
        self.export(gpu, &self.values, "", true)
    }

    pub fn export_gradients(&self, gpu: &Gpu) -> Result<Vec<NamedTensor>> {
        let gradients = self.gradients.as_ref().ok_or_else(nothing_trained)?;
        self.export(gpu, gradients, "", false)
    }

    /// Replaces the named values; every name and shape must be known.
    pub fn import_values(&mut self, gpu: &Gpu, tensors: &[NamedTensor]) -> Result<()> {
        let ranges = tensors.iter().map(|t| self.find(t, &t.name)).collect::<Result<Vec<_>>>()?;
        for (tensor, range) in tensors.iter().zip(ranges) {
            gpu.write(self.value(range.start), &tensor.data)?;
        }
        self.refresh(gpu)
    }

    fn find(&self, tensor: &NamedTensor, name: &str) -> Result<Range<usize>> {
        let slot = self.slots.iter().find(|s| s.name == name).ok_or_else(|| {
            Error::input(format!("`{name}` is not a parameter of this engine"))
                .hint("load the parameters into an engine with the same model, adapter and `trainable`")
        })?;
        if slot.shape != tensor.shape || slot.range().len() != tensor.data.len() {
            return Err(Error::input(format!("`{name}` has shape {:?}, expected {:?}", tensor.shape, slot.shape)));
        }
        if let Some(index) = tensor.data.iter().position(|x| !x.is_finite()) {
            return Err(Error::input(format!("`{name}` holds {} at index {index}", tensor.data[index])));
        }
        Ok(slot.range())
    }

    pub fn export_state(&self, gpu: &Gpu) -> Result<OptimizerState> {
        let mut tensors = Vec::new();
        if let Some((m, v)) = &self.moments {
            tensors = self.export(gpu, m, ".m", false)?;
            tensors.extend(self.export(gpu, v, ".v", false)?);
        }
        Ok(OptimizerState { step: self.step, tensors })
    }

    pub fn import_state(&mut self, gpu: &Gpu, state: &OptimizerState) -> Result<()> {
        if state.step == 0 && state.tensors.is_empty() {
            (self.moments, self.step) = (None, 0);
            return Ok(());
        }
        if !self.is_trained() {
            return Err(nothing_trained());
        }
        let (m, v) = (gpu.zeros(4 * self.len)?, gpu.zeros(4 * self.len)?);
        let mut seen = BTreeSet::new();
        for tensor in &state.tensors {
            let (name, into) = match tensor.name.rsplit_once('.') {
                Some((name, "m")) => (name, &m),
                Some((name, "v")) => (name, &v),
                _ => return Err(Error::input(format!("`{}` is not an optimizer state", tensor.name))),
            };
            let range = self.find(tensor, name)?;
            gpu.write(into.at(4 * range.start), &tensor.data)?;
            seen.insert(tensor.name.as_str());
        }
        let expected = 2 * self.slots.iter().filter(|s| s.trained).count();
        if seen.len() != expected {
            return Err(Error::input(format!("the optimizer state has {} tensors of {expected}", seen.len()))
                .hint("resume with the same adapter and `trainable` as the checkpoint was made with"));
        }
        (self.moments, self.step) = (Some((m, v)), state.step);
        Ok(())
    }

    /// Bytes of values and gradients; of the moments.
    pub fn bytes(&self) -> (u64, u64) {
        let of = |b: &Option<Buffer>| b.as_ref().map_or(0, |b| b.bytes() as u64);
        let moments = self.moments.as_ref().map_or(0, |(m, v)| (m.bytes() + v.bytes()) as u64);
        (self.values.bytes() as u64 + of(&self.narrow) + of(&self.gradients), moments)
    }

    /// See [`crate::engine::Engine::apply`]. Clipping as torch's clip_grad_norm_: by max / (norm + 1e-6).
    pub fn apply(&mut self, gpu: &Gpu, step: &AdamW) -> Result<f64> {
        let gradients = self.gradients.as_ref().ok_or_else(nothing_trained)?;
        gpu.phase(Phase::Optimizer)?;
        let sums = gpu.alloc(8 * self.piece_count)?;
        let grid = Grid::new([self.piece_count, 1, 1], 256);
        gpu.launch("square_sums", grid, args![&sums, gradients, &self.pieces])?;
        let norm = gpu.download::<f64>(sums.ptr(), self.piece_count)?.iter().sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Ok(norm);
        }
        if self.moments.is_none() {
            self.moments = Some((gpu.zeros(4 * self.len)?, gpu.zeros(4 * self.len)?));
        }
        let (m, v) = self.moments.as_ref().ok_or_else(nothing_trained)?;
        self.step += 1;
        let clip = if step.max_grad_norm > 0.0 {
            (f64::from(step.max_grad_norm) / (norm + 1e-6)).min(1.0) as f32
        } else {
            1.0
        };
        let (b1, b2) = step.betas;
        let t = self.step as f64;
        let size = (f64::from(step.lr) / (1.0 - f64::from(b1).powf(t))) as f32;
        let root = (1.0 - f64::from(b2).powf(t)).sqrt() as f32;
        let keep = 1.0 - step.lr * step.weight_decay;
        gpu.launch(
            "adamw",
            grid,
            args![&self.values, gradients, m, v, &self.pieces, clip, b1, b2, size, root, step.eps, keep],
        )?;
        if step.moments == Moments::Blockwise8 {
            // Kept in f32, but only values that codes have: the steps are those of 8-bit moments.
            for (moment, which) in [(m, Which::First), (v, Which::Second)] {
                let map = gpu.upload(adamw8::map(which))?;
                let second = i32::from(which == Which::Second);
                gpu.launch("round_moments", grid, args![moment, &map, second, &self.pieces])?;
            }
        }
        self.refresh(gpu)?;
        gpu.phase(Phase::Outside)?;
        Ok(norm)
    }
}

fn nothing_trained() -> Error {
    Error::usage("this engine was loaded with nothing to train").hint("load it with `trainable: adapter` or `all`")
}
