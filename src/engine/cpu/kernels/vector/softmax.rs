//! Softmax and log-softmax over a row.

use super::{LANES, exp, madd, max_lanes, sum_lanes, versions};

/// Of `z = logits / temperature`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The largest z.
    pub max: f32,
    /// ln(sum(e^z)); the log-prob of token t is `z[t] - log_sum_exp`.
    pub log_sum_exp: f32,
    /// Entropy of softmax(z) in nats.
    pub entropy: f32,
}

versions! {
    fn maximum, maximum_with(row: &[f32]) -> f32 {
        let (chunks, rest) = row.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            }
        }
        rest.iter().copied().fold(max_lanes(lanes), f32::max)
    }
}

versions! {
    /// Index of the largest value, the lowest one of equals; NaN never wins. 0 for an empty row.
    pub fn max_index, max_index_with(row: &[f32]) -> usize {
        let best = maximum(row);
        row.iter().position(|&x| x == best).unwrap_or(0)
    }
}

/// Replaces x with `e^((x - max) * scale)`; returns (max, sum). `scale` is positive. -inf gives 0; a row of -inf
/// only gives NaN.
pub(in super::super) fn exp_in_place(row: &mut [f32], scale: f32) -> (f32, f32) {
    let max = maximum(row);
    (max, exp_and_sum(row, scale, max))
}

versions! {
    fn exp_and_sum, exp_and_sum_with(row: &mut [f32], scale: f32, max: f32) -> f32 {
        let (chunks, rest) = row.as_chunks_mut::<LANES>();
        let mut lanes = [0f32; LANES];
        for chunk in chunks {
            for i in 0..LANES {
                chunk[i] = exp::<FMA>((chunk[i] - max) * scale);
                lanes[i] += chunk[i];
            }
        }
        for (i, x) in rest.iter_mut().enumerate() {
            *x = exp::<FMA>((*x - max) * scale);
            lanes[i] += *x;
        }
        sum_lanes(lanes)
    }
}

versions! {
    /// Replaces x with `e^(x * scale - log_sum_exp)`.
    pub(in super::super) fn probabilities_in_place, probabilities_in_place_with(
        row: &mut [f32], scale: f32, log_sum_exp: f32,
    ) {
        for x in row {
            *x = exp::<FMA>(madd::<FMA>(*x, scale, -log_sum_exp));
        }
    }
}

/// Replaces the row with softmax(row * scale), `scale` positive; returns ln(sum(e^(row * scale))).
pub fn softmax_in_place(row: &mut [f32], scale: f32) -> f32 {
    let (max, sum) = exp_in_place(row, scale);
    super::scale(1.0 / sum, row);
    max * scale + sum.ln()
}

/// Maximum, log-sum-exp and entropy of `logits / temperature` (positive), in two passes.
pub fn log_softmax_statistics(logits: &[f32], temperature: f32) -> Statistics {
    let max = maximum(logits);
    let (sum, weighted) = exp_sums(logits, 1.0 / temperature, max);
    let log = sum.ln();
    Statistics { max: max / temperature, log_sum_exp: max / temperature + log, entropy: log - weighted / sum }
}

versions! {
    /// Sums of e^z and z * e^z with z = (x - max) * scale; a z of -inf adds nothing.
    fn exp_sums, exp_sums_with(row: &[f32], scale: f32, max: f32) -> (f32, f32) {
        let (chunks, rest) = row.as_chunks::<LANES>();
        let (mut sums, mut weighted) = ([0f32; LANES], [0f32; LANES]);
        for chunk in chunks {
            for i in 0..LANES {
                let z = (chunk[i] - max) * scale;
                let e = exp::<FMA>(z);
                sums[i] += e;
                weighted[i] += if e == 0.0 { 0.0 } else { z * e };
            }
        }
        for (i, &x) in rest.iter().enumerate() {
            let z = (x - max) * scale;
            let e = exp::<FMA>(z);
            sums[i] += e;
            weighted[i] += if e == 0.0 { 0.0 } else { z * e };
        }
        (sum_lanes(sums), sum_lanes(weighted))
    }
}

/// Replaces logits with the gradient of `d_log_prob * log_prob(token) + d_entropy * entropy`, where `statistics`
/// are [`log_softmax_statistics`] of the same logits and temperature:
/// `(d_log_prob * (1[i = token] - p_i) - d_entropy * p_i * (ln p_i + entropy)) / temperature`.
///
/// # Panics
/// Where `token` is outside of the row.
pub fn log_softmax_backward_in_place(
    logits: &mut [f32],
    temperature: f32,
    statistics: Statistics,
    token: usize,
    d_log_prob: f32,
    d_entropy: f32,
) {
    let scale = 1.0 / temperature;
    let Statistics { log_sum_exp, entropy, .. } = statistics;
    gradient(logits, scale, log_sum_exp, d_log_prob * scale, d_entropy * scale, entropy);
    logits[token] += d_log_prob * scale;
}

versions! {
    fn gradient, gradient_with(
        logits: &mut [f32], scale: f32, log_sum_exp: f32, d_log_prob: f32, d_entropy: f32, entropy: f32,
    ) {
        for x in logits {
            let log_p = madd::<FMA>(*x, scale, -log_sum_exp);
            let p = exp::<FMA>(log_p);
            let slope = madd::<FMA>(d_entropy, log_p + entropy, d_log_prob);
            *x = if p == 0.0 { 0.0 } else { -p * slope };
        }
    }
}
