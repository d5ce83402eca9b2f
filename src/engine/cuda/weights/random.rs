//! Random weights of a shape, made on the device.

use super::{Group, Kind, Layer, Linear, Matrix, Packed, Table, Vector, Weights};
use crate::engine::Trainable;
use crate::engine::cuda::gpu::{Buffer, Gpu, Grid, args};
use crate::engine::cuda::parameters::Arena;
use crate::engine::philox::philox;
use crate::model::adapter::peft_key;
use crate::model::{ModelConfig, Norm, Projection};
use crate::quant::Format;
use crate::{Error, Result};

/// About the standard deviation of trained models' weights.
const SIZE: f32 = 0.035;

/// Gives every buffer another seed.
struct Maker<'a> {
    gpu: &'a Gpu,
    seed: i32,
}

impl Maker<'_> {
    fn next(&mut self) -> i32 {
        self.seed += 1;
        self.seed
    }

    fn act(&mut self, n: usize) -> Result<Buffer> {
        let (out, seed) = (self.gpu.alloc_act(n)?, self.next());
        self.gpu.launch("fill_act", Grid::each(n), args![&out, n as i64, -SIZE, SIZE, seed])?;
        Ok(out)
    }

    fn bits(&mut self, bytes: usize) -> Result<Buffer> {
        let (out, seed, n) = (self.gpu.alloc(bytes)?, self.next(), bytes / 4);
        self.gpu.launch("fill_bits", Grid::each(n), args![&out, n as i64, seed])?;
        Ok(out)
    }

    fn bytes(&mut self, n: usize, low: i32, count: i32) -> Result<Buffer> {
        let (out, seed) = (self.gpu.alloc(n)?, self.next());
        self.gpu.launch("fill_bytes", Grid::each(n), args![&out, n as i64, low, count, seed])?;
        Ok(out)
    }

    fn floats(&mut self, n: usize, low: f32, high: f32) -> Result<Buffer> {
        let (out, seed) = (self.gpu.alloc_floats(n)?, self.next());
        self.gpu.launch("fill_floats", Grid::each(n), args![&out, n as i64, low, high, seed])?;
        Ok(out)
    }

    fn packed(&mut self, format: Format, n: usize, k: usize) -> Result<Packed> {
        let codes = self.bits(n * k / 2)?;
        let (scales, kind) = match format {
            Format::Bf16 => return Err(Error::failed("bf16 weights are not packed")),
            // e4m3 scales of 0.5 to 0.9 over 100.
            Format::Nvfp4 => (self.bytes(n * k / 16, 0x30, 8)?, Kind::Nvfp4 { global: 100.0, multiplies: false }),
            // 2^-7 and 2^-6.
            Format::Mxfp4 => (self.bytes(n * k / 32, 120, 2)?, Kind::Mxfp4 { largest: 121 }),
            Format::Nf4 => (self.floats(n * k / 64, 0.03, 0.06)?, Kind::Nf4),
        };
        Ok(Packed { n, k, codes, scales, kind })
    }
}

/// Small values from one seed a tensor.
fn host(seed: u32, n: usize, size: f32) -> Vec<f32> {
    let word = |i: usize| philox([(i / 4) as u32, 0, 7, 0], [seed, 0])[i % 4];
    (0..n).map(|i| (word(i) as f32 / u32::MAX as f32 * 2.0 - 1.0) * size).collect()
}

impl Weights {
    /// The adapter (`rank` above zero) sits on every projection.
    pub fn random(
        gpu: &Gpu,
        config: &ModelConfig,
        format: Format,
        rank: usize,
        trainable: Trainable,
        arena: &mut Arena,
    ) -> Result<Self> {
        let mut maker = Maker { gpu, seed: 0 };
        let hidden = config.hidden_size;
        let table = |maker: &mut Maker<'_>| -> Result<Table> {
            Ok(Table::Frozen { data: maker.act(config.vocab_size * hidden)?, k: hidden })
        };
        let embedding = table(&mut maker)?;
        let head = if config.tie_word_embeddings { None } else { Some(table(&mut maker)?) };
        let ones = |n: usize| -> Result<Vector> { Ok(Vector::Frozen(gpu.upload(&vec![1f32; n])?)) };
        let mut layers = Vec::with_capacity(config.num_layers);
        for layer in 0..config.num_layers {
            let mut groups = Vec::new();
            for projections in Projection::FUSED {
                groups.push(group(&mut maker, config, layer, projections, format, rank, trainable, arena)?);
            }
            let mut next = || groups.remove(0);
            let (qkv, o, gate_up, down) = (next(), next(), next(), next());
            let head_norm = |on: bool| if on { ones(config.head_dim).map(Some) } else { Ok(None) };
            let mut adapted = [None, None];
            if trainable == (Trainable::Adapter { norms: true }) {
                for (norm, adapted) in Norm::BLOCK.into_iter().zip(&mut adapted) {
                    let key = peft_key(&norm.weight(layer));
                    let at = arena.push(key, vec![hidden], &vec![1.0; hidden], true);
                    *adapted = Some(Vector::Arena { range: at..at + hidden, trained: true });
                }
            }
            let (q_norm, k_norm) = (head_norm(config.qk_norm)?, head_norm(config.qk_norm)?);
            layers.push(Layer { adapted, q_norm, k_norm, qkv, o, gate_up, down });
        }
        let norms = vec![1.0; config.num_layers * 2 * hidden];
        Self::assemble(gpu, embedding, head, layers, norms, ones(hidden)?)
    }
}

#[expect(clippy::too_many_arguments, reason = "everything that decides a group")]
fn group(
    maker: &mut Maker<'_>,
    config: &ModelConfig,
    layer: usize,
    projections: &[Projection],
    format: Format,
    rank: usize,
    trainable: Trainable,
    arena: &mut Arena,
) -> Result<Group> {
    let (mut linears, mut packed, mut n, mut k) = (Vec::new(), Vec::new(), 0, 0);
    for projection in projections {
        let [rows, columns] = projection.shape(config);
        let bias = if projection.has_bias(config) { Some(maker.floats(rows, -0.1, 0.1)?) } else { None };
        linears.push(Linear { at: n, n: rows, bias: bias.map(Vector::Frozen), lora: None });
        if format != Format::Bf16 {
            packed.push(maker.packed(format, rows, columns)?);
        }
        (n, k) = (n + rows, columns);
    }
    let matrix = if format != Format::Bf16 {
        Matrix::of(maker.gpu, packed, *projections == *Projection::FUSED[2])?
    } else {
        Matrix::Dense(maker.act(n * k)?)
    };
    let trained = matches!(trainable, Trainable::Adapter { .. });
    let mut group = Group { matrix, linears, n, k, a: None, rank, scale: 1.0, lora_trained: trained };
    if rank == 0 {
        return Ok(group);
    }
    for (i, projection) in projections.iter().enumerate() {
        let key = peft_key(&format!("{}.lora_A.weight", projection.prefix(layer)));
        let data = host((layer * 8 + i) as u32, rank * k, 0.02);
        let at = match group.a {
            None => arena.push(key, vec![rank, k], &data, trained),
            Some(_) => arena.push_behind(key, vec![rank, k], &data, trained),
        };
        let start = group.a.map_or(at, |(start, _)| start);
        group.a = Some((start, (i + 1) * rank));
    }
    for (i, (linear, projection)) in group.linears.iter_mut().zip(projections).enumerate() {
        let key = peft_key(&format!("{}.lora_B.weight", projection.prefix(layer)));
        let data = host((layer * 8 + i) as u32 + (1 << 16), linear.n * rank, 0.02);
        linear.lora = Some((arena.push(key, vec![linear.n, rank], &data, trained), i * rank));
    }
    Ok(group)
}
