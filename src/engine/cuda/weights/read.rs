//! A checkpoint's tensors and an adapter's onto the device and into the arena.

use super::{Group, Layer, Linear, Matrix, Packed, Table, Vector};
use crate::engine::Trainable;
use crate::engine::cuda::compile::Width;
use crate::engine::cuda::gpu::{Gpu, Ptr};
use crate::engine::cuda::parameters::Arena;
use crate::model::adapter::peft_key;
use crate::model::names::{Norm, Projection};
use crate::model::{Adapter, Checkpoint, Values, Weight as Stored};
use crate::{Error, Result};

/// Reads one tensor at a time.
pub(super) struct Reader<'a> {
    gpu: &'a Gpu,
    base: &'a Checkpoint,
    adapter: Option<&'a Adapter>,
    trainable: Trainable,
    arena: &'a mut Arena,
    /// The base model's block norms so far.
    pub(super) norms: Vec<f32>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        gpu: &'a Gpu,
        base: &'a Checkpoint,
        adapter: Option<&'a Adapter>,
        trainable: Trainable,
        arena: &'a mut Arena,
    ) -> Self {
        Self { gpu, base, adapter, trainable, arena, norms: Vec::new() }
    }

    fn all(&self) -> bool {
        self.trainable == Trainable::All
    }

    /// Dense values as activations are stored, written to `to`.
    fn write_dense(&self, to: Ptr, stored: &Stored<'_>) -> Result<()> {
        match (&stored.values, self.gpu.width()) {
            (Values::Bf16(x), Width::Bf16) => self.gpu.write(to, x),
            (_, Width::F32) => self.gpu.write(to, &stored.dequantize()),
            (_, Width::Bf16) => {
                let narrow: Vec<half::bf16> = stored.dequantize().into_iter().map(half::bf16::from_f32).collect();
                self.gpu.write(to, &narrow)
            }
        }
    }

    pub(super) fn table(&mut self, name: &str, stored: &Stored<'_>) -> Result<Table> {
        let [n, k] = stored.shape;
        if self.all() {
            let at = self.arena.push(name.to_owned(), vec![n, k], &stored.dequantize(), true);
            return Ok(Table::Trained { at, k });
        }
        let data = self.gpu.alloc_act(n * k)?;
        self.write_dense(data.ptr(), stored)?;
        Ok(Table::Frozen { data, k })
    }

    pub(super) fn vector(&mut self, name: &str) -> Result<Vector> {
        let tensor = self.base.dense(name)?;
        self.keep(tensor)
    }

    fn keep(&mut self, tensor: crate::engine::NamedTensor) -> Result<Vector> {
        if !self.all() {
            return Ok(Vector::Frozen(self.gpu.upload(&tensor.data)?));
        }
        let (len, at) = (tensor.data.len(), self.arena.push(tensor.name, tensor.shape, &tensor.data, true));
        Ok(Vector::Arena { range: at..at + len, trained: true })
    }

    pub(super) fn layer(&mut self, layer: usize) -> Result<Layer> {
        let [q_norm, k_norm] = if self.base.config.qk_norm {
            [Some(self.vector(&Norm::Q.weight(layer))?), Some(self.vector(&Norm::K.weight(layer))?)]
        } else {
            [None, None]
        };
        let [qkv, o, gate_up, down] = Projection::FUSED;
        let groups =
            (self.group(layer, qkv)?, self.group(layer, o)?, self.group(layer, gate_up)?, self.group(layer, down)?);
        let mut adapted = [None, None];
        for (i, norm) in Norm::BLOCK.into_iter().enumerate() {
            let name = norm.weight(layer);
            let base = self.base.dense(&name)?.data;
            adapted[i] = self.adapted_norm(&name, &base);
            self.norms.extend(base);
        }
        Ok(Layer { adapted, q_norm, k_norm, qkv: groups.0, o: groups.1, gate_up: groups.2, down: groups.3 })
    }

    /// The norm that training changes or the adapter brings.
    fn adapted_norm(&mut self, name: &str, base: &[f32]) -> Option<Vector> {
        let key = peft_key(name);
        let given = self.adapter.and_then(|adapter| adapter.tensor(&key));
        let (key, trained) = match self.trainable {
            Trainable::All => (name.to_owned(), true),
            Trainable::Adapter { norms: true } => (key, true),
            _ if given.is_some() => (key, false),
            _ => return None,
        };
        let data = given.map_or(base, |tensor| &tensor.data);
        let at = self.arena.push(key, vec![base.len()], data, trained);
        Some(Vector::Arena { range: at..at + base.len(), trained })
    }

    fn group(&mut self, layer: usize, projections: &[Projection]) -> Result<Group> {
        let stored =
            projections.iter().map(|p| self.base.linear(&p.prefix(layer))).collect::<Result<Vec<Stored<'_>>>>()?;
        let k = stored[0].shape[1];
        let mut linears = Vec::with_capacity(projections.len());
        let mut n = 0;
        for weight in &stored {
            linears.push(Linear { at: n, n: weight.shape[0], bias: None, lora: None });
            n += weight.shape[0];
        }
        let matrix = self.matrix(layer, projections, &stored, n, k)?;
        for (linear, projection) in linears.iter_mut().zip(projections) {
            linear.bias = self.base.bias(&projection.prefix(layer))?.map(|bias| self.keep(bias)).transpose()?;
        }
        let mut group = Group { matrix, linears, n, k, a: None, rank: 0, scale: 1.0, lora_trained: false };
        self.lora(layer, projections, &mut group)?;
        Ok(group)
    }

    fn matrix(
        &mut self,
        layer: usize,
        projections: &[Projection],
        stored: &[Stored<'_>],
        n: usize,
        k: usize,
    ) -> Result<Matrix> {
        if self.all() {
            let mut start = None;
            for (projection, weight) in projections.iter().zip(stored) {
                let name = format!("{}.weight", projection.prefix(layer));
                let shape = weight.shape.to_vec();
                let data = weight.dequantize();
                let at = match start {
                    None => self.arena.push(name, shape, &data, true),
                    Some(_) => self.arena.push_behind(name, shape, &data, true),
                };
                start.get_or_insert(at);
            }
            return start.map(Matrix::Trained).ok_or_else(|| Error::failed("a group has no projections"));
        }
        let mut packed = Vec::new();
        for weight in stored {
            packed.extend(Packed::upload(self.gpu, weight)?);
        }
        if packed.len() == stored.len() {
            return Matrix::of(self.gpu, packed, *projections == *Projection::FUSED[2]);
        }
        let all = self.gpu.alloc_act(n * k)?;
        let mut at = 0;
        for weight in stored {
            self.write_dense(all.at(self.gpu.act(at * k)), weight)?;
            at += weight.shape[0];
        }
        Ok(Matrix::Dense(all))
    }

    fn lora(&mut self, layer: usize, projections: &[Projection], group: &mut Group) -> Result<()> {
        let Some(adapter) = self.adapter else { return Ok(()) };
        (group.rank, group.scale) = (adapter.rank, adapter.scale() as f32);
        group.lora_trained = matches!(self.trainable, Trainable::Adapter { .. });
        for part in ["lora_A", "lora_B"] {
            let mut columns = 0;
            for (linear, projection) in group.linears.iter_mut().zip(projections) {
                let key = peft_key(&format!("{}.{part}.weight", projection.prefix(layer)));
                let Some(tensor) = adapter.tensor(&key) else { continue };
                let shape = if part == "lora_A" { [adapter.rank, group.k] } else { [linear.n, adapter.rank] };
                if tensor.shape != shape {
                    return Err(Error::input(format!("{key} has shape {:?}, expected {shape:?}", tensor.shape)));
                }
                let shape = shape.to_vec();
                if part == "lora_A" {
                    // The A matrices lie one behind the other, so that `x A^T` is one product.
                    let at = match group.a {
                        None => self.arena.push(key, shape, &tensor.data, group.lora_trained),
                        Some(_) => self.arena.push_behind(key, shape, &tensor.data, group.lora_trained),
                    };
                    let start = group.a.map_or(at, |(start, _)| start);
                    group.a = Some((start, columns + adapter.rank));
                } else {
                    let at = self.arena.push(key, shape, &tensor.data, group.lora_trained);
                    linear.lora = Some((at, columns));
                }
                columns += adapter.rank;
            }
        }
        Ok(())
    }
}
