//! What is trained on: completion lengths, the entropy mask, dynamic sampling, and the punishment of long answers.

use super::advantage::is_constant;

/// Length of a completion up to and including the first EOS id, and whether it was cut (no EOS). The pad id has no
/// say: it may equal an EOS id.
pub fn completion_length(tokens: &[u32], eos: &[u32]) -> (usize, bool) {
    match tokens.iter().position(|t| eos.contains(t)) {
        Some(at) => (at + 1, false),
        None => (tokens.len(), true),
    }
}

/// Soft overlong punishment (DAPO, equation 13), between -factor and 0.
pub fn overlong_penalty(length: usize, max_completion: usize, cache: usize, factor: f64) -> f64 {
    if factor == 0.0 || cache == 0 {
        return 0.0;
    }
    let excess = length as f64 - (max_completion as f64 - cache as f64);
    // 0.0 - x: a plain minus would give -0.0 for short completions.
    0.0 - (excess.clamp(0.0, cache as f64) / cache as f64) * factor
}

/// DAPO's filter: accuracies that differ, or a group of one (verl). Never judged by shaped rewards.
pub fn has_signal(accuracies: &[f64]) -> bool {
    let values: Vec<Option<f64>> = accuracies.iter().map(|&a| Some(a)).collect();
    accuracies.len() == 1 || !is_constant(&values)
}

/// The `quantile`-th entropy (linear interpolation, as torch.quantile) over all tokens of a step.
pub fn quantile(values: &[f64], quantile: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = quantile.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64))
}

/// True for the share `keep` of all tokens that have the highest entropy (Wang et al. 2025).
pub fn entropy_mask(entropies: &[Vec<f64>], keep: f64) -> Vec<Vec<bool>> {
    let all: Vec<f64> = entropies.iter().flatten().copied().collect();
    let threshold = quantile(&all, 1.0 - keep).unwrap_or(0.0);
    entropies.iter().map(|row| row.iter().map(|&e| e >= threshold).collect()).collect()
}

/// How many prompts the next refill should take: what is missing over the share of groups with signal so far, at
/// least what is missing and at most a whole batch (or what is missing, where that is more).
pub fn refill_size(missing: usize, generated: usize, qualified: usize, batch: usize) -> usize {
    let wanted = (missing * generated).div_ceil(qualified.max(1));
    wanted.clamp(missing, batch.max(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_completions_are_not_punished() {
        assert_eq!(overlong_penalty(3, 10, 20, 1.0).to_bits(), (-0.65f64).to_bits());
        assert_eq!(overlong_penalty(0, 100, 20, 1.0).to_bits(), 0.0f64.to_bits());
        assert_eq!(overlong_penalty(100, 100, 20, 0.0), 0.0);
    }

    #[test]
    fn refills_ask_for_no_more_than_a_batch() {
        assert_eq!(refill_size(2, 8, 6, 8), 3);
        assert_eq!(refill_size(8, 8, 0, 8), 8);
        assert_eq!(refill_size(1, 8, 7, 8), 2);
    }

    #[test]
    fn the_mask_of_no_tokens_is_empty() {
        assert!(entropy_mask(&[vec![], vec![]], 0.5).iter().all(Vec::is_empty));
    }
}
