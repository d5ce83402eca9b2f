//! One pass of the model over pieces of several sequences, which extends their caches.

use std::sync::Arc;

use super::super::block::Net;
use super::super::kernels::Parts;
use super::super::kernels::attention::{Cache, Sequence, decode, forward};
use super::super::{head, rows};
use crate::model::ModelConfig;

/// Keys and values of a sequence: `[layers][kv_heads]`.
#[derive(Debug, Default)]
pub(super) struct Caches(pub Vec<Vec<Cache>>);

impl Caches {
    pub fn new(config: &ModelConfig) -> Self {
        Self(vec![vec![Cache::new(config.head_dim); config.num_kv_heads]; config.num_layers])
    }

    pub fn bytes(&self) -> u64 {
        self.0.iter().flatten().map(|cache| cache.bytes() as u64).sum()
    }
}

/// Bytes that one position takes.
pub(super) fn position_bytes(config: &ModelConfig) -> u64 {
    (config.num_layers * config.num_kv_heads * 2 * config.head_dim.next_multiple_of(32) * 4) as u64
}

/// Tokens to feed to one sequence.
#[derive(Debug)]
pub(super) struct Item<O> {
    pub owner: O,
    /// The positions before `tokens`, less the prefix.
    pub caches: Caches,
    pub prefix: Option<Arc<Caches>>,
    pub tokens: Vec<u32>,
    /// Position of the first token.
    pub start: usize,
    /// Whether the logits after the last token are wanted.
    pub logits: bool,
}

/// Buffers that live from pass to pass.
#[derive(Debug, Default)]
pub(super) struct Pass {
    x: Vec<f32>,
    normed: Vec<f32>,
    inverses: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    active: Vec<f32>,
    t: Vec<f32>,
    logits: Vec<f32>,
}

impl Pass {
    /// Feeds every item and extends its caches; gives the logits of those that want them, in order, `[vocab]` each.
    pub fn run<O>(&mut self, net: &Net<'_>, items: &mut [Item<O>]) -> &mut [f32] {
        let config = net.config;
        let tokens: Vec<u32> = items.iter().flat_map(|item| item.tokens.iter().copied()).collect();
        let positions: Vec<u32> =
            items.iter().flat_map(|i| (i.start..i.start + i.tokens.len()).map(|p| p as u32)).collect();
        let m = tokens.len();
        let (q_width, kv_width) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        for (buffer, width) in [
            (&mut self.x, config.hidden_size),
            (&mut self.normed, config.hidden_size),
            (&mut self.inverses, 1),
            (&mut self.q, q_width),
            (&mut self.k, kv_width),
            (&mut self.v, kv_width),
            (&mut self.attended, q_width),
            (&mut self.gate, config.intermediate_size),
            (&mut self.up, config.intermediate_size),
            (&mut self.active, config.intermediate_size),
        ] {
            buffer.resize(m * width, 0.0);
        }
        net.embed(&tokens, &mut self.x);
        for layer in 0..config.num_layers {
            self.layer(net, layer, &positions, items);
        }
        self.logits(net, items)
    }

    fn layer<O>(&mut self, net: &Net<'_>, layer: usize, positions: &[u32], items: &mut [Item<O>]) {
        let (pool, m, weights) = (net.pool, positions.len(), net.layer(layer));
        let Self { x, normed, inverses, q, k, v, attended, gate, up, active, t, .. } = self;
        rows::norm(pool, x, net.norm(layer, 0), net.eps(), normed, inverses);
        net.qkv(layer, normed, positions, q, k, v, t, None);
        self::extend(net, layer, k, v, items);
        self::attend(net, layer, q, items, attended);
        weights.o.forward(pool, net.values, net.factors.of(layer, 1), attended, m, t, &mut [&mut normed[..]]);
        rows::add(pool, normed, x);
        rows::norm(pool, x, net.norm(layer, 1), net.eps(), normed, inverses);
        weights.gate_up.forward(
            pool,
            net.values,
            net.factors.of(layer, 2),
            normed,
            m,
            t,
            &mut [&mut gate[..], &mut up[..]],
        );
        rows::silu_mul(pool, gate, up, active);
        weights.down.forward(pool, net.values, net.factors.of(layer, 3), active, m, t, &mut [&mut normed[..]]);
        rows::add(pool, normed, x);
    }

    fn logits<O>(&mut self, net: &Net<'_>, items: &[Item<O>]) -> &mut [f32] {
        let (hidden, vocab) = (net.config.hidden_size, net.config.vocab_size);
        let mut last = Vec::new();
        let mut end = 0;
        for item in items {
            end += item.tokens.len();
            if item.logits {
                last.extend_from_slice(&self.x[(end - 1) * hidden..end * hidden]);
            }
        }
        let count = last.len() / hidden;
        let (mut normed, mut inverses) = (vec![0f32; last.len()], vec![0f32; count]);
        rows::norm(net.pool, &last, net.weights.final_norm.of(net.values), net.eps(), &mut normed, &mut inverses);
        // Kept from pass to pass: fresh pages cost as much as drawing from them.
        if self.logits.len() < count * vocab {
            self.logits.resize(count * vocab, 0.0);
        }
        let logits = &mut self.logits[..count * vocab];
        let piece = head::piece_rows(vocab);
        for (rows, out) in normed.chunks(piece * hidden).zip(logits.chunks_mut(piece * vocab)) {
            net.weights.head().product(net.pool, net.values, rows, rows.len() / hidden, out, false);
        }
        logits
    }
}

/// Appends the new keys and values to the items' caches.
fn extend<O>(net: &Net<'_>, layer: usize, k: &[f32], v: &[f32], items: &mut [Item<O>]) {
    let (dim, kv_heads) = (net.config.head_dim, net.config.num_kv_heads);
    let width = kv_heads * dim;
    let mut starts = Vec::with_capacity(items.len());
    let mut sum = 0;
    for item in items.iter() {
        starts.push((sum, item.tokens.len()));
        sum += item.tokens.len();
    }
    let mut caches: Vec<&mut Cache> = items.iter_mut().flat_map(|item| item.caches.0[layer].iter_mut()).collect();
    let count = caches.len();
    let parts = Parts::new(&mut caches);
    let one = |task: usize| {
        let ((start, rows), kv) = (starts[task / kv_heads], task % kv_heads);
        // SAFETY: one cache per task.
        let cache = unsafe { &mut parts.slice(task, 1)[0] };
        let at = start * width + kv * dim;
        if rows == 1 {
            cache.push(&k[at..at + dim], &v[at..at + dim]);
        } else {
            cache.extend(&k[at..], &v[at..], width, rows);
        }
    };
    if sum * width < 4096 {
        (0..count).for_each(one);
    } else {
        net.pool.for_each(count, &one);
    }
}

/// Attention of every item's tokens over its prefix and its own caches.
fn attend<O>(net: &Net<'_>, layer: usize, q: &[f32], items: &[Item<O>], out: &mut [f32]) {
    let heads = net.heads();
    let width = heads.heads * heads.dim;
    let mut at = 0;
    let mut rest = items;
    while let Some(first) = rest.first() {
        // Runs of single tokens decode together.
        let singles = rest.iter().take_while(|item| item.tokens.len() == 1).count();
        let rows = if singles > 0 { singles } else { first.tokens.len() };
        let (q, out) = (&q[at * width..][..rows * width], &mut out[at * width..][..rows * width]);
        if singles > 0 {
            let sequences: Vec<Sequence<'_>> = rest[..singles]
                .iter()
                .map(|item| Sequence {
                    prefix: item.prefix.as_ref().map_or(&[], |p| p.0[layer].as_slice()),
                    own: &item.caches.0[layer],
                })
                .collect();
            decode(net.pool, heads, q, &sequences, out);
        } else {
            let segments: Vec<&[Cache]> = first
                .prefix
                .iter()
                .map(|p| p.0[layer].as_slice())
                .chain(std::iter::once(first.caches.0[layer].as_slice()))
                .collect();
            forward(net.pool, heads, q, &segments, out, &mut []);
        }
        at += rows;
        rest = &rest[singles.max(1)..];
    }
}
