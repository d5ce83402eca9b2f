//! pass@k, majority votes, intervals and paired tests.

use crate::{Error, Result};

/// Draws of every bootstrap.
pub const DRAWS: usize = 2_000;
/// Normal quantile of a two-sided 95% interval.
const Z95: f64 = 1.959_963_984_540_054;

/// Exact for every count that fits into memory in practice (below 2^53).
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) fn float(n: usize) -> f64 {
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

/// 0.975 quantile of Student's t distribution: tabulated up to 30 degrees of freedom, by the expansion of Cornish and
/// Fisher beyond (Abramowitz and Stegun 26.7.5; off by less than 1e-6 there).
pub fn t95(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157, 2.228_139,
        2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922, 2.093_024, 2.085_963,
        2.079_614, 2.073_873, 2.068_658, 2.063_899, 2.059_539, 2.055_529, 2.051_831, 2.048_407, 2.045_230, 2.042_272,
    ];
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TABLE[degrees - 1],
        _ => {
            let (z, n) = (Z95, float(degrees));
            let terms = [
                (z.powi(3) + z) / 4.0,
                (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
                (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
            ];
            z + terms[0] / n + terms[1] / n.powi(2) + terms[2] / n.powi(3)
        }
    }
}

/// Standard deviation with n - 1; 0 for fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    let n = values.len();
    if n < 2 {
        return 0.0;
    }
    let centre = mean(values);
    (values.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / float(n - 1)).sqrt()
}

/// Half width of the 95% interval of the mean over independent runs (seeds), by Student's t; infinite for fewer than
/// two of them.
pub fn t_half_width(values: &[f64]) -> f64 {
    match values.len() {
        0 | 1 => f64::INFINITY,
        n => t95(n - 1) * deviation(values) / float(n).sqrt(),
    }
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

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1.0)
    }

    /// Every way to draw k of n completions of which the first `correct` are right, counted.
    fn enumerated(n: usize, correct: usize, k: usize) -> f64 {
        let (mut hits, mut draws) = (0, 0);
        for set in 0u32..1 << n {
            if set.count_ones() as usize == k {
                draws += 1;
                hits += u32::from(set & ((1 << correct) - 1) != 0);
            }
        }
        f64::from(hits) / f64::from(draws)
    }

    #[test]
    fn pass_at_k_is_what_enumeration_finds() {
        for n in 1..=9 {
            for correct in 0..=n {
                for k in 1..=n {
                    let value = pass_at(n, correct, k).unwrap();
                    assert!(close(value, enumerated(n, correct, k)), "{n} {correct} {k}: {value}");
                }
            }
        }
        for (n, correct, k) in [(4, 1, 5), (4, 1, 0), (4, 5, 1)] {
            assert_eq!(pass_at(n, correct, k).unwrap_err().exit_code(), 2);
        }
        // No factorial overflows.
        assert!(close(pass_at(4096, 1, 1024).unwrap(), 0.25));
    }

    /// scipy.stats.binomtest(k, n).proportion_ci(method="wilson") and
    /// statsmodels.stats.proportion.proportion_confint(k, n, method="wilson").
    #[test]
    fn wilson_intervals_are_scipys() {
        for (hits, n, low, high) in [
            (7, 10, 0.39677814746114537, 0.8922087325936989),
            (37, 100, 0.2818236053432453, 0.46779470419057095),
            (1000, 1319, 0.7343131251145444, 0.7804877948740895),
        ] {
            let (a, b) = wilson(hits, n);
            assert!(close(a, low) && close(b, high), "{hits}/{n}: {a} {b}");
        }
        assert_eq!(wilson(0, 0), (0.0, 1.0));
        let (low, high) = wilson(0, 5);
        assert!(low == 0.0 && high < 0.5, "an end is never past 0 or 1");
    }

    /// statsmodels.stats.contingency_tables.mcnemar(exact=True).
    #[test]
    fn mcnemars_test_is_statsmodels() {
        for (only_a, only_b, p) in
            [(5, 1, 0.21875), (3, 3, 1.0), (12, 4, 0.076812744140625), (30, 12, 0.007915897334896727)]
        {
            assert!(close(mcnemar(only_a, only_b), p), "{only_a} {only_b}: {}", mcnemar(only_a, only_b));
            assert!(close(mcnemar(only_b, only_a), p));
        }
        assert_eq!(mcnemar(0, 0), 1.0);
        let tiny = mcnemar(2000, 0);
        assert!((0.0..1e-300).contains(&tiny), "no overflow in the tail: {tiny}");
    }

    /// statsmodels OLS on a constant, cov_type="cluster" over questions, with its small-sample correction G/(G-1):
    /// 3, 0, 4, 1, 2 right of 4 completions each.
    #[test]
    fn the_standard_error_is_clustered_by_question() {
        assert!(close(clustered_error(&[0.75, 0.0, 1.0, 0.25, 0.5]), 0.17677669529663687));
        assert_eq!(clustered_error(&[0.5]), 0.0);
        assert_eq!(clustered_error(&[]), 0.0);
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
        assert_eq!(bootstrap(&[], 1), (0.0, 1.0));
    }

    #[test]
    fn a_paired_test_sees_what_unpaired_intervals_cannot() {
        // 40 questions of which b answers six more, all the others alike.
        let a: Vec<f64> = (0..40).map(|i| f64::from(u8::from(i % 2 == 0))).collect();
        let mut b = a.clone();
        (1..12).step_by(2).for_each(|i| b[i] = 1.0);
        let found = paired(&a, &b, 3).unwrap();
        assert_eq!((found.n, found.only_a, found.only_b), (40, 0, 6));
        assert!(close(found.difference, 0.15) && close(found.mcnemar_p, 0.03125));
        assert!(found.low > 0.0 && found.high < 0.3 && found.bootstrap_p < 0.05, "{found:?}");
        let swapped = paired(&b, &a, 3).unwrap();
        assert!(close(swapped.difference, -0.15) && (swapped.only_a, swapped.only_b) == (6, 0));
        let same = paired(&a, &a, 3).unwrap();
        assert_eq!((same.difference, same.bootstrap_p, same.mcnemar_p), (0.0, 1.0, 1.0));
        assert!(paired(&a, &b[1..], 3).is_err());
        assert_eq!(paired(&[], &[], 3).unwrap().mcnemar_p, 1.0);
    }

    /// scipy.stats.t.ppf(0.975, n).
    #[test]
    fn the_interval_over_runs_is_students() {
        assert!((t95(2) - 4.302_652_729_911_275).abs() < 1e-5);
        assert!((t95(40) - 2.021_075_390_306_273).abs() < 1e-5);
        assert!((t95(1000) - 1.962_339_080_611_414).abs() < 1e-6);
        assert!((t95(31) - 2.039_513_446_396_408).abs() < 1e-5, "no step at the end of the table");
        // Three runs: deviation 0.1, 4.302653 * 0.1 / sqrt 3.
        assert!((t_half_width(&[0.5, 0.6, 0.7]) - 0.248_413_7).abs() < 1e-6);
        assert_eq!(t_half_width(&[0.4, 0.4]), 0.0);
        assert_eq!(t_half_width(&[0.4]), f64::INFINITY);
    }
}
