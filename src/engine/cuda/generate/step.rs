//! One decode step: a token of every running sequence goes through the model.

use super::super::block::Net;
use super::super::gpu::{Buffer, Grid, Ptr, args};
use super::super::head;
use super::attend::{Attend, Rows};
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
    x: Buffer,
    normed: Buffer,
    inverses: Buffer,
    qkv: Buffer,
    attended: Buffer,
    delta: Buffer,
    gate_up: Buffer,
    active: Buffer,
    attend: Attend,
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
            x: gpu.alloc_floats(rows * hidden)?,
            normed: gpu.alloc_act(rows * hidden)?,
            inverses: gpu.alloc_floats(rows)?,
            qkv: gpu.alloc_act(rows * (q_width + 2 * kv_width))?,
            attended: gpu.alloc_act(rows * q_width)?,
            delta: gpu.alloc_act(rows * hidden)?,
            gate_up: gpu.alloc_act(rows * 2 * wide)?,
            active: gpu.alloc_act(rows * wide)?,
            attend: Attend::new(net, rows, width)?,
            logits: gpu.alloc_floats(rows * config.vocab_size)?,
        })
    }

    /// Feeds the first `rows` sequences; their logits are in [`Step::logits`] afterwards.
    pub fn run(&self, net: &Net<'_>, pages: &Pages, rows: usize) -> Result<()> {
        let (config, around) = (net.config, net.around());
        net.embed(self.tokens.ptr(), rows, self.x.ptr())?;
        // The residual of the block before is added by the norm that reads it.
        let mut delta = Ptr::NULL;
        for layer in 0..config.num_layers {
            let weights = net.layer(layer);
            let (x, normed, inverses) = (self.x.ptr(), self.normed.ptr(), self.inverses.ptr());
            net.norm(x, delta, net.norm_weight(layer, 0), rows, normed, inverses)?;
            weights.qkv.decode(around, normed, rows, self.qkv.ptr(), None)?;
            net.head_norms(layer, self.qkv.ptr(), rows, None)?;
            self.turn(net, pages, layer, rows)?;
            let (positions, tables, width) = (self.positions.ptr(), self.tables.ptr(), self.width);
            let own = Rows { qkv: self.qkv.ptr(), positions, tables, width, rows };
            self.attend.run(net, pages, layer, own, self.attended.ptr())?;
            weights.o.decode(around, self.attended.ptr(), rows, self.delta.ptr(), None)?;
            delta = self.delta.ptr();
            net.norm(x, delta, net.norm_weight(layer, 1), rows, normed, inverses)?;
            weights.gate_up.decode(around, normed, rows, self.gate_up.ptr(), Some(self.active.ptr()))?;
            weights.down.decode(around, self.active.ptr(), rows, delta, None)?;
        }
        let weight = net.weights.final_norm.of(net.parameters);
        net.norm(self.x.ptr(), delta, weight, rows, self.normed.ptr(), self.inverses.ptr())?;
        debug_assert!(self.normed.bytes() >= net.gpu.act(rows * config.hidden_size));
        head::logits_into(net, &self.normed, rows, &self.logits)
    }

    /// Turns queries and keys, and stores keys and values.
    fn turn(&self, net: &Net<'_>, pages: &Pages, layer: usize, rows: usize) -> Result<()> {
        let config = net.config;
        let (q_width, kv_width) = net.widths();
        let (keys, values) = pages.layer(net, layer);
        let args = args![
            &self.qkv,
            (q_width + 2 * kv_width) as i64,
            net.turns.cosines,
            net.turns.sines,
            keys,
            values,
            &self.positions,
            &self.tables,
            self.width as i32,
            SIZE as i32,
            config.num_heads as i32,
            config.num_kv_heads as i32,
            config.head_dim as i32
        ];
        let heads = config.num_heads + 2 * config.num_kv_heads;
        let threads = (config.head_dim / 2).next_multiple_of(32).min(128);
        net.gpu.launch_chained("turn_and_cache", Grid::new([heads, rows, 1], threads), args)
    }
}
