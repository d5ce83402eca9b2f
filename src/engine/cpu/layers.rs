//! The model's weights as the engine computes with them, and where the trained ones lie in the arena.

use std::ops::Range;

use super::kernels::{Factor, Matrix, Operand, Panels, Pool, Term, add_products, gemm, vector};
use super::parameters::Parameters;
use crate::engine::Trainable;
use crate::model::adapter::peft_key;
use crate::model::names::{self, Norm, Projection};
use crate::model::{Adapter, Checkpoint, Values, Weight as Stored};
use crate::quant::nvfp4::Global;
use crate::{Error, Result};

/// A matrix `[n, k]`: packed and frozen, or in the arena.
#[derive(Debug)]
pub(super) enum Weight {
    Packed(Matrix),
    Trained { at: usize, n: usize, k: usize },
}

impl Weight {
    /// Packs what the checkpoint holds; f16 widens to f32, everything else keeps its size.
    pub fn pack(stored: &Stored<'_>) -> Self {
        let [n, k] = stored.shape;
        Self::Packed(match &stored.values {
            Values::Bf16(x) => Matrix::from_bf16(half::slice::HalfFloatSliceExt::reinterpret_cast(&x[..]), n, k),
            Values::F16(_) => Matrix::from_f32(stored.dequantize(), n, k),
            Values::F32(x) => Matrix::from_f32(x.to_vec(), n, k),
            Values::Nvfp4 { packed, scales, global: Global::Divisor(scale) } => {
                Matrix::from_nvfp4_divided(packed, scales, *scale, n, k)
            }
            Values::Nvfp4 { packed, scales, global: Global::Multiplier(factor) } => {
                Matrix::from_nvfp4(packed, scales, *factor, n, k)
            }
            Values::Mxfp4 { packed, scales } => Matrix::from_mxfp4(packed, scales, n, k),
            Values::Nf4 { codes, absmax } => Matrix::from_nf4(codes, absmax, n, k),
        })
    }

    pub fn shape(&self) -> (usize, usize) {
        match self {
            Self::Packed(matrix) => matrix.shape(),
            Self::Trained { n, k, .. } => (*n, *k),
        }
    }

    /// Bytes outside of the arena.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Packed(matrix) => matrix.bytes(),
            Self::Trained { .. } => 0,
        }
    }

    pub fn row(&self, values: &[f32], row: usize, out: &mut [f32]) {
        match self {
            Self::Packed(matrix) => matrix.row(row, out),
            Self::Trained { at, k, .. } => out.copy_from_slice(&values[at + row * k..][..*k]),
        }
    }

    /// `y (+)= x W^T`.
    pub fn product(&self, pool: &Pool, values: &[f32], x: &[f32], m: usize, y: &mut [f32], add: bool) {
        match self {
            Self::Packed(matrix) => matrix.product(pool, x, m, y, add),
            Self::Trained { at, n, k } => {
                let (a, b) = (Operand::new(x, *k), Operand::new(&values[*at..at + n * k], *k).t());
                gemm(pool, [m, *n, *k], 1.0, a, b, f32::from(add), (y, *n));
            }
        }
    }

    /// `dx (+)= dy W`.
    pub fn product_transposed(&self, pool: &Pool, values: &[f32], dy: &[f32], m: usize, dx: &mut [f32], add: bool) {
        match self {
            Self::Packed(matrix) => matrix.product_transposed(pool, dy, m, dx, add),
            Self::Trained { at, n, k } => {
                let (a, b) = (Operand::new(dy, *n), Operand::new(&values[*at..at + n * k], *k));
                gemm(pool, [m, *k, *n], 1.0, a, b, f32::from(add), (dx, *k));
            }
        }
    }

    /// Adds `dy^T x` to the gradient, where this is trained.
    pub fn add_gradient(&self, pool: &Pool, gradients: &mut [f32], dy: &[f32], x: &[f32], m: usize) {
        if let Self::Trained { at, n, k } = self {
            let into = &mut gradients[*at..at + n * k];
            gemm(pool, [*n, *k, m], 1.0, Operand::new(dy, *n).t(), Operand::new(x, *k), 1.0, (into, *k));
        }
    }
}

/// A bias or a norm: frozen, or in the arena.
#[derive(Debug)]
pub(super) enum Vector {
    Frozen(Vec<f32>),
    /// `trained` is false for a frozen adapter's norms.
    Arena {
        range: Range<usize>,
        trained: bool,
    },
}

impl Vector {
    pub fn of<'a>(&'a self, values: &'a [f32]) -> &'a [f32] {
        match self {
            Self::Frozen(data) => data,
            Self::Arena { range, .. } => &values[range.clone()],
        }
    }

    /// The gradient's place, where this is trained.
    pub fn gradient<'g>(&self, gradients: &'g mut [f32]) -> Option<&'g mut [f32]> {
        match self {
            Self::Arena { range, trained: true } => Some(&mut gradients[range.clone()]),
            _ => None,
        }
    }
}

/// One projection of a group.
#[derive(Debug)]
pub(super) struct Linear {
    pub weight: Weight,
    pub bias: Option<Vector>,
    /// Where LoRA's B `[n, rank]` starts in the arena, and the first column of this one's part of `x A^T`.
    lora: Option<(usize, usize)>,
}

/// Projections that read the same input: q, k, v; o; gate, up; down. Their LoRA A matrices lie one behind the
/// other in the arena, so that `x A^T` is one skinny product.
#[derive(Debug)]
pub(super) struct Group {
    pub linears: Vec<Linear>,
    k: usize,
    /// Where the A matrices start, and how many rows they have together.
    a: Option<(usize, usize)>,
    rank: usize,
    scale: f32,
    lora_trained: bool,
}

/// LoRA's factors as a forward pass reads them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Factors<'a> {
    /// The base alone.
    Off,
    /// From the arena.
    Arena,
    /// Laid out for many small passes: one per layer.
    Panels(&'a [LayerPanels]),
}

impl<'a> Factors<'a> {
    /// Those of group `which` (0 to 3: q, k, v; o; gate, up; down) of a layer.
    pub fn of(self, layer: usize, which: usize) -> GroupFactors<'a> {
        match self {
            Self::Off => GroupFactors::Off,
            Self::Arena => GroupFactors::Arena,
            Self::Panels(layers) => layers[layer][which].as_ref().map_or(GroupFactors::Off, GroupFactors::Panels),
        }
    }
}

/// [`Factors`] of one group.
#[derive(Clone, Copy, Debug)]
pub(super) enum GroupFactors<'a> {
    Off,
    Arena,
    Panels(&'a GroupPanels),
}

/// The factors of a group: A of all of its linears, and their Bs where they have one.
#[derive(Debug)]
pub(super) struct GroupPanels {
    a: Panels,
    bs: Vec<Option<Panels>>,
}

/// Those of a layer's groups; `None` where a group has no adapter.
pub(super) type LayerPanels = [Option<GroupPanels>; 4];

impl Group {
    fn panels(&self, values: &[f32]) -> Option<GroupPanels> {
        let (a, columns) = self.a?;
        let b = |linear: &Linear| {
            let n = linear.weight.shape().0;
            linear.lora.map(|(b, _)| Panels::new(&values[b..b + n * self.rank], n, self.rank))
        };
        Some(GroupPanels {
            a: Panels::new(&values[a..a + columns * self.k], columns, self.k),
            bs: self.linears.iter().map(b).collect(),
        })
    }

    /// `ys[i] = x W_i^T + b_i + scale * (x A_i^T) B_i^T` for `m` rows; `factors` off leaves the last term out.
    /// `t` receives `x A^T` `[m, columns]`.
    #[expect(clippy::too_many_arguments, reason = "the operands of a projection")]
    pub fn forward(
        &self,
        pool: &Pool,
        values: &[f32],
        factors: GroupFactors<'_>,
        x: &[f32],
        m: usize,
        t: &mut Vec<f32>,
        ys: &mut [&mut [f32]],
    ) {
        let biased = self.linears[0].bias.is_some();
        for (linear, y) in self.linears.iter().zip(ys.iter_mut()) {
            if let Some(bias) = &linear.bias {
                let bias = bias.of(values);
                y.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
            }
        }
        let mut packed: Vec<(&Matrix, &mut [f32])> = Vec::with_capacity(ys.len());
        for (linear, y) in self.linears.iter().zip(ys.iter_mut()) {
            match &linear.weight {
                Weight::Packed(matrix) => packed.push((matrix, y)),
                trained => trained.product(pool, values, x, m, y, biased),
            }
        }
        let Some((a, columns)) = self.a.filter(|_| !matches!(factors, GroupFactors::Off)) else {
            Matrix::products(pool, x, m, &mut packed, biased, None);
            return;
        };
        let panels = if let GroupFactors::Panels(panels) = factors { Some(panels) } else { None };
        t.resize(m * columns, 0.0);
        if packed.is_empty() {
            self.down(pool, values, x, m, t);
        } else {
            let rows = Factor::Rows(&values[a..a + columns * self.k]);
            let a = panels.map_or(rows, |panels| Factor::Panels(&panels.a));
            Matrix::products(pool, x, m, &mut packed, biased, Some((a, t)));
        }
        let mut terms = Vec::with_capacity(ys.len());
        for (i, (linear, y)) in self.linears.iter().zip(ys).enumerate() {
            let Some((b, column)) = linear.lora else { continue };
            let rows = Factor::Rows(&values[b..b + linear.weight.shape().0 * self.rank]);
            let b = panels.and_then(|panels| panels.bs[i].as_ref()).map_or(rows, Factor::Panels);
            terms.push(Term { a: Operand::new(&t[column..], columns), b, c: y });
        }
        add_products(pool, [m, self.rank], self.scale, &mut terms);
    }

    /// `t = x A^T`.
    fn down(&self, pool: &Pool, values: &[f32], x: &[f32], m: usize, t: &mut Vec<f32>) {
        let Some((a, columns)) = self.a else { return };
        t.resize(m * columns, 0.0);
        let a = Operand::new(&values[a..a + columns * self.k], self.k).t();
        gemm(pool, [m, columns, self.k], 1.0, Operand::new(x, self.k), a, 0.0, (t, columns));
    }

    /// Adds the gradients of the trained parameters and writes `dx` (adds to it with `add`), given those of the
    /// outputs. `x` is the forward's.
    #[expect(clippy::too_many_arguments, reason = "the operands of a projection")]
    pub fn backward(
        &self,
        pool: &Pool,
        values: &[f32],
        gradients: &mut [f32],
        adapter: bool,
        x: &[f32],
        m: usize,
        dys: &[&[f32]],
        dx: &mut [f32],
        add: bool,
    ) {
        for (i, (linear, dy)) in self.linears.iter().zip(dys).enumerate() {
            linear.weight.product_transposed(pool, values, dy, m, dx, add || i > 0);
            linear.weight.add_gradient(pool, gradients, dy, x, m);
            if let Some(into) = linear.bias.as_ref().and_then(|bias| bias.gradient(gradients)) {
                dy.chunks_exact(into.len()).for_each(|row| vector::add(row, into));
            }
        }
        let Some((a, columns)) = self.a.filter(|_| adapter) else { return };
        let (rank, k) = (self.rank, self.k);
        let mut t = Vec::new();
        if self.lora_trained {
            self.down(pool, values, x, m, &mut t);
        }
        let mut dt = vec![0f32; m * columns];
        for (linear, dy) in self.linears.iter().zip(dys) {
            let Some((b, column)) = linear.lora else { continue };
            let n = linear.weight.shape().0;
            let left = Operand::new(dy, n);
            let weight = Operand::new(&values[b..b + n * rank], rank);
            gemm(pool, [m, rank, n], self.scale, left, weight, 0.0, (&mut dt[column..], columns));
            if self.lora_trained {
                let into = &mut gradients[b..b + n * rank];
                gemm(pool, [n, rank, m], self.scale, left.t(), Operand::new(&t[column..], columns), 1.0, (into, rank));
            }
        }
        if self.lora_trained {
            let into = &mut gradients[a..a + columns * k];
            gemm(pool, [columns, k, m], 1.0, Operand::new(&dt, columns).t(), Operand::new(x, k), 1.0, (into, k));
        }
        let weight = Operand::new(&values[a..a + columns * k], k);
        gemm(pool, [m, k, columns], 1.0, Operand::new(&dt, columns), weight, 1.0, (dx, k));
    }
}

/// One block.
#[derive(Debug)]
pub(super) struct Layer {
    /// Before attention, before the MLP: of the base model.
    pub norms: [Vec<f32>; 2],
    /// Those that take their place while the adapter is on.
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
pub(super) struct Weights {
    pub embedding: Weight,
    /// `None`: the embedding serves as head.
    pub head: Option<Weight>,
    pub layers: Vec<Layer>,
    pub final_norm: Vector,
}

impl Weights {
    /// The adapter as [`Factors::Panels`] wants it.
    pub fn panels(&self, values: &[f32]) -> Vec<LayerPanels> {
        let layer = |l: &Layer| [&l.qkv, &l.o, &l.gate_up, &l.down].map(|group| group.panels(values));
        self.layers.iter().map(layer).collect()
    }

    pub fn head(&self) -> &Weight {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes of the frozen weights.
    pub fn bytes(&self) -> u64 {
        let groups = self.layers.iter().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
        let linears: usize = groups.flat_map(|g| &g.linears).map(|l| l.weight.bytes()).sum();
        let norms: usize = self.layers.iter().map(|l| l.norms.iter().map(|n| n.len() * 4).sum::<usize>()).sum();
        (linears + norms + self.embedding.bytes() + self.head.as_ref().map_or(0, Weight::bytes)) as u64
    }

    /// Reads the checkpoint, one tensor at a time, and fills the arena with what is trained or adapted.
    pub fn read(
        base: &Checkpoint,
        adapter: Option<&Adapter>,
        trainable: Trainable,
        arena: &mut Parameters,
    ) -> Result<Self> {
        let mut reader = Reader { base, adapter, trainable, arena };
        let embedding = reader.matrix(names::EMBEDDING, &base.embedding()?);
        let layers = (0..base.config.num_layers).map(|layer| reader.layer(layer)).collect::<Result<Vec<_>>>()?;
        let final_norm = reader.vector(names::FINAL_NORM)?;
        let head = base.head()?.map(|head| reader.matrix(names::HEAD, &head));
        Ok(Self { embedding, head, layers, final_norm })
    }
}

struct Reader<'a> {
    base: &'a Checkpoint,
    adapter: Option<&'a Adapter>,
    trainable: Trainable,
    arena: &'a mut Parameters,
}

impl Reader<'_> {
    fn all(&self) -> bool {
        self.trainable == Trainable::All
    }

    fn matrix(&mut self, name: &str, stored: &Stored<'_>) -> Weight {
        if !self.all() {
            return Weight::pack(stored);
        }
        let [n, k] = stored.shape;
        let at = self.arena.push(name.to_owned(), vec![n, k], &stored.dequantize(), true);
        Weight::Trained { at, n, k }
    }

    fn vector(&mut self, name: &str) -> Result<Vector> {
        let tensor = self.base.dense(name)?;
        Ok(self.keep(tensor))
    }

    fn keep(&mut self, tensor: crate::engine::NamedTensor) -> Vector {
        if !self.all() {
            return Vector::Frozen(tensor.data);
        }
        let (len, at) = (tensor.data.len(), self.arena.push(tensor.name, tensor.shape, &tensor.data, true));
        Vector::Arena { range: at..at + len, trained: true }
    }

    fn layer(&mut self, layer: usize) -> Result<Layer> {
        let [q_norm, k_norm] = if self.base.config.qk_norm {
            [Some(self.vector(&Norm::Q.weight(layer))?), Some(self.vector(&Norm::K.weight(layer))?)]
        } else {
            [None, None]
        };
        let [qkv, o, gate_up, down] = Projection::FUSED;
        let groups =
            (self.group(layer, qkv)?, self.group(layer, o)?, self.group(layer, gate_up)?, self.group(layer, down)?);
        let (mut norms, mut adapted) = ([Vec::new(), Vec::new()], [None, None]);
        for (i, norm) in Norm::BLOCK.into_iter().enumerate() {
            let name = norm.weight(layer);
            norms[i] = self.base.dense(&name)?.data;
            adapted[i] = self.adapted_norm(&name, &norms[i]);
        }
        Ok(Layer { norms, adapted, q_norm, k_norm, qkv: groups.0, o: groups.1, gate_up: groups.2, down: groups.3 })
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
        let mut linears = Vec::with_capacity(projections.len());
        for projection in projections {
            let prefix = projection.prefix(layer);
            let weight = self.matrix(&format!("{prefix}.weight"), &self.base.linear(&prefix)?);
            let bias = self.base.bias(&prefix)?.map(|bias| self.keep(bias));
            linears.push(Linear { weight, bias, lora: None });
        }
        let k = linears[0].weight.shape().1;
        let mut group = Group { linears, k, a: None, rank: 0, scale: 1.0, lora_trained: false };
        let Some(adapter) = self.adapter else { return Ok(group) };
        (group.rank, group.scale) = (adapter.rank, adapter.scale() as f32);
        group.lora_trained = matches!(self.trainable, Trainable::Adapter { .. });
        for part in ["lora_A", "lora_B"] {
            let mut columns = 0;
            for (linear, projection) in group.linears.iter_mut().zip(projections) {
                let key = peft_key(&format!("{}.{part}.weight", projection.prefix(layer)));
                let Some(tensor) = adapter.tensor(&key) else { continue };
                let n = linear.weight.shape().0;
                let shape = if part == "lora_A" { [adapter.rank, k] } else { [n, adapter.rank] };
                if tensor.shape != shape {
                    return Err(Error::input(format!("{key} has shape {:?}, expected {shape:?}", tensor.shape)));
                }
                let at = self.arena.push(key, shape.to_vec(), &tensor.data, group.lora_trained);
                if part == "lora_A" {
                    let start = group.a.map_or(at, |(start, _)| start);
                    group.a = Some((start, columns + adapter.rank));
                } else {
                    linear.lora = Some((at, columns));
                }
                columns += adapter.rank;
            }
        }
        Ok(group)
    }
}
