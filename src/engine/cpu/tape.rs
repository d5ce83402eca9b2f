//! What a training pass keeps between forward and backward.
//!
//! Block inputs always; of the last blocks everything, as far as the budget goes; the others are computed again.

use super::batch::Packed;
use super::block::{Kept, Net, kept_floats};
use super::head::{self, Scored};
use super::rows;
use crate::engine::Scores;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Tape {
    packed: Packed,
    temperature: f32,
    /// `[tokens, hidden]` before each block.
    inputs: Vec<Vec<f32>>,
    kept: Vec<Option<Kept>>,
    /// After the last block, and normed.
    last: Vec<f32>,
    inverses: Vec<f32>,
    hidden: Vec<f32>,
    scored: Vec<Scored>,
    logits: Vec<Vec<f32>>,
    bytes: u64,
}

impl Tape {
    /// The forward pass. `budget` bytes are for what could be computed again.
    pub fn record(net: &Net<'_>, packed: Packed, temperature: f32, budget: u64) -> Self {
        let (m, layers) = (packed.tokens.len() as u64, net.config.num_layers);
        let (hidden, vocab) = (net.config.hidden_size as u64, net.config.vocab_size as u64);
        let per_layer = 4 * m * kept_floats(net.config) as u64;
        let budget = budget.saturating_sub(4 * m * hidden * (layers as u64 + 3));
        let whole = budget.checked_div(per_layer).unwrap_or(0).min(layers as u64);
        let head = 4 * vocab * packed.targets.len() as u64;
        let keep_logits = whole * per_layer + head <= budget;
        let mut x = vec![0f32; (m * hidden) as usize];
        net.embed(&packed.tokens, &mut x);
        let (mut inputs, mut kept) = (Vec::with_capacity(layers), Vec::with_capacity(layers));
        for layer in 0..layers {
            let (next, all) = net.forward(layer, &x, &packed.positions, &packed.spans);
            inputs.push(std::mem::replace(&mut x, next));
            kept.push((layer + whole as usize >= layers).then_some(all));
        }
        let (normed, inverses) = final_norm(net, &x);
        let mut logits = Vec::new();
        let scored = head::score(net, &normed, &packed.targets, temperature, keep_logits.then_some(&mut logits));
        let bytes = 4 * m * hidden * (layers as u64 + 3) + whole * per_layer + if keep_logits { head } else { 0 };
        Self { packed, temperature, inputs, kept, last: x, inverses, hidden: normed, scored, logits, bytes }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn scores(&self, out: &mut Scores) {
        write_scores(&self.packed, &self.scored, out);
    }

    /// The derivatives per target; their shapes are those of the scores.
    pub fn slopes(&self, d_log_probs: &[Vec<f32>], d_entropies: &[Vec<f32>]) -> Result<Vec<(f32, f32)>> {
        let find = |all: &[Vec<f32>], row: usize, index: usize| all.get(row).and_then(|r| r.get(index)).copied();
        let mut slopes = Vec::with_capacity(self.packed.targets.len());
        for target in &self.packed.targets {
            let d_log_prob = find(d_log_probs, target.row, target.index);
            let d_entropy =
                if d_entropies.is_empty() { Some(0.0) } else { find(d_entropies, target.row, target.index) };
            let (Some(d_log_prob), Some(d_entropy)) = (d_log_prob, d_entropy) else {
                return Err(Error::failed("the derivatives have another shape than the scores"));
            };
            if !(d_log_prob.is_finite() && d_entropy.is_finite()) {
                return Err(Error::failed(format!("the loss's derivative at row {} is not finite", target.row)));
            }
            slopes.push((d_log_prob, d_entropy));
        }
        Ok(slopes)
    }

    /// Adds to `gradients`; returns the bytes that it held at most.
    pub fn backward(self, net: &Net<'_>, slopes: &[(f32, f32)], gradients: &mut [f32]) -> u64 {
        let Self { packed, temperature, inputs, kept, last, inverses, hidden, scored, logits, bytes } = self;
        let m = packed.tokens.len();
        let mut d_hidden = vec![0f32; hidden.len()];
        let tape = head::Tape { hidden: &hidden, targets: &packed.targets, scored: &scored, temperature, logits };
        head::backward(net, tape, slopes, &mut d_hidden, gradients);
        drop(hidden);
        let mut d = vec![0f32; last.len()];
        let norm = &net.weights.final_norm;
        let weight = norm.of(net.values);
        rows::norm_backward(net.pool, &last, weight, &inverses, &d_hidden, &mut d, norm.gradient(gradients));
        drop((d_hidden, last));
        for (layer, (x, kept)) in inputs.into_iter().zip(kept).enumerate().rev() {
            let kept = kept.unwrap_or_else(|| net.forward(layer, &x, &packed.positions, &packed.spans).1);
            net.backward(layer, &x, kept, &packed.positions, &packed.spans, &mut d, gradients);
        }
        net.embedding_backward(&packed.tokens, &d, gradients);
        // One block's intermediates and their gradients at a time.
        bytes + 8 * (m * kept_floats(net.config)) as u64
    }
}

fn final_norm(net: &Net<'_>, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut normed, mut inverses) = (vec![0f32; x.len()], vec![0f32; x.len() / net.config.hidden_size]);
    rows::norm(net.pool, x, net.weights.final_norm.of(net.values), net.eps(), &mut normed, &mut inverses);
    (normed, inverses)
}

fn write_scores(packed: &Packed, scored: &[Scored], out: &mut Scores) {
    for (target, scored) in packed.targets.iter().zip(scored) {
        out.log_probs[target.row][target.index] = scored.log_prob;
        out.entropies[target.row][target.index] = scored.statistics.entropy;
    }
}

fn hidden(net: &Net<'_>, packed: &Packed) -> Vec<f32> {
    let mut x = vec![0f32; packed.tokens.len() * net.config.hidden_size];
    net.embed(&packed.tokens, &mut x);
    for layer in 0..net.config.num_layers {
        x = net.forward(layer, &x, &packed.positions, &packed.spans).0;
    }
    final_norm(net, &x).0
}

/// Scores without keeping anything; returns the bytes that it held at most.
pub(super) fn score(net: &Net<'_>, packed: &Packed, temperature: f32, out: &mut Scores) -> u64 {
    let scored = head::score(net, &hidden(net, packed), &packed.targets, temperature, None);
    write_scores(packed, &scored, out);
    let logits = 4 * head::piece_rows(net.config.vocab_size) * net.config.vocab_size;
    (4 * packed.tokens.len() * (kept_floats(net.config) + 3 * net.config.hidden_size) + logits) as u64
}

/// `[tokens, vocab]` of one row.
pub(super) fn logits(net: &Net<'_>, row: &[u32]) -> Vec<f32> {
    let packed = Packed {
        tokens: row.to_vec(),
        positions: (0..row.len() as u32).collect(),
        spans: vec![super::kernels::attention::Span::whole(0..row.len())],
        targets: Vec::new(),
    };
    let hidden = hidden(net, &packed);
    let mut logits = vec![0f32; row.len() * net.config.vocab_size];
    net.weights.head().product(net.pool, net.values, &hidden, row.len(), &mut logits, false);
    logits
}
