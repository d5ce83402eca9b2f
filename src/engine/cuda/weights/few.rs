//! Products of few tokens, as the decode step has them: one kernel for weights, bias, adapter and SiLU.

use super::{Around, Group, Linear, Matrix};
use crate::Result;
use crate::engine::cuda::blocks::Order;
use crate::engine::cuda::choose::{choose, kernels};
use crate::engine::cuda::gpu::{Buffer, Gpu, Grid, Ptr, args};

/// `struct GemmArgs` of kernels/gemm_args.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct GemmArgs {
    w: Ptr,
    row_scale: Ptr,
    x: Ptr,
    y: Ptr,
    residual: Ptr,
    bias: [Ptr; 3],
    lora_b: [Ptr; 3],
    lora_t: Ptr,
    partial: Ptr,
    flags: Ptr,
    m: i32,
    n: i32,
    k: i32,
    ldx: i32,
    ldy: i32,
    ldt: i32,
    rank: i32,
    segment1: i32,
    segment2: i32,
    mode: i32,
    granule: i32,
}

/// y is silu(gate) * up: `SILU` there.
const SILU: i32 = 2;

/// Tokens of one launch at most.
const CHUNK: usize = 64;
/// Launches that read the weights over again, up to which that is faster than bf16 rows and a large product: measured in
/// docs/products.md (7B gate_up: 2 x 73 us against 87 + 76 at 128 tokens).
const LAUNCHES: usize = 2;

/// Scratch that all these products share; they follow each other on one stream.
#[derive(Debug)]
pub struct Room {
    /// The image of x: `[k / 64][tokens][144 bytes]`.
    image: Buffer,
    /// x A^T, `[tokens, columns]`.
    t: Buffer,
    partial: Buffer,
    /// Zero before and after every product.
    flags: Buffer,
}

impl Room {
    /// For `groups` of an engine.
    pub fn new<'a>(gpu: &Gpu, groups: impl Iterator<Item = &'a Group>) -> Result<Self> {
        let (mut columns, mut rank_columns, mut partial) = (0, 0, 0);
        for group in groups {
            rank_columns = rank_columns.max(group.a.map_or(0, |(_, columns)| columns));
            let Matrix::Shuffled(weights) = &group.matrix else { continue };
            columns = columns.max(group.k);
            let all = kernels(weights.format).iter().map(|kernel| kernel.scratch(gpu.processors()));
            partial = partial.max(all.max().unwrap_or(0));
        }
        Ok(Self {
            image: gpu.alloc(columns / 64 * CHUNK * 144)?,
            t: gpu.alloc_act(CHUNK * rank_columns)?,
            partial: gpu.alloc_floats(partial)?,
            flags: gpu.zeros(4 * gpu.processors())?,
        })
    }
}

/// What a product reads of the adapter: A, its rows, and B by segment.
#[derive(Clone, Copy)]
struct Lora {
    a: Ptr,
    columns: usize,
    b: [Ptr; 3],
}

impl Group {
    /// The adapter as the kernels take it: `Some(None)` where it is off, `None` where they cannot.
    fn lora_of(&self, around: Around<'_>) -> Option<Option<Lora>> {
        let Some((at, columns)) = self.a.filter(|_| around.adapter) else { return Some(None) };
        let mut b = [Ptr::NULL; 3];
        for (i, linear) in self.linears.iter().enumerate() {
            // Segment i's columns of t begin at i * rank.
            let (start, column) = linear.lora?;
            if column != i * self.rank {
                return None;
            }
            b[i] = around.parameters.act(start);
        }
        (self.rank.is_multiple_of(16)).then(|| Some(Lora { a: around.parameters.act(at), columns, b }))
    }

    fn segments(&self) -> Option<[i32; 2]> {
        let aligned = self.n.is_multiple_of(16) && self.k.is_multiple_of(64);
        if !aligned || self.linears.len() > 3 || self.linears.iter().any(|l| !l.n.is_multiple_of(8)) {
            return None;
        }
        let start = |i: usize| self.linears.get(i).map_or(self.n, |l: &Linear| l.at) as i32;
        Some([start(1), start(2)])
    }

    /// Everything of a product that does not depend on the kernel; `None` where the kernels do not fit.
    fn few(&self, around: Around<'_>) -> Option<(GemmArgs, Option<Lora>)> {
        let [segment1, segment2] = self.segments()?;
        let lora = self.lora_of(around)?;
        let mut bias = [Ptr::NULL; 3];
        for (to, linear) in bias.iter_mut().zip(&self.linears) {
            *to = linear.bias.as_ref().map_or(Ptr::NULL, |bias| bias.of(around.parameters));
        }
        let none = Ptr::NULL;
        let args = GemmArgs {
            w: none,
            row_scale: none,
            x: none,
            y: none,
            residual: none,
            bias,
            lora_b: lora.map_or([none; 3], |l| l.b),
            lora_t: if lora.is_some() { around.room.t.ptr() } else { none },
            partial: around.room.partial.ptr(),
            flags: around.room.flags.ptr(),
            m: 0,
            n: self.n as i32,
            k: self.k as i32,
            ldx: 0,
            ldy: 0,
            ldt: lora.map_or(0, |l| l.columns as i32),
            rank: self.rank as i32,
            segment1,
            segment2,
            mode: 0,
            granule: 0,
        };
        Some((args, lora))
    }

    /// Launches that make the image of x (where `image`) and `x A^T`.
    fn inputs(&self, around: Around<'_>, image: bool, lora: Option<Lora>, x: Ptr, m: usize) -> Result<()> {
        let room = around.room;
        let columns = lora.map_or(0, |l| l.columns);
        let downs = columns / 16 * m.div_ceil(8);
        let moves = if image { (m * self.k / 8).div_ceil(512) } else { 0 };
        let (m, r, k) = (m as i32, columns as i32, self.k as i32);
        let a = lora.map_or(Ptr::NULL, |l| l.a);
        around.gpu.launch_chained(
            "product_inputs",
            Grid::new([downs + moves, 1, 1], 512),
            args![&room.image, &room.t, a, x, m, r, k, k, self.scale],
        )
    }

    /// As [`Group::forward`] for the `m` rows of a decode step. With `active`, y receives gate and up only where that is
    /// on the way, and `active` `[m, n / 2]` receives silu(gate) * up.
    pub fn decode(&self, around: Around<'_>, x: Ptr, m: usize, y: Ptr, active: Option<Ptr>) -> Result<()> {
        let done = match &self.matrix {
            Matrix::Shuffled(_) => self.decode_shuffled(around, x, m, y, active)?,
            Matrix::Dense(_) => {
                if self.decode_dense(around, x, m, y)? {
                    return self.silu(around, m, y, active);
                }
                false
            }
            _ => false,
        };
        if done {
            return Ok(());
        }
        self.forward(around, x, m, y)?;
        self.silu(around, m, y, active)
    }

    fn silu(&self, around: Around<'_>, m: usize, y: Ptr, active: Option<Ptr>) -> Result<()> {
        let Some(active) = active else { return Ok(()) };
        let wide = self.n / 2;
        around.gpu.launch_chained("silu_mul", Grid::each(m * wide), args![active, y, m as i32, wide as i32])
    }

    /// Whether it was done.
    fn decode_shuffled(&self, around: Around<'_>, x: Ptr, m: usize, y: Ptr, active: Option<Ptr>) -> Result<bool> {
        let Matrix::Shuffled(weights) = &self.matrix else { return Ok(false) };
        let gpu = around.gpu;
        if (weights.order == Order::Interleaved) != active.is_some() {
            return Ok(false);
        }
        let most = kernels(weights.format).last().map_or(0, |kernel| kernel.tokens).min(CHUNK);
        let Some((mut args, lora)) = self.few(around) else { return Ok(false) };
        if m > most * LAUNCHES {
            return Ok(false);
        }
        let (out, ldy) = active.map_or((y, self.n), |active| (active, self.n / 2));
        args.mode = if active.is_some() { SILU } else { 0 };
        (args.w, args.row_scale) = (weights.blocks.ptr(), weights.row_scale.ptr());
        (args.x, args.ldy) = (around.room.image.ptr(), ldy as i32);
        // Even pieces: 96 tokens are two of 48, not 64 and 32.
        let pieces = m.div_ceil(most);
        let (each, mut from) = (m.div_ceil(pieces), 0);
        while from < m {
            let count = each.min(m - from);
            let choice = choose(weights.format, [self.n, self.k], count, gpu.processors(), gpu.most_shared());
            let Some(choice) = choice else { return Ok(false) };
            self.inputs(around, true, lora, x.at(gpu.act(from * self.k)), count)?;
            (args.m, args.granule, args.y) = (count as i32, choice.granule as i32, out.at(gpu.act(from * ldy)));
            let grid = Grid::new([choice.grid, 1, 1], choice.kernel.threads()).shared(choice.kernel.shared());
            gpu.launch_struct(choice.kernel.name, grid, &args)?;
            from += count;
        }
        Ok(true)
    }

    /// bf16 weights: cuBLASLt, then bias and adapter in one kernel. Whether it was done.
    fn decode_dense(&self, around: Around<'_>, x: Ptr, m: usize, y: Ptr) -> Result<bool> {
        let gpu = around.gpu;
        if m > CHUNK || !gpu.has("lora_up") {
            return Ok(false);
        }
        let Some((mut args, lora)) = self.few(around) else { return Ok(false) };
        self.product(around, x, m, y)?;
        if lora.is_none() && args.bias == [Ptr::NULL; 3] {
            return Ok(true);
        }
        if lora.is_some() {
            self.inputs(around, false, lora, x, m)?;
        }
        (args.m, args.y, args.residual, args.ldy) = (m as i32, y, y, self.n as i32);
        gpu.launch_struct("lora_up", Grid::new([self.n.div_ceil(64), m.div_ceil(8), 1], 128), &args)?;
        Ok(true)
    }
}
