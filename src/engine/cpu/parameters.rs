//! Every trained (or adapter) value in one flat arena with gradients and AdamW moments of the same layout.

use std::ops::Range;

use super::kernels::{Parts, Pool};
use crate::engine::{AdamW, NamedTensor, OptimizerState};
use crate::{Error, Result};

/// Elements one task handles; fixed, so that sums do not depend on the number of threads.
const CHUNK: usize = 1 << 16;

/// One named tensor of the arena.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub name: String,
    pub shape: Vec<usize>,
    pub offset: usize,
    pub trained: bool,
}

impl Slot {
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.shape.iter().product::<usize>()
    }

    /// Weight decay spares norms and biases: everything of one dimension.
    fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

#[derive(Debug, Default)]
pub(super) struct Parameters {
    slots: Vec<Slot>,
    pub values: Vec<f32>,
    /// Empty where nothing is trained; otherwise as long as `values`.
    pub gradients: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    step: u64,
}

impl Parameters {
    /// Adds a tensor at the end of the arena and returns its offset.
    pub fn push(&mut self, name: String, shape: Vec<usize>, data: &[f32], trained: bool) -> usize {
        let offset = self.values.len();
        self.values.extend_from_slice(data);
        self.slots.push(Slot { name, shape, offset, trained });
        offset
    }

    /// Call once after the last `push`: makes room for gradients where anything is trained.
    pub fn seal(&mut self) {
        self.values.shrink_to_fit();
        if self.slots.iter().any(|s| s.trained) {
            self.gradients = vec![0.0; self.values.len()];
        }
    }

    pub fn is_trained(&self) -> bool {
        !self.gradients.is_empty()
    }

    pub fn clear_gradients(&mut self) {
        self.gradients.fill(0.0);
    }

    fn export(&self, from: &[f32], suffix: &str, all: bool) -> Vec<NamedTensor> {
        self.slots
            .iter()
            .filter(|s| all || s.trained)
            .map(|s| NamedTensor {
                name: format!("{}{suffix}", s.name),
                shape: s.shape.clone(),
                data: from[s.range()].to_vec(),
            })
            .collect()
    }

    /// All tensors of the arena: trained ones and those of a frozen adapter.
    pub fn export_values(&self) -> Vec<NamedTensor> {
        self.export(&self.values, "", true)
    }

    pub fn export_gradients(&self) -> Result<Vec<NamedTensor>> {
        if self.gradients.is_empty() {
            return Err(nothing_trained());
        }
        Ok(self.export(&self.gradients, "", false))
    }

    /// Replaces the named values; every name and shape must be known.
    pub fn import_values(&mut self, tensors: &[NamedTensor]) -> Result<()> {
        let ranges = tensors.iter().map(|t| self.find(t, &t.name)).collect::<Result<Vec<_>>>()?;
        for (tensor, range) in tensors.iter().zip(ranges) {
            self.values[range].copy_from_slice(&tensor.data);
        }
        Ok(())
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

    pub fn export_state(&self) -> OptimizerState {
        let mut tensors = Vec::new();
        if !self.m.is_empty() {
            tensors = self.export(&self.m, ".m", false);
            tensors.extend(self.export(&self.v, ".v", false));
        }
        OptimizerState { step: self.step, tensors }
    }

    pub fn import_state(&mut self, state: &OptimizerState) -> Result<()> {
        if state.step == 0 && state.tensors.is_empty() {
            (self.m, self.v, self.step) = (Vec::new(), Vec::new(), 0);
            return Ok(());
        }
        if !self.is_trained() {
            return Err(nothing_trained());
        }
        let (mut m, mut v) = (vec![0.0; self.values.len()], vec![0.0; self.values.len()]);
        let mut seen = std::collections::BTreeSet::new();
        for tensor in &state.tensors {
            let (name, into) = match tensor.name.rsplit_once('.') {
                Some((name, "m")) => (name, &mut m),
                Some((name, "v")) => (name, &mut v),
                _ => return Err(Error::input(format!("`{}` is not an optimizer state", tensor.name))),
            };
            let range = self.find(tensor, name)?;
            into[range].copy_from_slice(&tensor.data);
            seen.insert(tensor.name.as_str());
        }
        let expected = 2 * self.slots.iter().filter(|s| s.trained).count();
        if seen.len() != expected {
            return Err(Error::input(format!("the optimizer state has {} tensors of {expected}", seen.len()))
                .hint("resume with the same adapter and `trainable` as the checkpoint was made with"));
        }
        (self.m, self.v, self.step) = (m, v, state.step);
        Ok(())
    }

    /// Bytes of values and gradients; of the moments.
    pub fn bytes(&self) -> (u64, u64) {
        (4 * (self.values.len() + self.gradients.len()) as u64, 4 * (self.m.len() + self.v.len()) as u64)
    }

    /// See [`crate::engine::Engine::apply`]. Clipping as torch's clip_grad_norm_: by max / (norm + 1e-6).
    pub fn apply(&mut self, pool: &Pool, step: &AdamW) -> Result<f64> {
        if !self.is_trained() {
            return Err(nothing_trained());
        }
        let pieces: Vec<(Range<usize>, bool)> = self
            .slots
            .iter()
            .filter(|s| s.trained)
            .flat_map(|s| {
                let Range { start, end } = s.range();
                (start..end).step_by(CHUNK).map(move |at| (at..end.min(at + CHUNK), s.decays()))
            })
            .collect();
        let mut sums = vec![0f64; pieces.len()];
        let gradients = &self.gradients;
        let out = Parts::new(&mut sums);
        pool.for_each(pieces.len(), &|i| {
            // SAFETY: task i is the only one that writes element i.
            let sum = unsafe { out.slice(i, 1) };
            sum[0] = gradients[pieces[i].0.clone()].iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        });
        let norm = sums.iter().sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Ok(norm);
        }
        if self.m.is_empty() {
            self.m = vec![0.0; self.values.len()];
            self.v = vec![0.0; self.values.len()];
        }
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
        let (values, gradients) = (Parts::new(&mut self.values), Parts::new(&mut self.gradients));
        let (m, v) = (Parts::new(&mut self.m), Parts::new(&mut self.v));
        pool.for_each(pieces.len(), &|i| {
            let (range, decays) = &pieces[i];
            // SAFETY: the pieces are disjoint ranges inside the arena.
            let (p, g, m, v) = unsafe {
                (
                    values.slice(range.start, range.len()),
                    gradients.slice(range.start, range.len()),
                    m.slice(range.start, range.len()),
                    v.slice(range.start, range.len()),
                )
            };
            let keep = if *decays { keep } else { 1.0 };
            for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                let x = *g * clip;
                *m = b1 * *m + (1.0 - b1) * x;
                *v = b2 * *v + (1.0 - b2) * x * x;
                *p = *p * keep - size * *m / (v.sqrt() / root + step.eps);
                *g = 0.0;
            }
        });
        Ok(norm)
    }
}

fn nothing_trained() -> Error {
    Error::usage("this engine was loaded with nothing to train").hint("load it with `trainable: adapter` or `all`")
}
