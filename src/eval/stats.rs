//! pass@k, majority votes, intervals and paired tests.

use crate::{Error, Result};

/// Draws of every bootstrap.
pub const DRAWS: usize = 2_000;
/// Normal quantile of a two-sided 95% interval.
const Z95: f64 = 1.959_963_984_540_054;

/// Exact for every count that fits into memory in practice (below 2^53).
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn float(n: usize) -> f64 {
    n as f64
}

/// Unbiased pass@k from `correct` of `samples` completions: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, eq. 1).
///
/// # Errors
/// `k` of 0, or above `samples`: there is no estimate for it.
pub fn pass_at(samples: usize, correct: usize, k: usize) -> Result<f64> {
    if k == 0 || k > samples || correct > samples {
        return Err(Error::usage(format!("pass@{k} cannot be computed from {samples} completions per question"))
            .hint("choose k between 1 and `samples`"));
    }
    if samples - correct < k {
        return Ok(1.0);
    }
    let miss: f64 = (samples - correct + 1..=samples).map(|i| 1.0 - float(k) / float(i)).product();
    Ok(1.0 - miss)
}

/// The class with most votes; `None` abstains. Ties go to the class that was voted for first.
pub fn majority<'a>(votes: impl IntoIterator<Item = Option<&'a str>>) -> Option<&'a str> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for vote in votes.into_iter().flatten() {
        match counts.iter_mut().find(|(class, _)| *class == vote) {
            Some((_, n)) => *n += 1,
            None => counts.push((vote, 1)),
        }
    }
    // `max_by_key` takes the last of equals, so the order is turned around.
    counts.iter().rev().max_by_key(|(_, n)| *n).map(|(class, _)| *class)
}

pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / float(values.len()) }
}

/// Wilson's score interval (Wilson 1927) at 95% for `hits` of `n`.
pub fn wilson(hits: usize, n: usize) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (p, n, z2) = (float(hits) / float(n), float(n), Z95 * Z95);
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z95 / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

/// Standard error of the mean of per-question accuracies: completions of one question are not independent, so the
/// question is the unit (cluster-robust with G/(G-1) for equal sizes; Miller 2024, "Adding error bars to evals").
pub fn clustered_error(per_question: &[f64]) -> f64 {
    let n = per_question.len();
    if n < 2 {
        return 0.0;
    }
    let centre = mean(per_question);
    let squares: f64 = per_question.iter().map(|x| (x - centre).powi(2)).sum();
    (squares / (float(n) * float(n - 1))).sqrt()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..n (multiply-shift; the bias is below 2^-32 for n < 2^32).
    fn below(&mut self, n: usize) -> usize {
        usize::try_from((u128::from(self.next()) * n as u128) >> 64).unwrap_or(0)
    }
}

/// Means of `draws` resamples of the questions, sorted.
fn resampled(values: &[f64], seed: u64, draws: usize) -> Vec<f64> {
    let mut random = Random(seed);
    let mut means: Vec<f64> = (0..draws)
        .map(|_| (0..values.len()).map(|_| values[random.below(values.len())]).sum::<f64>() / float(values.len()))
        .collect();
    means.sort_by(f64::total_cmp);
    means
}

/// Linear between order statistics, as numpy's default.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * float(sorted.len() - 1);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= at < len")]
    let low = at as usize;
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * (at - float(low))
}

/// 95% percentile bootstrap of the mean over questions.
pub fn bootstrap(per_question: &[f64], seed: u64) -> (f64, f64) {
    if per_question.is_empty() {
        return (0.0, 1.0);
    }
    let means = resampled(per_question, seed, DRAWS);
    (quantile(&means, 0.025), quantile(&means, 0.975))
}

/// Two models on the same questions.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Paired {
    /// Questions that both have.
    pub n: usize,
    /// mean(b) - mean(a).
    pub difference: f64,
    /// 95% paired bootstrap of the difference.
    pub low: f64,
    pub high: f64,
    /// Two-sided bootstrap p of no difference.
    pub bootstrap_p: f64,
    /// Questions only `a` answers (majority of its completions), and only `b`.
    pub only_a: usize,
    pub only_b: usize,
    /// Exact two-sided McNemar test of those (McNemar 1947).
    pub mcnemar_p: f64,
}

/// Compares per-question accuracies in the same order.
///
/// # Errors
/// Different lengths.
pub fn paired(a: &[f64], b: &[f64], seed: u64) -> Result<Paired> {
    if a.len() != b.len() {
        return Err(Error::failed(format!("a paired test needs the same questions, got {} and {}", a.len(), b.len())));
    }
    if a.is_empty() {
        return Ok(Paired { high: 0.0, bootstrap_p: 1.0, mcnemar_p: 1.0, ..Paired::default() });
    }
    let differences: Vec<f64> = b.iter().zip(a).map(|(b, a)| b - a).collect();
    let means = resampled(&differences, seed, DRAWS);
    let below = means.iter().filter(|m| **m <= 0.0).count();
    let above = means.iter().filter(|m| **m >= 0.0).count();
    let only_a = a.iter().zip(b).filter(|(a, b)| **a > 0.5 && **b <= 0.5).count();
    let only_b = a.iter().zip(b).filter(|(a, b)| **a <= 0.5 && **b > 0.5).count();
    Ok(Paired {
        n: a.len(),
        difference: mean(&differences),
        low: quantile(&means, 0.025),
        high: quantile(&means, 0.975),
        bootstrap_p: (2.0 * float(below.min(above) + 1) / float(DRAWS + 1)).min(1.0),
        only_a,
        only_b,
        mcnemar_p: mcnemar(only_a, only_b),
    })
}

/// Exact two-sided McNemar test: a fair coin over the discordant pairs.
pub fn mcnemar(only_a: usize, only_b: usize) -> f64 {
    let n = only_a + only_b;
    let few = only_a.min(only_b);
    // log C(n, i) - n log 2, summed from the small side.
    let mut log_choose = -float(n) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for i in 0..=few {
        tail += log_choose.exp();
        log_choose += (float(n - i) / float(i + 1)).ln();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_k_is_one_minus_the_chance_of_missing() {
        for (n, c, k, want) in [(10, 3, 1, 0.3), (10, 3, 5, 1.0 - 21.0 / 252.0), (16, 1, 8, 0.5), (5, 5, 5, 1.0), (4, 0, 2, 0.0)] {
            assert!((pass_at(n, c, k).unwrap() - want).abs() < 1e-12, "{n} {c} {k}");
        }
        assert!(pass_at(4, 1, 5).is_err());
        assert!(pass_at(4, 1, 0).is_err());
    }

    #[test]
    fn ties_go_to_the_first_vote_and_abstentions_do_not_vote() {
        assert_eq!(majority([None, Some("a"), Some("b"), None, Some("b"), Some("a"), None]), Some("a"));
        assert_eq!(majority([Some("a"), Some("b"), Some("b")]), Some("b"));
        assert_eq!(majority([None, None]), None);
    }

    #[test]
    fn bootstrap_is_seeded_and_holds_the_mean() {
        let values: Vec<f64> = (0..200).map(|i| f64::from(i % 4) / 3.0).collect();
        let (low, high) = bootstrap(&values, 1);
        assert_eq!((low, high), bootstrap(&values, 1));
        assert!(low < 0.5 && 0.5 < high && high - low < 0.15);
        // About +-1.96 standard errors.
        assert!((high - low - 2.0 * Z95 * clustered_error(&values)).abs() < 0.01);
    }
}
