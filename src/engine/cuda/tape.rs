//! What a training pass keeps between forward and backward: the blocks' inputs always, of the last blocks everything as
//! far as the memory goes; the others are computed again.

use std::collections::BTreeMap;

use super::block::{Kept, Net};
use super::gpu::{Buffer, Grid, Ptr, args};
use super::head::{self, Scored};
use super::pack::Meta;
use crate::engine::Scores;
use crate::engine::cpu::batch::Packed;
use crate::{Error, Result};

#[derive(Debug)]
pub struct Tape {
    packed: Packed,
    meta: Meta,
    /// f32 `[tokens, hidden]` before each block.
    inputs: Vec<Buffer>,
    kept: Vec<Option<Kept>>,
    /// After the last block.
    last: Buffer,
    inverses: Buffer,
    /// `last`, normed.
    hidden: Buffer,
    scored: Scored,
}

/// After the last block, and normed, with the norms' inverses.
struct Ends {
    last: Buffer,
    hidden: Buffer,
    inverses: Buffer,
}

fn embedded(net: &Net<'_>, meta: &Meta) -> Result<Buffer> {
    let x = net.gpu.alloc_floats(meta.tokens * net.config.hidden_size)?;
    net.embed(meta.ids.ptr(), meta.tokens, x.ptr())?;
    Ok(x)
}

fn ends(net: &Net<'_>, last: Buffer, m: usize) -> Result<Ends> {
    let hidden = net.gpu.alloc_act(m * net.config.hidden_size)?;
    let inverses = net.gpu.alloc_floats(m)?;
    let weight = net.weights.final_norm.of(net.parameters);
    net.norm(last.ptr(), Ptr::NULL, weight, m, hidden.ptr(), inverses.ptr())?;
    Ok(Ends { last, hidden, inverses })
}

fn no_cache(_: Ptr) -> Result<()> {
    Ok(())
}

impl Tape {
    /// The forward pass. `budget` bytes are for what could be computed again.
    pub fn record(net: &Net<'_>, packed: Packed, temperature: f32, budget: u64) -> Result<Self> {
        let meta = Meta::upload(net.gpu, &packed)?;
        let layers = net.config.num_layers;
        let per_layer = (meta.tokens * kept_bytes(net)) as u64;
        let whole = budget.checked_div(per_layer).unwrap_or(0).min(layers as u64) as usize;
        let mut x = embedded(net, &meta)?;
        let (mut inputs, mut kept) = (Vec::with_capacity(layers), Vec::with_capacity(layers));
        for layer in 0..layers {
            let (next, all) = net.forward(layer, &x, &meta, no_cache)?;
            inputs.push(std::mem::replace(&mut x, next));
            kept.push((layer + whole >= layers).then_some(all));
        }
        let Ends { last, hidden, inverses } = ends(net, x, meta.tokens)?;
        let scored = head::score(net, &hidden, &packed.targets, temperature)?;
        Ok(Self { packed, meta, inputs, kept, last, inverses, hidden, scored })
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

    /// Adds to the arena's gradients.
    pub fn backward(self, net: &Net<'_>, slopes: &[(f32, f32)]) -> Result<()> {
        let Self { packed, meta, inputs, kept, last, inverses, hidden, scored } = self;
        let m = meta.tokens;
        let d_hidden = head::backward(net, &hidden, m, &packed.targets, &scored, slopes)?;
        drop((hidden, scored));
        let d = net.gpu.zeros(4 * m * net.config.hidden_size)?;
        net.final_norm_backward(&last, &inverses, &d_hidden, &d, m)?;
        drop((d_hidden, last));
        for (layer, (x, kept)) in inputs.into_iter().zip(kept).enumerate().rev() {
            let kept = match kept {
                Some(kept) => kept,
                None => net.forward(layer, &x, &meta, no_cache)?.1,
            };
            net.backward(layer, &x, kept, &meta, &d)?;
        }
        embedding_backward(net, &packed.tokens, &d)
    }
}

/// The gradient of the embedding's rows, where it is trained.
fn embedding_backward(net: &Net<'_>, tokens: &[u32], d: &Buffer) -> Result<()> {
    let Some(gradient) = net.weights.embedding.gradient(net.parameters) else { return Ok(()) };
    let mut places: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
    for (i, &token) in tokens.iter().enumerate() {
        places.entry(token).or_default().push(i as i32);
    }
    let rows: Vec<i32> = places.keys().map(|&token| token as i32).collect();
    let (mut offsets, mut list) = (vec![0i32], Vec::new());
    for place in places.into_values() {
        list.extend(place);
        offsets.push(list.len() as i32);
    }
    let (gpu, width, count) = (net.gpu, net.config.hidden_size, rows.len());
    let (rows, offsets, list) = (gpu.upload(&rows)?, gpu.upload(&offsets)?, gpu.upload(&list)?);
    let args = args![gradient, d, &rows, &offsets, &list, width as i32];
    gpu.launch("embedding_backward", Grid::rows(count, width), args)
}

/// Bytes that [`Kept`] holds per token.
fn kept_bytes(net: &Net<'_>) -> usize {
    let config = net.config;
    let (q, kv) = net.widths();
    let raw = if config.qk_norm { net.gpu.act(q + kv) + 4 * (config.num_heads + config.num_kv_heads) } else { 0 };
    let acts = 2 * q + 2 * kv + 2 * config.intermediate_size;
    8 + raw + net.gpu.act(acts) + 4 * (config.num_heads + config.hidden_size)
}

fn write_scores(packed: &Packed, scored: &Scored, out: &mut Scores) {
    for (target, &(log_prob, entropy)) in packed.targets.iter().zip(&scored.values) {
        out.log_probs[target.row][target.index] = log_prob;
        out.entropies[target.row][target.index] = entropy;
    }
}

/// The normed hidden states after the last block; `cache` is given each layer's keys and values.
pub fn hidden(net: &Net<'_>, meta: &Meta, mut cache: impl FnMut(usize, Ptr) -> Result<()>) -> Result<Buffer> {
    let mut x = embedded(net, meta)?;
    for layer in 0..net.config.num_layers {
        x = net.forward(layer, &x, meta, |qkv| cache(layer, qkv))?.0;
    }
    Ok(ends(net, x, meta.tokens)?.hidden)
}

/// Scores without keeping anything.
pub fn score(net: &Net<'_>, packed: &Packed, temperature: f32, out: &mut Scores) -> Result<()> {
    let meta = Meta::upload(net.gpu, packed)?;
    let hidden = hidden(net, &meta, |_, _| Ok(()))?;
    write_scores(packed, &head::score(net, &hidden, &packed.targets, temperature)?, out);
    Ok(())
}

/// `[tokens, vocab]` of one row.
pub fn logits(net: &Net<'_>, row: &[u32]) -> Result<Vec<f32>> {
    let packed = Packed {
        tokens: row.to_vec(),
        positions: (0..row.len() as u32).collect(),
        spans: vec![crate::engine::cpu::kernels::attention::Span::whole(0..row.len())],
        targets: Vec::new(),
    };
    let meta = Meta::upload(net.gpu, &packed)?;
    let hidden = hidden(net, &meta, |_, _| Ok(()))?;
    let logits = head::logits(net, &hidden, row.len())?;
    net.gpu.download(logits.ptr(), row.len() * net.config.vocab_size)
}
