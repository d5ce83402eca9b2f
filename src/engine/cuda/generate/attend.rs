//! Attention of one new token a sequence over the paged cache.

use super::super::block::Net;
use super::super::compile::Width;
use super::super::gpu::{Buffer, Grid, Ptr, args, flash_shared};
use super::pages::{Pages, SIZE};
use crate::Result;

/// `struct FlashArgs` of kernels/flash_decode.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct FlashArgs {
    out: Ptr,
    q: Ptr,
    keys: Ptr,
    values: Ptr,
    positions: Ptr,
    tables: Ptr,
    shared: Ptr,
    members: Ptr,
    partial: Ptr,
    ld: i64,
    width: i32,
    kv_heads: i32,
    group: i32,
    size: i32,
    splits: i32,
    shared_splits: i32,
    scale: f32,
}

/// Pieces of a sequence at most: more than these cost more at the join than they save.
const MOST_SPLITS: usize = 16;

/// The kernels for matrix units where they fit the model's heads, else the plain one.
#[derive(Debug)]
pub struct Attend {
    /// Sums of the pieces; `None`: the plain kernel.
    partial: Option<Buffer>,
}

/// What a step attends with: `[rows, q + k + v]`, positions, `[rows, width]` of pages.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub qkv: Ptr,
    pub positions: Ptr,
    pub tables: Ptr,
    pub width: usize,
    pub rows: usize,
}

/// Pieces that each sequence is cut into, so that the blocks of `rows` sequences fill the device; it may depend only on
/// what a recorded graph fixes.
fn splits(net: &Net<'_>, rows: usize, width: usize) -> usize {
    let blocks = rows * net.config.num_kv_heads;
    (2 * net.gpu.processors()).div_ceil(blocks).clamp(1, MOST_SPLITS.min(width.max(1)))
}

impl Attend {
    /// For up to `rows` sequences of `width` pages.
    pub fn new(net: &Net<'_>, rows: usize, width: usize) -> Result<Self> {
        let config = net.config;
        let (dim, group) = (config.head_dim, config.num_heads / config.num_kv_heads);
        let fits = net.gpu.width() == Width::Bf16
            && matches!(dim, 64 | 128)
            && group <= 16
            && flash_shared(dim) <= net.gpu.most_shared();
        if !fits {
            return Ok(Self { partial: None });
        }
        // Fewer rows are cut into more pieces.
        let most = (1..=rows).map(|rows| rows * splits(net, rows, width)).max().unwrap_or(1);
        let partial = net.gpu.alloc_floats(most * config.num_heads * (dim + 2))?;
        Ok(Self { partial: Some(partial) })
    }

    /// out `[rows, q]`.
    pub fn run(&self, net: &Net<'_>, pages: &Pages, layer: usize, step: Rows, out: Ptr) -> Result<()> {
        let (gpu, config) = (net.gpu, net.config);
        let (q_width, kv_width) = net.widths();
        let (keys, values) = pages.layer(net, layer);
        let (dim, rows, ld) = (config.head_dim, step.rows, (q_width + 2 * kv_width) as i64);
        let group = config.num_heads / config.num_kv_heads;
        let Some(partial) = &self.partial else {
            let grid = Grid::new([config.num_heads, rows, 1], 256).shared(4 * (dim + 8 * (dim + 2)));
            let args = args![
                out,
                step.qkv,
                ld,
                keys,
                values,
                step.positions,
                step.tables,
                step.width as i32,
                config.num_kv_heads as i32,
                group as i32,
                SIZE as i32,
                dim as i32,
                net.scale()
            ];
            return gpu.launch_chained("decode_attention", grid, args);
        };
        let splits = splits(net, rows, step.width);
        let args = FlashArgs {
            out,
            q: step.qkv,
            keys,
            values,
            positions: step.positions,
            tables: step.tables,
            shared: Ptr::NULL,
            members: Ptr::NULL,
            partial: partial.ptr(),
            ld,
            width: step.width as i32,
            kv_heads: config.num_kv_heads as i32,
            group: group as i32,
            size: SIZE as i32,
            splits: splits as i32,
            shared_splits: 0,
            scale: net.scale() * std::f32::consts::LOG2_E,
        };
        let (part, join) = if dim == 64 {
            ("flash_decode_64", "flash_decode_join_64")
        } else {
            ("flash_decode_128", "flash_decode_join_128")
        };
        gpu.launch_struct(part, Grid::new([splits, config.num_kv_heads, rows], 128).shared(flash_shared(dim)), &args)?;
        gpu.launch_struct(join, Grid::new([config.num_heads, rows, 1], dim / 2), &args)
    }
}
