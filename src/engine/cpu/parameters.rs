//! Every trained (or adapter) value in one flat arena with gradients of the same layout, and AdamW's moments by tensor.

use std::collections::BTreeMap;
use std::ops::Range;

use super::kernels::{Parts, Pool};
use super::moments::{Moment, MomentParts, Rule};
use crate::engine::adamw8::Which;
use crate::engine::{AdamW, NamedTensor, OptimizerState};
use crate::{Error, Result};

/// Elements one task handles, whole blocks of 8-bit moments; fixed, so that sums do not depend on the number of threads.
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
    /// First and second moment of each trained slot, in the order of the slots; empty before the first step.
    moments: Vec<[Moment; 2]>,
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

    fn trained(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|s| s.trained)
    }

    fn export(&self, from: &[f32], all: bool) -> Vec<NamedTensor> {
        self.slots
            .iter()
            .filter(|s| all || s.trained)
            .map(|s| NamedTensor { name: s.name.clone(), shape: s.shape.clone(), data: from[s.range()].to_vec() })
            .collect()
    }

    /// All tensors of the arena: trained ones and those of a frozen adapter.
    pub fn export_values(&self) -> Vec<NamedTensor> {
        self.export(&self.values, true)
    }

    pub fn export_gradients(&self) -> Result<Vec<NamedTensor>> {
        if self.gradients.is_empty() {
            return Err(nothing_trained());
        }
        Ok(self.export(&self.gradients, false))
    }

    /// Replaces the named values; every name and shape must be known.
    pub fn import_values(&mut self, tensors: &[NamedTensor]) -> Result<()> {
        let ranges = tensors.iter().map(|t| self.find(t)).collect::<Result<Vec<_>>>()?;
        for (tensor, range) in tensors.iter().zip(ranges) {
            self.values[range].copy_from_slice(&tensor.data);
        }
        Ok(())
    }

    fn find(&self, tensor: &NamedTensor) -> Result<Range<usize>> {
        let name = &tensor.name;
        let slot = self.slots.iter().find(|s| s.name == *name).ok_or_else(|| {
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
        for (slot, [m, v]) in self.trained().zip(&self.moments) {
            tensors.extend(m.export(&format!("{}.m", slot.name), &slot.shape));
            tensors.extend(v.export(&format!("{}.v", slot.name), &slot.shape));
        }
        OptimizerState { step: self.step, tensors }
    }

    pub fn import_state(&mut self, state: &OptimizerState) -> Result<()> {
        if state.step == 0 && state.tensors.is_empty() {
            (self.moments, self.step) = (Vec::new(), 0);
            return Ok(());
        }
        if !self.is_trained() {
            return Err(nothing_trained());
        }
        let by_name: BTreeMap<&str, &NamedTensor> = state.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut read = 0;
        let mut find = |name: &str| {
            let found = by_name.get(name).copied();
            read += usize::from(found.is_some());
            found
        };
        let mut moments = Vec::new();
        for slot in self.slots.iter().filter(|s| s.trained) {
            let mut moment = |which: &str| Moment::import(&format!("{}.{which}", slot.name), &slot.shape, &mut find);
            moments.push([moment("m")?, moment("v")?]);
        }
        if read != state.tensors.len() {
            return Err(Error::input(format!("the optimizer state has {} tensors of {read}", state.tensors.len()))
                .hint("resume with the same adapter and `trainable` as the checkpoint was made with"));
        }
        (self.moments, self.step) = (moments, state.step);
        Ok(())
    }

    /// Bytes of values and gradients; of the moments.
    pub fn bytes(&self) -> (u64, u64) {
        let moments = self.moments.iter().flatten().map(Moment::bytes).sum();
        (4 * (self.values.len() + self.gradients.len()) as u64, moments)
    }

    /// The moments as `step` wants them kept: made at the first step, refused where they are kept in another way.
    fn prepare_moments(&mut self, step: &AdamW) -> Result<()> {
        let lengths: Vec<usize> = self.trained().map(|s| s.range().len()).collect();
        if self.moments.is_empty() {
            let pair = |len| [Which::First, Which::Second].map(|which| Moment::zero(which, len, step.moments));
            self.moments = lengths.into_iter().map(pair).collect();
            return Ok(());
        }
        let fits = |(pair, len): (&[Moment; 2], usize)| pair.iter().all(|moment| moment.fits(len, step.moments));
        if self.moments.iter().zip(lengths).all(fits) {
            return Ok(());
        }
        Err(Error::usage(format!("the optimizer state is not kept as {:?}", step.moments))
            .hint("go on with the optimizer that the state was made with"))
    }

    /// See [`crate::engine::Engine::apply`].
    pub fn apply(&mut self, pool: &Pool, step: &AdamW) -> Result<f64> {
        if !self.is_trained() {
            return Err(nothing_trained());
        }
        // Each piece: its slot's number among the trained ones, its place inside the slot, its place in the arena.
        let mut pieces = Vec::new();
        let mut decays = Vec::new();
        for (number, slot) in self.trained().enumerate() {
            decays.push(slot.decays());
            let Range { start, end } = slot.range();
            pieces.extend((start..end).step_by(CHUNK).map(|at| (number, at - start, at..end.min(at + CHUNK))));
        }
        let mut sums = vec![0f64; pieces.len()];
        let gradients = &self.gradients;
        let out = Parts::new(&mut sums);
        pool.for_each(pieces.len(), &|i| {
            // SAFETY: task i is the only one that writes element i.
            let sum = unsafe { out.slice(i, 1) };
            sum[0] = gradients[pieces[i].2.clone()].iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        });
        let norm = sums.iter().sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Ok(norm);
        }
        self.prepare_moments(step)?;
        self.step += 1;
        let rule = Rule::new(step, norm, self.step);
        let (values, gradients) = (Parts::new(&mut self.values), Parts::new(&mut self.gradients));
        let moments: Vec<[MomentParts; 2]> =
            self.moments.iter_mut().map(|pair| pair.each_mut().map(Moment::parts)).collect();
        pool.for_each(pieces.len(), &|i| {
            let (number, from, range) = &pieces[i];
            let [m, v] = &moments[*number];
            // SAFETY: the pieces are disjoint ranges inside the arena, and so are those of each slot's moments.
            unsafe {
                let (p, g) = (values.slice(range.start, range.len()), gradients.slice(range.start, range.len()));
                rule.step(decays[*number], *from, p, g, m, v);
            }
        });
        Ok(norm)
    }
}

fn nothing_trained() -> Error {
    Error::usage("this engine was loaded with nothing to train").hint("load it with `trainable: adapter` or `all`")
}

#[cfg(test)]
mod tests;
