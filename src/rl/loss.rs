//! The policy loss of one row and its derivatives, in f64.
//!
//! Everything that depends on the whole optimizer step (row and token counts, the entropy mask) is an input, so a
//! step may be split into micro-batches anywhere without changing the result.

use super::options::{Correction, CorrectionKind, KlEstimator, Loss, Ratio};

/// The loss's settings, every default resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossSpec {
    pub loss: Loss,
    pub ratio: Ratio,
    /// clip(ratio, 1 - low, 1 + high).
    pub clip_low: f64,
    pub clip_high: f64,
    pub beta: f64,
    pub kl: KlEstimator,
    pub kl_bias_correction: bool,
    pub correction: Option<Correction>,
    pub off_policy_mask: Option<f64>,
    pub dual_clip: Option<f64>,
    pub cispo: Option<f64>,
    pub entropy_bonus: f64,
    /// Divisor of dr_grpo.
    pub max_completion: usize,
}

/// One completion. All slices have one entry per completion token.
#[derive(Clone, Copy, Debug)]
pub struct RowInput<'a> {
    /// Under the policy being trained.
    pub log_probs: &'a [f64],
    /// Under the policy before the first update on this rollout.
    pub old: &'a [f64],
    /// Under the reference policy; needed with beta > 0.
    pub reference: Option<&'a [f64]>,
    /// As the sampler reported them; needed by `correction` and `off_policy_mask`.
    pub sampler: Option<&'a [f64]>,
    pub entropies: &'a [f64],
    pub advantage: f64,
    /// Tokens in the top entropy quantile; all where absent.
    pub entropy_mask: Option<&'a [bool]>,
}

/// Sizes over which the loss is averaged: the whole optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All rows, masked ones included.
    pub rows: usize,
    /// Tokens of the rows that are not masked.
    pub tokens: usize,
}

/// A row's share of the step's loss, its derivatives, and sums for the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowLoss {
    pub loss: f64,
    /// Before aggregation, mask and corrections applied.
    pub per_token: Vec<f64>,
    pub d_log_probs: Vec<f64>,
    /// Empty without an entropy bonus.
    pub d_entropies: Vec<f64>,
    pub ratios: Vec<f64>,
    /// Sum over tokens of the KL estimate.
    pub kl: f64,
    pub entropy: f64,
    /// Tokens (sequence ratio: 1 or 0) clipped at the lower and upper bound.
    pub clipped_low: usize,
    pub clipped_high: usize,
    pub tokens: usize,
}

/// KL estimate and its derivative by the policy's log-prob (Schulman 2020).
pub fn kl(estimator: KlEstimator, log_prob: f64, reference: f64) -> (f64, f64) {
    let d = reference - log_prob;
    match estimator {
        KlEstimator::K1 => (-d, 1.0),
        KlEstimator::K2 => (0.5 * d * d, -d),
        KlEstimator::K3 => (d.exp_m1() - d, -d.exp_m1()),
    }
}

/// Weights exp(old - sampler), truncated or masked as `correction` says; one per token.
pub fn correction_weights(correction: &Correction, old: &[f64], sampler: &[f64]) -> Vec<f64> {
    let (max, min) = (correction.max, correction.min.unwrap_or(0.0));
    let truncate = |w: f64| w.min(max);
    let mask = |w: f64| if w > max || w < min { 0.0 } else { w };
    let differences = old.iter().zip(sampler).map(|(o, s)| o - s);
    match correction.kind {
        CorrectionKind::TokenTruncate => differences.map(|d| truncate(d.exp())).collect(),
        CorrectionKind::TokenMask => differences.map(|d| mask(d.exp())).collect(),
        CorrectionKind::SequenceTruncate => vec![truncate(differences.sum::<f64>().exp()); old.len()],
        CorrectionKind::SequenceMask => vec![mask(differences.sum::<f64>().exp()); old.len()],
    }
}

/// Off-policy sequence masking (DeepSeek-V3.2): false for a row with a negative advantage that the policy has moved
/// away from by more than `threshold` nats per token.
pub fn keeps_sequence(threshold: f64, advantage: f64, log_probs: &[f64], sampler: &[f64]) -> bool {
    let n = log_probs.len().max(1) as f64;
    let moved = sampler.iter().zip(log_probs).map(|(s, l)| s - l).sum::<f64>() / n;
    advantage >= 0.0 || moved <= threshold
}

/// One token's surrogate and its derivatives: (value, d/d ratio, d/d log-prob at a fixed ratio).
fn surrogate(spec: &LossSpec, ratio: f64, advantage: f64, log_prob: f64) -> (f64, f64, f64) {
    if let Some(cap) = spec.cispo {
        let weight = ratio.min(cap) * advantage;
        return (-weight * log_prob, 0.0, -weight);
    }
    let capped = spec.dual_clip.map_or(ratio, |c| ratio.min(c));
    let clipped = ratio.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high);
    if capped * advantage <= clipped * advantage {
        let slope = if capped < ratio { 0.0 } else { -advantage };
        (-capped * advantage, slope, 0.0)
    } else {
        (-clipped * advantage, 0.0, 0.0)
    }
}

/// The weight of each token of a row of `tokens` tokens in the step's loss.
fn token_weight(spec: &LossSpec, tokens: usize, totals: Totals) -> f64 {
    let divisor = match spec.loss {
        Loss::Grpo => totals.rows * tokens,
        Loss::Bnpo | Loss::Dapo => totals.tokens,
        Loss::DrGrpo => totals.rows * spec.max_completion,
    };
    // Nothing to train on is a loss of 0, never NaN.
    if divisor == 0 { 0.0 } else { 1.0 / divisor as f64 }
}

/// The loss of one row that is not masked. Rows that are masked are simply never given.
pub fn row_loss(spec: &LossSpec, row: &RowInput<'_>, totals: Totals) -> RowLoss {
    let n = row.log_probs.len();
    if n == 0 {
        return RowLoss::default();
    }
    let weight = token_weight(spec, n, totals);
    let differences: Vec<f64> = row.log_probs.iter().zip(row.old).map(|(l, o)| l - o).collect();
    let ratios: Vec<f64> = match spec.ratio {
        Ratio::Token => differences.iter().map(|d| d.exp()).collect(),
        Ratio::Sequence => vec![(differences.iter().sum::<f64>() / n as f64).exp(); n],
    };
    let kept = match (spec.off_policy_mask, row.sampler) {
        (Some(threshold), Some(sampler)) => keeps_sequence(threshold, row.advantage, row.log_probs, sampler),
        _ => true,
    };
    let weights = match (&spec.correction, row.sampler) {
        (Some(correction), Some(sampler)) => correction_weights(correction, row.old, sampler),
        _ => vec![1.0; n],
    };

    let mut out = RowLoss { tokens: n, entropy: row.entropies.iter().sum(), ..RowLoss::default() };
    let mut by_ratio = vec![0.0; n];
    out.d_log_probs = vec![0.0; n];
    for j in 0..n {
        let ratio = ratios[j];
        let (value, slope, direct) = surrogate(spec, ratio, row.advantage, row.log_probs[j]);
        let counts = kept && row.entropy_mask.is_none_or(|mask| mask[j]);
        let factor = if counts { weights[j] } else { 0.0 };
        let mut token = factor * value;
        by_ratio[j] = factor * slope;
        out.d_log_probs[j] = factor * direct;
        if let (true, Some(reference)) = (spec.beta > 0.0, row.reference) {
            let (estimate, d_estimate) = kl(spec.kl, row.log_probs[j], reference[j]);
            let scale = if spec.kl_bias_correction { ratio } else { 1.0 };
            out.kl += scale * estimate;
            token += spec.beta * scale * estimate;
            out.d_log_probs[j] += spec.beta * scale * d_estimate;
            if spec.kl_bias_correction {
                by_ratio[j] += spec.beta * estimate;
            }
        }
        out.loss += weight * token;
        out.per_token.push(token);
    }
    match spec.ratio {
        Ratio::Token => {
            for j in 0..n {
                out.d_log_probs[j] += by_ratio[j] * ratios[j];
            }
        }
        Ratio::Sequence => {
            let shared = by_ratio.iter().sum::<f64>() * ratios[0] / n as f64;
            out.d_log_probs.iter_mut().for_each(|d| *d += shared);
        }
    }
    out.d_log_probs.iter_mut().for_each(|d| *d *= weight);
    if spec.entropy_bonus != 0.0 {
        out.loss -= spec.entropy_bonus * weight * out.entropy;
        out.d_entropies = vec![-spec.entropy_bonus * weight; n];
    }
    count_clipped(spec, row.advantage, &ratios, &mut out);
    out.ratios = ratios;
    out
}

fn count_clipped(spec: &LossSpec, advantage: f64, ratios: &[f64], out: &mut RowLoss) {
    if spec.cispo.is_some() {
        let cap = spec.cispo.unwrap_or(f64::INFINITY);
        out.clipped_high = ratios.iter().filter(|&&r| r > cap && advantage > 0.0).count();
        return;
    }
    let counted = match spec.ratio {
        Ratio::Token => ratios,
        Ratio::Sequence => &ratios[..1],
    };
    out.clipped_low = counted.iter().filter(|&&r| r < 1.0 - spec.clip_low && advantage < 0.0).count();
    out.clipped_high = counted.iter().filter(|&&r| r > 1.0 + spec.clip_high && advantage > 0.0).count();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> LossSpec {
        LossSpec {
            loss: Loss::Dapo,
            ratio: Ratio::Token,
            clip_low: 0.2,
            clip_high: 0.28,
            beta: 0.05,
            kl: KlEstimator::K3,
            kl_bias_correction: true,
            correction: None,
            off_policy_mask: None,
            dual_clip: None,
            cispo: None,
            entropy_bonus: 0.01,
            max_completion: 5,
        }
    }

    #[test]
    fn derivatives_match_finite_differences_in_every_form() {
        let log_probs = [-1.0, -0.4, -2.0];
        let old = [-1.1, -0.35, -2.05];
        let reference = [-0.9, -0.6, -1.5];
        let entropies = [0.3, 0.7, 0.1];
        let totals = Totals { rows: 2, tokens: 8 };
        for ratio in [Ratio::Token, Ratio::Sequence] {
            for kl in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
                for loss in [Loss::Grpo, Loss::Bnpo, Loss::DrGrpo, Loss::Dapo] {
                    let spec = LossSpec { ratio, kl, loss, ..spec() };
                    let at = |x: &[f64]| {
                        let row = RowInput {
                            log_probs: x,
                            old: &old,
                            reference: Some(&reference),
                            sampler: None,
                            entropies: &entropies,
                            advantage: 0.7,
                            entropy_mask: None,
                        };
                        row_loss(&spec, &row, totals)
                    };
                    let exact = at(&log_probs).d_log_probs;
                    for j in 0..3 {
                        let (mut up, mut down) = (log_probs, log_probs);
                        up[j] += 1e-6;
                        down[j] -= 1e-6;
                        let numeric = (at(&up).loss - at(&down).loss) / 2e-6;
                        assert!((numeric - exact[j]).abs() < 1e-9, "{ratio:?} {kl:?} {loss:?}: {numeric} {}", exact[j]);
                    }
                }
            }
        }
    }
}
