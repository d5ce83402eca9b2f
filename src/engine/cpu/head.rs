//! From hidden states to log-probs and entropies and back, in pieces of the vocabulary's height.

use super::batch::Target;
use super::block::Net;
use super::kernels::Parts;
use super::kernels::vector::{Statistics, log_softmax_backward_in_place, log_softmax_statistics};
use super::rows;

/// Bytes of logits that exist at a time.
const PIECE: usize = 32 << 20;

/// Rows of logits in a piece.
pub(super) fn piece_rows(vocab: usize) -> usize {
    (PIECE / (4 * vocab)).max(1)
}

/// One scored token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    pub log_prob: f32,
    pub statistics: Statistics,
}

/// Rows of `hidden` that the targets name, one behind the other.
fn gather(hidden: &[f32], width: usize, targets: &[Target]) -> Vec<f32> {
    let mut out = Vec::with_capacity(targets.len() * width);
    for target in targets {
        out.extend_from_slice(&hidden[target.at * width..][..width]);
    }
    out
}

fn logits(net: &Net<'_>, rows: &[f32], count: usize) -> Vec<f32> {
    let mut out = vec![0f32; count * net.config.vocab_size];
    net.weights.head().product(net.pool, net.values, rows, count, &mut out, false);
    out
}

/// Scores every target under softmax(logits / temperature). `hidden` `[tokens, hidden]` is normed. `keep` receives
/// the logits piece by piece, where it is given.
pub(super) fn score(
    net: &Net<'_>,
    hidden: &[f32],
    targets: &[Target],
    temperature: f32,
    mut keep: Option<&mut Vec<Vec<f32>>>,
) -> Vec<Scored> {
    let (width, vocab) = (net.config.hidden_size, net.config.vocab_size);
    let none = Statistics { max: 0.0, log_sum_exp: 0.0, entropy: 0.0 };
    let mut scored = vec![Scored { log_prob: 0.0, statistics: none }; targets.len()];
    let piece = piece_rows(vocab);
    for (targets, scored) in targets.chunks(piece).zip(scored.chunks_mut(piece)) {
        let logits = logits(net, &gather(hidden, width, targets), targets.len());
        let out = Parts::new(scored);
        rows::each(net.pool, targets.len(), vocab, &|r| {
            let row = &logits[r * vocab..][..vocab];
            let statistics = log_softmax_statistics(row, temperature);
            let log_prob = row[targets[r].token as usize] / temperature - statistics.log_sum_exp;
            // SAFETY: one element per row.
            let out = unsafe { out.slice(r, 1) };
            out[0] = Scored { log_prob, statistics };
        });
        if let Some(keep) = &mut keep {
            keep.push(logits);
        }
    }
    scored
}

/// What [`backward`] needs of the forward pass.
pub(super) struct Tape<'a> {
    pub hidden: &'a [f32],
    pub targets: &'a [Target],
    pub scored: &'a [Scored],
    pub temperature: f32,
    /// The logits piece by piece; computed again where this is empty.
    pub logits: Vec<Vec<f32>>,
}

/// Adds to `d_hidden` the gradient of the normed hidden states; `slopes` has (d_log_prob, d_entropy) per target.
pub(super) fn backward(
    net: &Net<'_>,
    tape: Tape<'_>,
    slopes: &[(f32, f32)],
    d_hidden: &mut [f32],
    gradients: &mut [f32],
) {
    let (width, vocab) = (net.config.hidden_size, net.config.vocab_size);
    let piece = piece_rows(vocab);
    let mut kept = tape.logits.into_iter();
    for ((targets, scored), slopes) in
        tape.targets.chunks(piece).zip(tape.scored.chunks(piece)).zip(slopes.chunks(piece))
    {
        let kept = kept.next();
        // Masked tokens cost nothing.
        let active: Vec<usize> = (0..targets.len()).filter(|&r| slopes[r] != (0.0, 0.0)).collect();
        if active.is_empty() {
            continue;
        }
        let chosen: Vec<Target> = active.iter().map(|&r| targets[r]).collect();
        let inputs = gather(tape.hidden, width, &chosen);
        let mut d_logits = match kept {
            Some(all) if active.len() == targets.len() => all,
            Some(all) => active.iter().flat_map(|&r| &all[r * vocab..][..vocab]).copied().collect(),
            None => logits(net, &inputs, active.len()),
        };
        let parts = Parts::new(&mut d_logits);
        rows::each(net.pool, active.len(), vocab, &|i| {
            let r = active[i];
            // SAFETY: one row per call.
            let row = unsafe { parts.slice(i * vocab, vocab) };
            let (d_log_prob, d_entropy) = slopes[r];
            let token = targets[r].token as usize;
            log_softmax_backward_in_place(row, tape.temperature, scored[r].statistics, token, d_log_prob, d_entropy);
        });
        let head = net.weights.head();
        head.add_gradient(net.pool, gradients, &d_logits, &inputs, active.len());
        let mut d_inputs = vec![0f32; inputs.len()];
        head.product_transposed(net.pool, net.values, &d_logits, active.len(), &mut d_inputs, false);
        for (target, d) in chosen.iter().zip(d_inputs.chunks_exact(width)) {
            super::kernels::vector::add(d, &mut d_hidden[target.at * width..][..width]);
        }
    }
}
