//! One decode step: a token of every running sequence goes through the model.

use super::super::block::Net;
use super::super::gpu::{Buffer, Grid, Ptr, args};
use super::super::head;
use super::pages::{Pages, SIZE};
use crate::Result;

/// Buffers for `rows` sequences whose tables have `width` pages, kept over all steps.
#[derive(Debug)]
pub struct Step {
    pub rows: usize,
    pub width: usize,
    /// Ints: the tokens to feed, their positions (below zero: an idle row), pages.
    pub tokens: Buffer,
    pub positions: Buffer,
    pub tables: Buffer,
    slots: Buffer,
    x: Buffer,
    normed: Buffer,
    inverses: Buffer,
    qkv: Buffer,
    attended: Buffer,
    delta: Buffer,
    gate_up: Buffer,
    active: Buffer,
    /// f32 `[rows, vocab]`.
    pub logits: Buffer,
}

impl Step {
    pub fn new(net: &Net<'_>, rows: usize, width: usize) -> Result<Self> {
        let (gpu, config) = (net.gpu, net.config);
        let (q_width, kv_width) = net.widths();
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            rows,
            width,
            tokens: gpu.zeros(4 * rows)?,
            positions: gpu.zeros(4 * rows)?,
            tables: gpu.zeros(4 * rows * width)?,
            slots: gpu.zeros(4 * rows)?,
            x: gpu.alloc_floats(rows * hidden)?,
            normed: gpu.alloc_act(rows * hidden)?,
            inverses: gpu.alloc_floats(rows)?,
            qkv: gpu.alloc_act(rows * (q_width + 2 * kv_width))?,
            attended: gpu.alloc_act(rows * q_width)?,
            delta: gpu.alloc_act(rows * hidden)?,
            gate_up: gpu.alloc_act(rows * 2 * wide)?,
            active: gpu.alloc_act(rows * wide)?,
            logits: gpu.alloc_floats(rows * config.vocab_size)?,
        })
    }

    /// Feeds the first `rows` sequences; their logits are in [`Step::logits`] afterwards.
    pub fn run(&self, net: &Net<'_>, pages: &Pages, rows: usize) -> Result<()> {
        let (gpu, config) = (net.gpu, net.config);
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        net.embed(self.tokens.ptr(), rows, self.x.ptr())?;
        let slots = args![&self.slots, &self.positions, &self.tables, self.width as i32, SIZE as i32, rows as i32];
        gpu.launch("decode_slots", Grid::each(rows), slots)?;
        // The residual of the block before is added by the norm that reads it.
        let mut delta = Ptr::NULL;
        for layer in 0..config.num_layers {
            let weights = net.layer(layer);
            let (x, normed, inverses) = (self.x.ptr(), self.normed.ptr(), self.inverses.ptr());
            net.norm(x, delta, net.norm_weight(layer, 0), rows, normed, inverses)?;
            net.qkv(layer, normed, self.positions.ptr(), rows, self.qkv.ptr(), None)?;
            pages.write(net, layer, self.qkv.ptr(), self.slots.ptr(), rows)?;
            self.attend(net, pages, layer, rows)?;
            net.project(&weights.o, self.attended.ptr(), rows, self.delta.ptr())?;
            delta = self.delta.ptr();
            net.norm(x, delta, net.norm_weight(layer, 1), rows, normed, inverses)?;
            net.project(&weights.gate_up, normed, rows, self.gate_up.ptr())?;
            let args = args![&self.active, &self.gate_up, rows as i32, wide as i32];
            gpu.launch("silu_mul", Grid::each(rows * wide), args)?;
            net.project(&weights.down, self.active.ptr(), rows, delta)?;
        }
        let weight = net.weights.final_norm.of(net.parameters);
        net.norm(self.x.ptr(), delta, weight, rows, self.normed.ptr(), self.inverses.ptr())?;
        debug_assert!(self.normed.bytes() >= gpu.act(rows * hidden));
        head::logits_into(net, &self.normed, rows, &self.logits)
    }

    fn attend(&self, net: &Net<'_>, pages: &Pages, layer: usize, rows: usize) -> Result<()> {
        let config = net.config;
        let (q_width, kv_width) = net.widths();
        let (keys, values) = pages.layer(net, layer);
        let dim = config.head_dim;
        let grid = Grid::new([config.num_heads, rows, 1], 256).shared(4 * (dim + 8 * (dim + 2)));
        net.gpu.launch(
            "decode_attention",
            grid,
            args![
                &self.attended,
                &self.qkv,
                (q_width + 2 * kv_width) as i64,
                keys,
                values,
                &self.positions,
                &self.tables,
                self.width as i32,
                config.num_kv_heads as i32,
                (config.num_heads / config.num_kv_heads) as i32,
                SIZE as i32,
                dim as i32,
                net.scale()
            ],
        )
    }
}
