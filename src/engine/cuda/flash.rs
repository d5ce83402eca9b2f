//! Attention over packed tokens, forward and backward: on the matrix unit for bf16 heads of 64 and 128, else with plain
//! arithmetic.

use super::block::Net;
use super::compile::Width;
use super::gpu::{Buffer, Gpu, Grid, Ptr, args};
use super::pack::Meta;
use super::phases::Phase;
use crate::Result;

/// Queries or keys of a block of the matrix unit's kernels.
const ROWS: usize = 64;

/// The kernels for one size of heads.
struct Names {
    forward: &'static str,
    delta: &'static str,
    queries: &'static str,
    keys: &'static str,
}

const OF_64: Names = Names {
    forward: "flash_forward_64",
    delta: "flash_delta_64",
    queries: "flash_backward_q_64",
    keys: "flash_backward_kv_64",
};
const OF_128: Names = Names {
    forward: "flash_forward_128",
    delta: "flash_delta_128",
    queries: "flash_backward_q_128",
    keys: "flash_backward_kv_128",
};

fn names(dim: usize, width: Width) -> Option<&'static Names> {
    match (dim, width) {
        (64, Width::Bf16) => Some(&OF_64),
        (128, Width::Bf16) => Some(&OF_128),
        _ => None,
    }
}

/// Two stages of two tiles.
fn shared(dim: usize) -> usize {
    4 * ROWS * dim * 2
}

/// And a block's own keys and values, log-sum-exps and deltas of two stages.
fn shared_keys(dim: usize) -> usize {
    6 * ROWS * dim * 2 + 4 * ROWS * 4
}

/// Lets the kernels use as much shared memory as they need.
pub fn allow(gpu: &Gpu) -> Result<()> {
    for dim in [64, 128] {
        if let Some(names) = names(dim, gpu.width()) {
            gpu.allow_shared(names.forward, shared(dim))?;
            gpu.allow_shared(names.queries, shared(dim))?;
            gpu.allow_shared(names.keys, shared_keys(dim))?;
        }
    }
    Ok(())
}

impl Net<'_> {
    /// A row's entries of q, k and v together, and where each starts.
    fn stride(&self) -> (i64, [usize; 3]) {
        let (q, kv) = self.widths();
        ((q + 2 * kv) as i64, [0, q, q + kv].map(|at| self.gpu.act(at)))
    }

    /// `out` `[tokens, heads * dim]` and the log-sum-exp of each row's scores (f32 `[tokens, heads]`) of `qkv`
    /// `[tokens, q + k + v]`, turned.
    pub fn attend(&self, qkv: Ptr, meta: &Meta, out: Ptr, log_sum_exp: Ptr) -> Result<()> {
        let (gpu, config, m) = (self.gpu, self.config, meta.tokens);
        gpu.phase(Phase::AttentionForward)?;
        let (heads, dim) = (config.num_heads, config.head_dim);
        let (ld, starts) = self.stride();
        let [q, k, v] = starts.map(|at| qkv.at(at));
        let (tokens, count, group) = (m as i32, heads as i32, (heads / config.num_kv_heads) as i32);
        let (ldo, scale, spans) = ((heads * dim) as i64, self.scale(), &meta.spans);
        match names(dim, gpu.width()) {
            Some(names) => gpu.launch(
                names.forward,
                Grid::new([m.div_ceil(ROWS), heads, 1], 128).shared(shared(dim)),
                args![out, ldo, log_sum_exp, q, k, v, ld, spans, tokens, count, group, scale],
            ),
            None => gpu.launch(
                "attention_forward",
                Grid::new([m.div_ceil(4), heads, 1], 128).shared(16 * dim),
                args![out, ldo, log_sum_exp, q, k, v, ld, spans, tokens, count, group, dim as i32, scale],
            ),
        }
    }

    /// The gradient of `qkv`, given that of what [`Net::attend`] gave.
    pub fn attend_backward(
        &self,
        qkv: Ptr,
        attended: &Buffer,
        log_sum_exp: &Buffer,
        d_attended: &Buffer,
        d_qkv: &Buffer,
        meta: &Meta,
    ) -> Result<()> {
        let (gpu, config, m) = (self.gpu, self.config, meta.tokens);
        gpu.phase(Phase::AttentionBackward)?;
        let (heads, kv_heads, dim) = (config.num_heads, config.num_kv_heads, config.head_dim);
        let (ld, starts) = self.stride();
        let [q, k, v] = starts.map(|at| qkv.at(at));
        let [dq, dk, dv] = starts.map(|at| d_qkv.at(at));
        let (tokens, count, group) = (m as i32, heads as i32, (heads / kv_heads) as i32);
        let (ldo, scale, spans) = ((heads * dim) as i64, self.scale(), &meta.spans);
        let delta = gpu.alloc_floats(m * heads)?;
        if let Some(names) = names(dim, gpu.width()) {
            let n = m * heads;
            let grid = Grid::new([(n * dim / 8).div_ceil(256), 1, 1], 256);
            gpu.launch(names.delta, grid, args![&delta, d_attended, attended, n as i64])?;
            gpu.launch(
                names.queries,
                Grid::new([m.div_ceil(ROWS), heads, 1], 128).shared(shared(dim)),
                args![dq, ld, d_attended, ldo, log_sum_exp, &delta, q, k, v, ld, spans, tokens, count, group, scale],
            )?;
            gpu.launch(
                names.keys,
                Grid::new([m.div_ceil(ROWS), kv_heads, 1], 128).shared(shared_keys(dim)),
                args![
                    dk,
                    dv,
                    ld,
                    d_attended,
                    ldo,
                    log_sum_exp,
                    &delta,
                    q,
                    k,
                    v,
                    ld,
                    spans,
                    tokens,
                    count,
                    group,
                    scale
                ],
            )?;
            return gpu.phase(Phase::Rows);
        }
        let width = dim as i32;
        let per_head = |heads: usize| Grid::new([m.div_ceil(4), heads, 1], 128);
        let args = args![&delta, d_attended, attended, ldo, tokens, count, width];
        gpu.launch("attention_delta", per_head(heads), args)?;
        gpu.launch(
            "attention_backward_q",
            per_head(heads).shared(32 * dim),
            args![dq, ld, d_attended, ldo, log_sum_exp, &delta, q, k, v, ld, spans, tokens, count, group, width, scale],
        )?;
        gpu.launch(
            "attention_backward_kv",
            per_head(kv_heads).shared(32 * dim),
            args![
                dk,
                dv,
                ld,
                d_attended,
                ldo,
                log_sum_exp,
                &delta,
                q,
                k,
                v,
                ld,
                spans,
                tokens,
                count,
                group,
                width,
                scale
            ],
        )?;
        gpu.phase(Phase::Rows)
    }
}
