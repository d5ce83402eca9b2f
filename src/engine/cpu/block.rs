//! One block, forward and backward, over packed tokens. Its forward is made of the parts that generation uses too.

use super::kernels::attention::{Heads, Saved, Span, backward_packed, forward_packed};
use super::kernels::{Pool, vector};
use super::layers::{Factors, Layer, Vector, Weight, Weights};
use super::rope::Rope;
use super::rows;
use crate::model::ModelConfig;

/// Everything that a pass reads.
#[derive(Clone, Copy)]
pub(super) struct Net<'a> {
    pub pool: &'a Pool,
    pub config: &'a ModelConfig,
    pub weights: &'a Weights,
    /// The arena.
    pub values: &'a [f32],
    pub rope: &'a Rope,
    /// Block norms with noise and adapter applied: `[layers, 2, hidden]`.
    pub norms: &'a [f32],
    pub factors: Factors<'a>,
}

/// Heads before their norm (Qwen3), and the norms' inverses.
#[derive(Debug, Default)]
pub(super) struct RawHeads {
    q: Vec<f32>,
    k: Vec<f32>,
    q_inverses: Vec<f32>,
    k_inverses: Vec<f32>,
}

/// What the backward pass of a block needs besides its input; sizes per token in the comments.
#[derive(Debug)]
pub(super) struct Kept {
    /// 1
    inverses: [Vec<f32>; 2],
    raw: RawHeads,
    /// heads * dim
    q: Vec<f32>,
    /// kv_heads * dim
    k: Vec<f32>,
    v: Vec<f32>,
    /// heads * dim
    attended: Vec<f32>,
    /// heads
    log_sum_exp: Vec<f32>,
    /// hidden: after attention and its residual.
    middle: Vec<f32>,
    /// intermediate
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Net<'_> {
    pub fn heads(&self) -> Heads {
        let dim = self.config.head_dim;
        Heads {
            heads: self.config.num_heads,
            kv_heads: self.config.num_kv_heads,
            dim,
            scale: (1.0 / (dim as f64).sqrt()) as f32,
        }
    }

    pub fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    pub fn layer(&self, layer: usize) -> &Layer {
        &self.weights.layers[layer]
    }

    /// The norm before attention (0) or the MLP (1).
    pub fn norm(&self, layer: usize, which: usize) -> &[f32] {
        let hidden = self.config.hidden_size;
        &self.norms[(layer * 2 + which) * hidden..][..hidden]
    }

    /// Rows of the embedding, `[tokens, hidden]`.
    pub fn embed(&self, tokens: &[u32], x: &mut [f32]) {
        for (row, &token) in x.chunks_exact_mut(self.config.hidden_size).zip(tokens) {
            self.weights.embedding.row(self.values, token as usize, row);
        }
    }

    /// Turned queries and keys, and values, of normed inputs. `raw` receives the heads before their norm.
    #[expect(clippy::too_many_arguments, reason = "one input, three outputs")]
    pub fn qkv(
        &self,
        layer: usize,
        normed: &[f32],
        positions: &[u32],
        q: &mut [f32],
        k: &mut [f32],
        v: &mut [f32],
        t: &mut Vec<f32>,
        raw: Option<&mut RawHeads>,
    ) {
        let weights = self.layer(layer);
        weights.qkv.forward(
            self.pool,
            self.values,
            self.factors.of(layer, 0),
            normed,
            positions.len(),
            t,
            &mut [q, k, v],
        );
        if let (Some(q_norm), Some(k_norm)) = (&weights.q_norm, &weights.k_norm) {
            let mut scratch = RawHeads::default();
            let raw = raw.unwrap_or(&mut scratch);
            self.head_norm(q_norm, q, &mut raw.q, &mut raw.q_inverses);
            self.head_norm(k_norm, k, &mut raw.k, &mut raw.k_inverses);
        }
        self.rope.turn(self.pool, q, positions, false);
        self.rope.turn(self.pool, k, positions, false);
    }

    fn head_norm(&self, weight: &Vector, x: &mut [f32], raw: &mut Vec<f32>, inverses: &mut Vec<f32>) {
        raw.clear();
        raw.extend_from_slice(x);
        inverses.resize(x.len() / self.config.head_dim, 0.0);
        rows::norm(self.pool, raw, weight.of(self.values), self.eps(), x, inverses);
    }

    /// The block's output for `x` `[tokens, hidden]`.
    pub fn forward(&self, layer: usize, x: &[f32], positions: &[u32], spans: &[Span]) -> (Vec<f32>, Kept) {
        let (m, config, pool) = (positions.len(), self.config, self.pool);
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let (q_width, kv_width) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        let weights = self.layer(layer);
        let zeros = |width: usize| vec![0f32; m * width];
        let (mut normed, mut t) = (zeros(hidden), Vec::new());
        let mut inverses = [zeros(1), zeros(1)];
        let mut raw = RawHeads::default();
        rows::norm(pool, x, self.norm(layer, 0), self.eps(), &mut normed, &mut inverses[0]);
        let (mut q, mut k, mut v) = (zeros(q_width), zeros(kv_width), zeros(kv_width));
        self.qkv(layer, &normed, positions, &mut q, &mut k, &mut v, &mut t, Some(&mut raw));
        let (mut attended, mut log_sum_exp) = (zeros(q_width), zeros(config.num_heads));
        forward_packed(pool, self.heads(), spans, &q, &k, &v, &mut attended, &mut log_sum_exp);
        let mut middle = zeros(hidden);
        weights.o.forward(pool, self.values, self.factors.of(layer, 1), &attended, m, &mut t, &mut [&mut middle]);
        rows::add(pool, x, &mut middle);
        rows::norm(pool, &middle, self.norm(layer, 1), self.eps(), &mut normed, &mut inverses[1]);
        let (mut gate, mut up, mut active) = (zeros(wide), zeros(wide), zeros(wide));
        weights.gate_up.forward(
            pool,
            self.values,
            self.factors.of(layer, 2),
            &normed,
            m,
            &mut t,
            &mut [&mut gate, &mut up],
        );
        rows::silu_mul(pool, &gate, &up, &mut active);
        // The normed rows are not needed any more: their memory takes the output.
        let mut out = normed;
        weights.down.forward(pool, self.values, self.factors.of(layer, 3), &active, m, &mut t, &mut [&mut out]);
        rows::add(pool, &middle, &mut out);
        (out, Kept { inverses, raw, q, k, v, attended, log_sum_exp, middle, gate, up })
    }

    /// Replaces `d` (the gradient of the block's output) by that of its input `x`; adds to the arena's gradients.
    #[expect(clippy::too_many_arguments, reason = "the operands of a backward pass")]
    pub fn backward(
        &self,
        layer: usize,
        x: &[f32],
        kept: Kept,
        positions: &[u32],
        spans: &[Span],
        d: &mut [f32],
        gradients: &mut [f32],
    ) {
        let Kept { inverses, raw, q, k, v, attended, log_sum_exp, middle, mut gate, mut up } = kept;
        let (m, pool) = (positions.len(), self.pool);
        let (values, adapter) = (self.values, !matches!(self.factors, Factors::Off));
        let weights = self.layer(layer);
        // MLP
        let mut active = vec![0f32; gate.len()];
        rows::silu_mul(pool, &gate, &up, &mut active);
        let mut d_active = vec![0f32; gate.len()];
        weights.down.backward(pool, values, gradients, adapter, &active, m, &[d], &mut d_active, false);
        drop(active);
        rows::silu_mul_backward(pool, &mut gate, &mut up, &d_active);
        drop(d_active);
        let mut normed = vec![0f32; d.len()];
        let mut scratch = vec![0f32; m];
        let norm = self.norm(layer, 1);
        rows::norm(pool, &middle, norm, self.eps(), &mut normed, &mut scratch);
        let mut d_normed = vec![0f32; d.len()];
        weights.gate_up.backward(pool, values, gradients, adapter, &normed, m, &[&gate, &up], &mut d_normed, false);
        drop((gate, up));
        let d_norm = weights.adapted[1].as_ref().filter(|_| adapter).and_then(|n| n.gradient(gradients));
        rows::norm_backward(pool, &middle, norm, &inverses[1], &d_normed, d, d_norm);
        // Attention
        let mut d_attended = vec![0f32; attended.len()];
        weights.o.backward(pool, values, gradients, adapter, &attended, m, &[d], &mut d_attended, false);
        let (mut dq, mut dk, mut dv) = (vec![0f32; q.len()], vec![0f32; k.len()], vec![0f32; v.len()]);
        let saved = Saved { q: &q, k: &k, v: &v, out: &attended, log_sum_exp: &log_sum_exp };
        backward_packed(pool, self.heads(), spans, saved, &d_attended, &mut dq, &mut dk, &mut dv);
        drop((q, k, v, attended, d_attended));
        self.rope.turn(pool, &mut dq, positions, true);
        self.rope.turn(pool, &mut dk, positions, true);
        if let (Some(q_norm), Some(k_norm)) = (&weights.q_norm, &weights.k_norm) {
            self.head_norm_backward(q_norm, &raw.q, &raw.q_inverses, &mut dq, gradients);
            self.head_norm_backward(k_norm, &raw.k, &raw.k_inverses, &mut dk, gradients);
        }
        let norm = self.norm(layer, 0);
        rows::norm(pool, x, norm, self.eps(), &mut normed, &mut scratch);
        weights.qkv.backward(pool, values, gradients, adapter, &normed, m, &[&dq, &dk, &dv], &mut d_normed, false);
        let d_norm = weights.adapted[0].as_ref().filter(|_| adapter).and_then(|n| n.gradient(gradients));
        rows::norm_backward(pool, x, norm, &inverses[0], &d_normed, d, d_norm);
    }

    /// Adds the gradient of the embedding's rows, where it is trained.
    pub fn embedding_backward(&self, tokens: &[u32], d: &[f32], gradients: &mut [f32]) {
        let Weight::Trained { at, k, .. } = self.weights.embedding else { return };
        for (&token, d) in tokens.iter().zip(d.chunks_exact(k)) {
            vector::add(d, &mut gradients[at + token as usize * k..][..k]);
        }
    }

    fn head_norm_backward(
        &self,
        weight: &Vector,
        raw: &[f32],
        inverses: &[f32],
        d: &mut Vec<f32>,
        gradients: &mut [f32],
    ) {
        let mut dx = vec![0f32; d.len()];
        let d_weight = weight.gradient(gradients);
        rows::norm_backward(self.pool, raw, weight.of(self.values), inverses, d, &mut dx, d_weight);
        *d = dx;
    }
}

/// Floats that [`Kept`] holds per token.
pub(super) fn kept_floats(config: &ModelConfig) -> usize {
    let (q, kv) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
    let raw = if config.qk_norm { q + kv + config.num_heads + config.num_kv_heads } else { 0 };
    2 + raw + 2 * q + 2 * kv + config.num_heads + config.hidden_size + 2 * config.intermediate_size
}
