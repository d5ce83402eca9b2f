//! One block, forward and backward, over packed tokens.

use super::gpu::{Buffer, Gpu, Grid, Ptr, args};
use super::pack::Meta;
use super::parameters::Parameters;
use super::phases::Phase;
use super::weights::{Around, Layer, Vector, Weights};
use crate::Result;
use crate::model::ModelConfig;

/// cos and sin of every position so far on the device, `[position, dim / 2]`.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    pub cosines: Ptr,
    pub sines: Ptr,
}

/// Everything that a pass reads.
#[derive(Clone, Copy, Debug)]
pub struct Net<'a> {
    pub gpu: &'a Gpu,
    pub config: &'a ModelConfig,
    pub weights: &'a Weights,
    pub parameters: &'a Parameters,
    pub turns: Turns,
    /// Block norms with noise and adapter applied: `[layers, 2, hidden]`, f32.
    pub norms: Ptr,
    pub adapter: bool,
}

/// Heads before their norm (Qwen3), and the norms' inverses.
#[derive(Debug)]
pub struct RawHeads {
    q: Buffer,
    k: Buffer,
    q_inverses: Buffer,
    k_inverses: Buffer,
}

/// What the backward pass of a block needs besides its input.
#[derive(Debug)]
pub struct Kept {
    inverses: [Buffer; 2],
    raw: Option<RawHeads>,
    /// `[tokens, q + k + v]`, turned.
    qkv: Buffer,
    attended: Buffer,
    log_sum_exp: Buffer,
    /// After attention and its residual, f32.
    middle: Buffer,
    /// `[tokens, 2 * intermediate]`
    gate_up: Buffer,
}

impl<'a> Net<'a> {
    pub fn around(&self) -> Around<'a> {
        Around {
            gpu: self.gpu,
            parameters: self.parameters,
            scratch: self.weights.scratch.ptr(),
            few: self.weights.few.ptr(),
            room: &self.weights.room,
            adapter: self.adapter,
        }
    }

    pub fn eps(&self) -> f32 {
        self.config.rms_norm_eps as f32
    }

    pub fn scale(&self) -> f32 {
        (1.0 / (self.config.head_dim as f64).sqrt()) as f32
    }

    pub fn layer(&self, layer: usize) -> &'a Layer {
        &self.weights.layers[layer]
    }

    /// Widths of q, and of k or v.
    pub fn widths(&self) -> (usize, usize) {
        (self.config.num_heads * self.config.head_dim, self.config.num_kv_heads * self.config.head_dim)
    }

    /// The norm before attention (0) or the MLP (1).
    pub fn norm_weight(&self, layer: usize, which: usize) -> Ptr {
        self.norms.at(4 * (layer * 2 + which) * self.config.hidden_size)
    }

    /// Rows of the embedding, f32 `[tokens, hidden]`. `tokens` are ints on the device.
    pub fn embed(&self, tokens: Ptr, rows: usize, x: Ptr) -> Result<()> {
        let table = self.weights.embedding.operand(self.parameters);
        let hidden = self.config.hidden_size;
        let narrow = i32::from(self.gpu.width().bytes() == 2);
        self.gpu.launch("embed", Grid::rows(rows, hidden), args![x, table.ptr, tokens, hidden as i32, narrow])
    }

    /// `y = norm(x)`; with a `delta`, x += delta first. `x` is f32 `[rows, hidden]`.
    pub fn norm(&self, x: Ptr, delta: Ptr, weight: Ptr, rows: usize, y: Ptr, inverses: Ptr) -> Result<()> {
        let hidden = self.config.hidden_size;
        let args = args![y, inverses, x, delta, weight, hidden as i32, self.eps()];
        self.gpu.launch_chained("row_norm", Grid::rows(rows, hidden), args)
    }

    /// Turned queries and keys, and values, of normed inputs: `[rows, q + k + v]`. `raw` receives what head norms read.
    pub fn qkv(
        &self,
        layer: usize,
        normed: Ptr,
        positions: Ptr,
        rows: usize,
        qkv: Ptr,
        raw: Option<&RawHeads>,
    ) -> Result<()> {
        self.layer(layer).qkv.forward(self.around(), normed, rows, qkv)?;
        self.head_norms(layer, qkv, rows, raw)?;
        self.turn(qkv, positions, rows, 1.0)
    }

    /// Norms the heads of queries and keys, where the model does that (Qwen3). `raw` receives what they were.
    pub fn head_norms(&self, layer: usize, qkv: Ptr, rows: usize, raw: Option<&RawHeads>) -> Result<()> {
        let (gpu, config, weights) = (self.gpu, self.config, self.layer(layer));
        let (q_width, kv_width) = self.widths();
        let width = (q_width + 2 * kv_width) as i64;
        let (Some(q_norm), Some(k_norm)) = (&weights.q_norm, &weights.k_norm) else { return Ok(()) };
        let none = (Ptr::NULL, Ptr::NULL);
        let (q_raw, k_raw) =
            raw.map_or((none, none), |r| ((r.q.ptr(), r.q_inverses.ptr()), (r.k.ptr(), r.k_inverses.ptr())));
        for (norm, at, heads, (kept, inverses)) in
            [(q_norm, 0, config.num_heads, q_raw), (k_norm, q_width, config.num_kv_heads, k_raw)]
        {
            let x = qkv.at(gpu.act(at));
            let weight = norm.of(self.parameters);
            let args = args![x, width, kept, inverses, weight, config.head_dim as i32, self.eps()];
            gpu.launch_chained("head_norm", Grid::new([heads, rows, 1], 32), args)?;
        }
        Ok(())
    }

    /// Turns the queries and keys of `[rows, q + k + v]`.
    fn turn(&self, qkv: Ptr, positions: Ptr, rows: usize, sign: f32) -> Result<()> {
        let (q_width, kv_width) = self.widths();
        let (heads, half) = (self.config.num_heads + self.config.num_kv_heads, self.config.head_dim / 2);
        let args = args![
            qkv,
            (q_width + 2 * kv_width) as i64,
            self.turns.cosines,
            self.turns.sines,
            positions,
            rows as i32,
            heads as i32,
            half as i32,
            sign
        ];
        self.gpu.launch("rope", Grid::each((rows * heads * half).div_ceil(8)), args)
    }

    fn raw_heads(&self, rows: usize) -> Result<Option<RawHeads>> {
        if !self.config.qk_norm {
            return Ok(None);
        }
        let (q_width, kv_width) = self.widths();
        Ok(Some(RawHeads {
            q: self.gpu.alloc_act(rows * q_width)?,
            k: self.gpu.alloc_act(rows * kv_width)?,
            q_inverses: self.gpu.alloc_floats(rows * self.config.num_heads)?,
            k_inverses: self.gpu.alloc_floats(rows * self.config.num_kv_heads)?,
        }))
    }

    /// The block's output for `x` (f32 `[tokens, hidden]`). `cache` is given the keys and values.
    pub fn forward(
        &self,
        layer: usize,
        x: &Buffer,
        meta: &Meta,
        cache: impl FnOnce(Ptr) -> Result<()>,
    ) -> Result<(Buffer, Kept)> {
        let (m, config, gpu) = (meta.tokens, self.config, self.gpu);
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let (q_width, kv_width) = self.widths();
        let weights = self.layer(layer);
        gpu.phase(Phase::Rows)?;
        let normed = gpu.alloc_act(m * hidden)?;
        let inverses = [gpu.alloc_floats(m)?, gpu.alloc_floats(m)?];
        self.norm(x.ptr(), Ptr::NULL, self.norm_weight(layer, 0), m, normed.ptr(), inverses[0].ptr())?;
        let qkv = gpu.alloc_act(m * (q_width + 2 * kv_width))?;
        let raw = self.raw_heads(m)?;
        self.qkv(layer, normed.ptr(), meta.positions.ptr(), m, qkv.ptr(), raw.as_ref())?;
        cache(qkv.ptr())?;
        let attended = gpu.alloc_act(m * q_width)?;
        let log_sum_exp = gpu.alloc_floats(m * config.num_heads)?;
        self.attend(qkv.ptr(), meta, attended.ptr(), log_sum_exp.ptr())?;
        let delta = gpu.alloc_act(m * hidden)?;
        weights.o.forward(self.around(), attended.ptr(), m, delta.ptr())?;
        let middle = gpu.alloc_floats(m * hidden)?;
        let weight = self.norm_weight(layer, 1);
        gpu.launch(
            "add_norm",
            Grid::rows(m, hidden),
            args![&normed, &inverses[1], &middle, x, &delta, weight, hidden as i32, self.eps()],
        )?;
        let gate_up = gpu.alloc_act(m * 2 * wide)?;
        weights.gate_up.forward(self.around(), normed.ptr(), m, gate_up.ptr())?;
        let active = gpu.alloc_act(m * wide)?;
        gpu.launch("silu_mul", Grid::each(m * wide / 8), args![&active, &gate_up, m as i32, wide as i32])?;
        weights.down.forward(self.around(), active.ptr(), m, delta.ptr())?;
        let out = gpu.alloc_floats(m * hidden)?;
        let n = m * hidden;
        gpu.launch("add_act", Grid::each(n / 8), args![&out, &middle, &delta, n as i64])?;
        Ok((out, Kept { inverses, raw, qkv, attended, log_sum_exp, middle, gate_up }))
    }

    /// The gradient of a group's output, through `d` (f32, the residual stream's) rounded to activations.
    fn rounded(&self, d: &Buffer, n: usize) -> Result<Buffer> {
        let out = self.gpu.alloc_act(n)?;
        self.gpu.launch("to_act", Grid::each(n / 8), args![&out, d, n as i64])?;
        Ok(out)
    }

    /// Through a block norm: `d += ` the gradient of `x` (and `rounded`, unless it is null, becomes `d` as activations), and
    /// the weight's where it is trained.
    #[expect(clippy::too_many_arguments, reason = "the operands of a norm's gradient")]
    fn norm_backward(
        &self,
        x: Ptr,
        weight: Ptr,
        inverses: &Buffer,
        dy: &Buffer,
        d: &Buffer,
        rounded: Ptr,
        rows: usize,
        gradient: Option<Ptr>,
    ) -> Result<()> {
        let hidden = self.config.hidden_size;
        let args = args![d, rounded, dy, x, weight, inverses, hidden as i32];
        self.gpu.launch("norm_backward", Grid::rows(rows, hidden), args)?;
        let Some(gradient) = gradient else { return Ok(()) };
        self.around().add_sums(gradient, rows, hidden, |partial, grid, step| {
            let args = args![partial, dy, x, inverses, rows as i32, hidden as i32, step];
            self.gpu.launch("norm_weight_sums", grid, args)
        })
    }

    /// The final norm's.
    pub fn final_norm_backward(&self, x: &Buffer, inverses: &Buffer, dy: &Buffer, d: &Buffer, m: usize) -> Result<()> {
        let norm = &self.weights.final_norm;
        let weight = norm.of(self.parameters);
        self.norm_backward(x.ptr(), weight, inverses, dy, d, Ptr::NULL, m, norm.gradient(self.parameters))
    }

    fn block_norm_gradient(&self, layer: usize, which: usize) -> Option<Ptr> {
        self.layer(layer).adapted[which].as_ref().filter(|_| self.adapter)?.gradient(self.parameters)
    }

    /// Turns `d` (f32, the gradient of the block's output) into that of its input `x`; adds to the arena's gradients.
    pub fn backward(&self, layer: usize, x: &Buffer, kept: Kept, meta: &Meta, d: &Buffer) -> Result<()> {
        let Kept { inverses, raw, qkv, attended, log_sum_exp, middle, gate_up } = kept;
        let (m, gpu, config, around) = (meta.tokens, self.gpu, self.config, self.around());
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let (q_width, kv_width) = self.widths();
        let weights = self.layer(layer);
        gpu.phase(Phase::Rows)?;
        // MLP
        let d_out = self.rounded(d, m * hidden)?;
        let active = gpu.alloc_act(m * wide)?;
        gpu.launch("silu_mul", Grid::each(m * wide / 8), args![&active, &gate_up, m as i32, wide as i32])?;
        let d_active = gpu.alloc_act(m * wide)?;
        weights.down.backward(around, active.ptr(), m, d_out.ptr(), d_active.ptr())?;
        gpu.launch("silu_mul_backward", Grid::each(m * wide / 8), args![&gate_up, &d_active, m as i32, wide as i32])?;
        drop((active, d_active));
        let normed = gpu.alloc_act(m * hidden)?;
        let scratch = gpu.alloc_floats(m)?;
        let norm = self.norm_weight(layer, 1);
        self.norm(middle.ptr(), Ptr::NULL, norm, m, normed.ptr(), scratch.ptr())?;
        let d_normed = d_out;
        weights.gate_up.backward(around, normed.ptr(), m, gate_up.ptr(), d_normed.ptr())?;
        drop(gate_up);
        let d_out = gpu.alloc_act(m * hidden)?;
        let gradient = self.block_norm_gradient(layer, 1);
        self.norm_backward(middle.ptr(), norm, &inverses[1], &d_normed, d, d_out.ptr(), m, gradient)?;
        drop(middle);
        // Attention
        let d_attended = gpu.alloc_act(m * q_width)?;
        weights.o.backward(around, attended.ptr(), m, d_out.ptr(), d_attended.ptr())?;
        let d_qkv = gpu.alloc_act(m * (q_width + 2 * kv_width))?;
        self.attend_backward(qkv.ptr(), &attended, &log_sum_exp, &d_attended, &d_qkv, meta)?;
        drop((qkv, attended, d_attended));
        self.turn(d_qkv.ptr(), meta.positions.ptr(), m, -1.0)?;
        if let (Some(q_norm), Some(k_norm), Some(raw)) = (&weights.q_norm, &weights.k_norm, &raw) {
            self.head_norm_backward(q_norm, &raw.q, &raw.q_inverses, d_qkv.ptr(), config.num_heads, m)?;
            let keys = d_qkv.at(gpu.act(q_width));
            self.head_norm_backward(k_norm, &raw.k, &raw.k_inverses, keys, config.num_kv_heads, m)?;
        }
        let norm = self.norm_weight(layer, 0);
        self.norm(x.ptr(), Ptr::NULL, norm, m, normed.ptr(), scratch.ptr())?;
        weights.qkv.backward(around, normed.ptr(), m, d_qkv.ptr(), d_normed.ptr())?;
        let gradient = self.block_norm_gradient(layer, 0);
        self.norm_backward(x.ptr(), norm, &inverses[0], &d_normed, d, Ptr::NULL, m, gradient)
    }

    fn head_norm_backward(
        &self,
        norm: &Vector,
        raw: &Buffer,
        inverses: &Buffer,
        d: Ptr,
        heads: usize,
        rows: usize,
    ) -> Result<()> {
        let (q_width, kv_width) = self.widths();
        let (ld, dim) = ((q_width + 2 * kv_width) as i64, self.config.head_dim as i32);
        if let Some(gradient) = norm.gradient(self.parameters) {
            self.around().add_sums(gradient, rows, self.config.head_dim, |partial, grid, step| {
                let args = args![partial, d, ld, raw, inverses, rows as i32, heads as i32, dim, step];
                self.gpu.launch("head_norm_weight_sums", grid, args)
            })?;
        }
        let args = args![d, ld, raw, norm.of(self.parameters), inverses, dim];
        self.gpu.launch("head_norm_backward", Grid::new([heads, rows, 1], 32), args)
    }
}
