//! A group's 4-bit weights in the order that products of few tokens read (kernels/weights.cuh): the only copy. Larger
//! products and the backward pass go through bf16 rows made from it.

use super::{Kind, Packed};
use crate::Result;
use crate::engine::cuda::blocks::{BLOCK, E2M1_FACTOR, Order};
use crate::engine::cuda::compile::Width;
use crate::engine::cuda::gpu::{Buffer, Gpu, Grid, Ptr, args};
use crate::quant::Format;

/// Weights `[n, k]` in blocks of 16 rows by 64 columns.
#[derive(Debug)]
pub struct Shuffled {
    pub format: Format,
    pub order: Order,
    n: usize,
    k: usize,
    pub blocks: Buffer,
    /// `[n / 8]`, f32: what sums of 8 rows are multiplied by.
    pub row_scale: Buffer,
}

/// Threads of a launch over the lanes of all blocks.
fn lanes(strips: usize, blocks: usize) -> Grid {
    Grid::new([(32 * strips * blocks).div_ceil(256), 1, 1], 256)
}

/// What one half of the strips is made from.
struct Half {
    codes: Ptr,
    scales: Ptr,
}

impl Half {
    /// `row` rows into a matrix.
    fn of(packed: &Packed, row: usize) -> Self {
        let k = packed.k;
        let scales = match packed.kind {
            Kind::Nvfp4 { .. } => k / 16,
            Kind::Mxfp4 { .. } => k / 32,
            Kind::Nf4 => 4 * (k / 64),
        };
        Self { codes: packed.codes.at(row * k / 2), scales: packed.scales.at(row * scales) }
    }
}

impl Shuffled {
    /// Whether `all`, projections under one another, can be kept so on this device.
    pub fn suits(gpu: &Gpu, all: &[Packed]) -> bool {
        let alike = |packed: &Packed| packed.n.is_multiple_of(16) && packed.k.is_multiple_of(64);
        gpu.width() == Width::Bf16 && !all.is_empty() && all.iter().all(alike)
    }

    /// Gate and up (`pair`) come by turns of eight rows, so that one thread has both.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn new(gpu: &Gpu, all: &[Packed], pair: bool) -> Result<Self> {
        let (n, k) = (all.iter().map(|p| p.n).sum::<usize>(), all[0].k);
        let format = match all[0].kind {
            Kind::Nvfp4 { .. } => Format::Nvfp4,
            Kind::Mxfp4 { .. } => Format::Mxfp4,
            Kind::Nf4 => Format::Nf4,
        };
        let pair = pair && all.len() == 2 && all[0].n == all[1].n;
        let order = if pair { Order::Interleaved } else { Order::Plain };
        let out = gpu.alloc(n / 16 * (k / 64) * BLOCK)?;
        let mut row_scale = Vec::with_capacity(n / 8);
        if pair {
            let largest = all[0].largest().max(all[1].largest());
            fill(gpu, out.ptr(), [Half::of(&all[0], 0), Half::of(&all[1], 0)], &all[0], 8, n / 16, largest)?;
            for _ in 0..n / 16 {
                row_scale.extend([all[0].row_scale(largest), all[1].row_scale(largest)]);
            }
        } else {
            let mut strip = 0;
            for packed in all {
                let (to, strips) = (out.at(strip * (k / 64) * BLOCK), packed.n / 16);
                let largest = packed.largest();
                fill(gpu, to, [Half::of(packed, 0), Half::of(packed, 8)], packed, 16, strips, largest)?;
                row_scale.resize(row_scale.len() + 2 * strips, packed.row_scale(largest));
                strip += strips;
            }
        }
        Ok(Self { format, order, n, k, blocks: out, row_scale: gpu.upload(&row_scale)? })
    }

    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + self.row_scale.bytes()
    }

    /// The values to `out` `[n, k]` in bf16, rows in their natural order.
    pub fn rows(&self, gpu: &Gpu, out: Ptr) -> Result<()> {
        let (second, step) = match self.order {
            Order::Plain => (8, 16),
            Order::Interleaved => (self.n / 2, 8),
        };
        let (strips, columns) = (self.n / 16, self.k / 64);
        let name = if self.format == Format::Nf4 { "unshuffle_nf4" } else { "unshuffle_e2m1" };
        let second = out.at(2 * second * self.k);
        let args = args![out, second, &self.blocks, &self.row_scale, step, strips as i64, columns as i32];
        gpu.launch(name, lanes(strips, columns), args)
    }
}

/// Writes `strips` strips: their first 8 rows from `halves[0]`, the others from `halves[1]`, `step` rows further each.
fn fill(gpu: &Gpu, to: Ptr, halves: [Half; 2], like: &Packed, step: i32, strips: usize, largest: u8) -> Result<()> {
    let columns = like.k / 64;
    let grid = lanes(strips, columns);
    let [a, b] = halves;
    let (strips, columns) = (strips as i64, columns as i32);
    match like.kind {
        Kind::Nvfp4 { .. } => {
            gpu.launch("shuffle_nvfp4", grid, args![to, a.codes, b.codes, a.scales, b.scales, step, strips, columns])
        }
        Kind::Mxfp4 { .. } => gpu.launch(
            "shuffle_mxfp4",
            grid,
            args![to, a.codes, b.codes, a.scales, b.scales, step, strips, columns, i32::from(largest)],
        ),
        Kind::Nf4 => {
            gpu.launch("shuffle_nf4", grid, args![to, a.codes, b.codes, a.scales, b.scales, step, strips, columns])
        }
    }
}

impl Packed {
    /// The largest e8m0 scale; 0 for other formats.
    fn largest(&self) -> u8 {
        if let Kind::Mxfp4 { largest } = self.kind { largest } else { 0 }
    }

    fn row_scale(&self, largest: u8) -> f32 {
        match self.kind {
            Kind::Nvfp4 { global, multiplies: true } => E2M1_FACTOR * global,
            Kind::Nvfp4 { global, multiplies: false } => E2M1_FACTOR / global,
            // The largest scale stands for 2^8 in the blocks; e8m0 code c is 2^(c - 127).
            Kind::Mxfp4 { .. } => E2M1_FACTOR * (f64::from(largest) - 135.0).exp2() as f32,
            Kind::Nf4 => 1.0,
        }
    }
}
