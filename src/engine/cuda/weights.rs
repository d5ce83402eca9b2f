//! The model's weights on the device, packed as they come, and where the trained ones lie in the arena.

mod few;
mod random;
mod read;
mod shuffled;

use std::ops::Range;

pub use few::Room;
use shuffled::Shuffled;

use super::gemm::Operand;
use super::gpu::{Buffer, Gpu, Grid, Ptr, args};
use super::parameters::{Arena, Parameters};
use super::phases::Phase;
use crate::Result;
use crate::engine::Trainable;
use crate::model::names;
use crate::model::{Adapter, Checkpoint, Values, Weight as Stored};
use crate::quant::nvfp4::Global;

/// A packed matrix `[n, k]`, as the file has it.
#[derive(Debug)]
pub struct Packed {
    n: usize,
    k: usize,
    codes: Buffer,
    scales: Buffer,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Nvfp4 {
        global: f32,
        multiplies: bool,
    },
    Mxfp4 {
        /// The largest e8m0 scale.
        largest: u8,
    },
    Nf4,
}

impl Packed {
    fn upload(gpu: &Gpu, stored: &Stored<'_>) -> Result<Option<Self>> {
        let [n, k] = stored.shape;
        let (codes, scales, kind) = match &stored.values {
            Values::Nvfp4 { packed, scales, global } => {
                let (global, multiplies) = match *global {
                    Global::Divisor(x) => (x, false),
                    Global::Multiplier(x) => (x, true),
                };
                (gpu.upload(packed)?, gpu.upload(scales)?, Kind::Nvfp4 { global, multiplies })
            }
            Values::Mxfp4 { packed, scales } => {
                let largest = scales.iter().copied().max().unwrap_or(0);
                (gpu.upload(packed)?, gpu.upload(scales)?, Kind::Mxfp4 { largest })
            }
            Values::Nf4 { codes, absmax } => (gpu.upload(codes)?, gpu.upload(absmax)?, Kind::Nf4),
            _ => return Ok(None),
        };
        Ok(Some(Self { n, k, codes, scales, kind }))
    }

    pub fn bytes(&self) -> usize {
        self.codes.bytes() + self.scales.bytes()
    }

    /// Writes the values to `out` `[n, k]` as activations are stored.
    pub fn dequantize(&self, gpu: &Gpu, out: Ptr) -> Result<()> {
        let count = self.n * self.k;
        let eighths = (count / 8) as i64;
        let grid = Grid::each(count / 8);
        match self.kind {
            Kind::Nvfp4 { global, multiplies } => gpu.launch(
                "dequantize_nvfp4",
                grid,
                args![out, &self.codes, &self.scales, global, i32::from(multiplies), eighths],
            ),
            Kind::Mxfp4 { .. } => gpu.launch("dequantize_mxfp4", grid, args![out, &self.codes, &self.scales, eighths]),
            Kind::Nf4 => {
                gpu.launch("dequantize_nf4", Grid::each(count), args![out, &self.codes, &self.scales, count as i64])
            }
        }
    }
}

/// The weights of a group, under one another: `[n, k]`.
#[derive(Debug)]
enum Matrix {
    /// As activations are stored.
    Dense(Buffer),
    /// As the file has them: shapes that the blocks do not fit, and the check mode.
    Packed(Vec<Packed>),
    Shuffled(Shuffled),
    /// In the arena from here on.
    Trained(usize),
}

impl Matrix {
    /// Packed projections under one another, in the best order that they allow; `pair`: they are gate and up.
    fn of(gpu: &Gpu, all: Vec<Packed>, pair: bool) -> Result<Self> {
        let alike =
            all.windows(2).all(|two| std::mem::discriminant(&two[0].kind) == std::mem::discriminant(&two[1].kind));
        if alike && Shuffled::suits(gpu, &all) {
            return Ok(Self::Shuffled(Shuffled::new(gpu, &all, pair)?));
        }
        Ok(Self::Packed(all))
    }
}

/// A bias or a norm in f32: frozen, or in the arena.
#[derive(Debug)]
pub enum Vector {
    Frozen(Buffer),
    /// `trained` is false for a frozen adapter's norms.
    Arena {
        range: Range<usize>,
        trained: bool,
    },
}

impl Vector {
    pub fn of(&self, parameters: &Parameters) -> Ptr {
        match self {
            Self::Frozen(data) => data.ptr(),
            Self::Arena { range, .. } => parameters.value(range.start),
        }
    }

    /// The gradient's place, where this is trained.
    pub fn gradient(&self, parameters: &Parameters) -> Option<Ptr> {
        match self {
            Self::Arena { range, trained: true } => parameters.gradient(range.start),
            _ => None,
        }
    }
}

/// One projection of a group.
#[derive(Debug)]
struct Linear {
    /// Its first column in the group's output.
    at: usize,
    n: usize,
    bias: Option<Vector>,
    /// Where LoRA's B `[n, rank]` starts in the arena, and its first column in `x A^T`.
    lora: Option<(usize, usize)>,
}

/// Projections that read the same input: q, k, v; o; gate, up; down. One product gives all their outputs side by side.
#[derive(Debug)]
pub struct Group {
    matrix: Matrix,
    linears: Vec<Linear>,
    pub n: usize,
    pub k: usize,
    /// Where the A matrices start in the arena, and how many rows they have together.
    a: Option<(usize, usize)>,
    rank: usize,
    scale: f32,
    lora_trained: bool,
}

/// What products read besides the group.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    pub gpu: &'a Gpu,
    pub parameters: &'a Parameters,
    /// Room for one group's weights as activations.
    pub scratch: Ptr,
    /// Room for `x A^T` of up to [`FEW`] rows, so that decoding allocates nothing.
    pub few: Ptr,
    pub room: &'a Room,
    pub adapter: bool,
}

/// Rows of x up to which products with A use the room that is kept for it.
const FEW: usize = 256;

/// Rows of a chunk of column sums.
const CHUNK: usize = 256;

impl Around<'_> {
    /// `gradient[width]` += the column sums that `launch(partial, grid, rows a chunk)` makes in chunks.
    pub fn add_sums(
        &self,
        gradient: Ptr,
        rows: usize,
        width: usize,
        launch: impl FnOnce(&Buffer, Grid, i32) -> Result<()>,
    ) -> Result<()> {
        let chunks = rows.div_ceil(CHUNK);
        let partial = self.gpu.alloc_floats(chunks * width)?;
        launch(&partial, Grid::new([width.div_ceil(128), chunks, 1], 128), CHUNK as i32)?;
        let grid = Grid::new([width.div_ceil(128), 1, 1], 128);
        self.gpu.launch("add_partial", grid, args![gradient, &partial, chunks as i32, width as i32])
    }
}

impl Group {
    pub fn bytes(&self) -> usize {
        match &self.matrix {
            Matrix::Dense(buffer) => buffer.bytes(),
            Matrix::Packed(all) => all.iter().map(Packed::bytes).sum(),
            Matrix::Shuffled(weights) => weights.bytes(),
            Matrix::Trained(_) => 0,
        }
    }

    /// Elements of scratch that [`Group::weights`] needs.
    fn scratch(&self) -> usize {
        if matches!(self.matrix, Matrix::Packed(_) | Matrix::Shuffled(_)) { self.n * self.k } else { 0 }
    }

    /// The weights as activations, `[n, k]`; until the next call.
    fn weights(&self, around: Around<'_>) -> Result<Operand> {
        let ptr = match &self.matrix {
            Matrix::Dense(buffer) => buffer.ptr(),
            Matrix::Trained(at) => around.parameters.act(*at),
            Matrix::Packed(all) => {
                around.gpu.phase(Phase::Dequantize)?;
                for (linear, packed) in self.linears.iter().zip(all) {
                    packed.dequantize(around.gpu, around.scratch.at(around.gpu.act(linear.at * self.k)))?;
                }
                around.scratch
            }
            Matrix::Shuffled(weights) => {
                around.gpu.phase(Phase::Dequantize)?;
                weights.rows(around.gpu, around.scratch)?;
                around.scratch
            }
        };
        Ok(Operand::act(ptr, self.k))
    }

    fn a(&self, around: Around<'_>) -> Option<(Operand, usize)> {
        let (at, columns) = self.a.filter(|_| around.adapter)?;
        Some((Operand::act(around.parameters.act(at), self.k), columns))
    }

    /// `t = x A^T` `[m, columns]`.
    fn down(&self, around: Around<'_>, a: Operand, columns: usize, x: Ptr, m: usize, t: Ptr) -> Result<()> {
        let (x, t) = (Operand::act(x, self.k), Operand::act(t, columns));
        around.gpu.gemm([m, columns, self.k], 1.0, x, a.t(), 0.0, t)
    }

    /// `y[m, n] = x W^T`.
    fn product(&self, around: Around<'_>, x: Ptr, m: usize, y: Ptr) -> Result<()> {
        let w = self.weights(around)?;
        around.gpu.phase(Phase::Products)?;
        around.gpu.gemm([m, self.n, self.k], 1.0, Operand::act(x, self.k), w.t(), 0.0, Operand::act(y, self.n))?;
        around.gpu.phase(Phase::Rows)
    }

    /// `y[m, n] = x W^T + b + scale * (x A^T) B^T` for `m` rows of x `[m, k]`.
    pub fn forward(&self, around: Around<'_>, x: Ptr, m: usize, y: Ptr) -> Result<()> {
        let gpu = around.gpu;
        self.product(around, x, m, y)?;
        for linear in &self.linears {
            let Some(bias) = &linear.bias else { continue };
            gpu.launch(
                "add_bias",
                Grid::each(m * linear.n),
                args![y.at(gpu.act(linear.at)), self.n as i64, bias.of(around.parameters), m as i32, linear.n as i32],
            )?;
        }
        let Some((a, columns)) = self.a(around) else { return Ok(()) };
        gpu.phase(Phase::Adapter)?;
        let own = if m > FEW { Some(gpu.alloc_act(m * columns)?) } else { None };
        let t = own.as_ref().map_or(around.few, Buffer::ptr);
        self.down(around, a, columns, x, m, t)?;
        for linear in &self.linears {
            let Some((b, column)) = linear.lora else { continue };
            let part = Operand::act(t.at(gpu.act(column)), columns);
            let b = Operand::act(around.parameters.act(b), self.rank);
            let out = Operand::act(y.at(gpu.act(linear.at)), self.n);
            gpu.gemm([m, linear.n, self.rank], self.scale, part, b.t(), 1.0, out)?;
        }
        gpu.phase(Phase::Rows)
    }

    /// Adds the gradients of trained parameters and writes `dx` `[m, k]`, given `dy` `[m, n]` and the forward's `x`.
    pub fn backward(&self, around: Around<'_>, x: Ptr, m: usize, dy: Ptr, dx: Ptr) -> Result<()> {
        let (gpu, parameters) = (around.gpu, around.parameters);
        let w = self.weights(around)?;
        gpu.phase(Phase::Products)?;
        let (dy_all, x_all) = (Operand::act(dy, self.n), Operand::act(x, self.k));
        gpu.gemm([m, self.k, self.n], 1.0, dy_all, w, 0.0, Operand::act(dx, self.k))?;
        if let Matrix::Trained(at) = self.matrix
            && let Some(into) = parameters.gradient(at)
        {
            gpu.gemm([self.n, self.k, m], 1.0, dy_all.t(), x_all, 1.0, Operand::f32(into, self.k))?;
        }
        gpu.phase(Phase::Rows)?;
        for linear in &self.linears {
            let Some(into) = linear.bias.as_ref().and_then(|bias| bias.gradient(parameters)) else { continue };
            let part = dy.at(gpu.act(linear.at));
            around.add_sums(into, m, linear.n, |partial, grid, step| {
                gpu.launch("column_sums", grid, args![partial, part, self.n as i64, m as i32, linear.n as i32, step])
            })?;
        }
        let Some((a, columns)) = self.a(around) else { return Ok(()) };
        gpu.phase(Phase::Adapter)?;
        let rank = self.rank;
        let t = if self.lora_trained { Some(gpu.alloc_act(m * columns)?) } else { None };
        if let Some(t) = &t {
            self.down(around, a, columns, x, m, t.ptr())?;
        }
        let dt = gpu.zeros(gpu.act(m * columns))?;
        for linear in &self.linears {
            let Some((b, column)) = linear.lora else { continue };
            let part = Operand::act(dy.at(gpu.act(linear.at)), self.n);
            let weight = Operand::act(parameters.act(b), rank);
            let out = Operand::act(dt.at(gpu.act(column)), columns);
            gpu.gemm([m, rank, linear.n], self.scale, part, weight, 0.0, out)?;
            if let (Some(t), Some(into)) = (&t, parameters.gradient(b)) {
                let t = Operand::act(t.at(gpu.act(column)), columns);
                gpu.gemm([linear.n, rank, m], self.scale, part.t(), t, 1.0, Operand::f32(into, rank))?;
            }
        }
        let dt = Operand::act(dt.ptr(), columns);
        if let Some(into) = self.a.filter(|_| self.lora_trained).and_then(|(at, _)| parameters.gradient(at)) {
            gpu.gemm([columns, self.k, m], 1.0, dt.t(), x_all, 1.0, Operand::f32(into, self.k))?;
        }
        gpu.gemm([m, self.k, columns], 1.0, dt, a, 1.0, Operand::act(dx, self.k))?;
        gpu.phase(Phase::Rows)
    }
}

/// Embedding or head `[n, k]`.
#[derive(Debug)]
pub enum Table {
    Frozen { data: Buffer, k: usize },
    Trained { at: usize, k: usize },
}

impl Table {
    /// As activations.
    pub fn operand(&self, parameters: &Parameters) -> Operand {
        match self {
            Self::Frozen { data, k } => Operand::act(data.ptr(), *k),
            Self::Trained { at, k } => Operand::act(parameters.act(*at), *k),
        }
    }

    /// The gradient's place, where this is trained.
    pub fn gradient(&self, parameters: &Parameters) -> Option<Ptr> {
        match self {
            Self::Frozen { .. } => None,
            Self::Trained { at, .. } => parameters.gradient(*at),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Frozen { data, .. } => data.bytes(),
            Self::Trained { .. } => 0,
        }
    }
}

/// One block.
#[derive(Debug)]
pub struct Layer {
    /// Those that take the place of the base model's block norms while the adapter is on.
    pub adapted: [Option<Vector>; 2],
    pub q_norm: Option<Vector>,
    pub k_norm: Option<Vector>,
    pub qkv: Group,
    pub o: Group,
    pub gate_up: Group,
    pub down: Group,
}

/// Everything frozen, and where the rest lies.
#[derive(Debug)]
pub struct Weights {
    pub embedding: Table,
    /// `None`: the embedding serves as head.
    head: Option<Table>,
    pub layers: Vec<Layer>,
    /// The base model's block norms, `[layers, 2, hidden]`.
    pub norms: Vec<f32>,
    pub final_norm: Vector,
    pub scratch: Buffer,
    pub few: Buffer,
    pub room: Room,
}

impl Weights {
    pub fn head(&self) -> &Table {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes of the frozen weights.
    pub fn bytes(&self) -> u64 {
        let groups = self.layers.iter().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
        let linears: usize = groups.map(Group::bytes).sum();
        let tables = self.embedding.bytes() + self.head.as_ref().map_or(0, Table::bytes);
        (linears + tables + 4 * self.norms.len()) as u64
    }

    /// Reads the checkpoint, one tensor at a time, and fills the arena with what is trained or adapted.
    pub fn read(
        gpu: &Gpu,
        base: &Checkpoint,
        adapter: Option<&Adapter>,
        trainable: Trainable,
        arena: &mut Arena,
    ) -> Result<Self> {
        let mut reader = read::Reader::new(gpu, base, adapter, trainable, arena);
        let embedding = reader.table(names::EMBEDDING, &base.embedding()?)?;
        let layers = (0..base.config.num_layers).map(|layer| reader.layer(layer)).collect::<Result<Vec<_>>>()?;
        let final_norm = reader.vector(names::FINAL_NORM)?;
        let head = base.head()?.map(|head| reader.table(names::HEAD, &head)).transpose()?;
        let norms = reader.norms;
        Self::assemble(gpu, embedding, head, layers, norms, final_norm)
    }

    fn assemble(
        gpu: &Gpu,
        embedding: Table,
        head: Option<Table>,
        layers: Vec<Layer>,
        norms: Vec<f32>,
        final_norm: Vector,
    ) -> Result<Self> {
        let groups = layers.iter().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
        let most = groups.map(Group::scratch).max().unwrap_or(0);
        let groups = layers.iter().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
        let columns = groups.filter_map(|g| g.a).map(|(_, columns)| columns).max().unwrap_or(0);
        let (scratch, few) = (gpu.alloc_act(most)?, gpu.alloc_act(FEW * columns)?);
        let room = Room::new(gpu, layers.iter().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]))?;
        Ok(Self { embedding, head, layers, norms, final_norm, scratch, few, room })
    }
}
