//! Advantages: rewards -> how much better than its group a completion was.
//!
//! Formulas: Shao et al. 2024 (GRPO, group), Liu et al. 2025 (Dr. GRPO, none), TRL's `scale_rewards: batch` and
//! `multi_objective_aggregation: normalize_then_sum`.

use super::options::{Normalization, RewardAggregation};

/// Added to a standard deviation before dividing by it (TRL).
pub const EPSILON: f64 = 1e-4;

/// Advantages and what is reported about the rewards of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// One per row; 0 for a row whose rewards all abstained.
    pub values: Vec<f64>,
    /// Weighted sums of the rewards; `None` where all abstained.
    pub rewards: Vec<Option<f64>>,
    /// Rows whose group's rewards do not differ.
    pub zero_std: Vec<bool>,
}

/// How [`advantages`] normalises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    pub normalization: Normalization,
    pub aggregation: RewardAggregation,
    pub epsilon: f64,
}

/// `rewards` is `[rows][functions]`, rows ordered group by group, `groups` holds each group's number of rows.
pub fn advantages(rewards: &[Vec<Option<f64>>], weights: &[f64], groups: &[usize], scaling: Scaling) -> Advantages {
    let sums: Vec<Option<f64>> = rewards.iter().map(|row| weighted_sum(row, weights)).collect();
    let mut zero_std = Vec::with_capacity(sums.len());
    for range in ranges(groups) {
        let constant = is_constant(&sums[range.clone()]);
        zero_std.extend(range.map(|_| constant));
    }
    let values = match scaling.aggregation {
        RewardAggregation::SumThenNormalize => normalize(&sums, groups, scaling.normalization, scaling.epsilon),
        RewardAggregation::NormalizeThenSum => {
            let mut totals: Vec<Option<f64>> = vec![None; sums.len()];
            for (f, weight) in weights.iter().enumerate() {
                let column: Vec<Option<f64>> = rewards.iter().map(|row| row[f]).collect();
                let scaled = normalize(&column, groups, Normalization::Group, scaling.epsilon);
                for ((total, value), raw) in totals.iter_mut().zip(scaled).zip(&column) {
                    if raw.is_some() {
                        *total = Some(total.unwrap_or(0.0) + weight * value);
                    }
                }
            }
            // The groups' means are zero already; the last normalisation is over the whole batch.
            let mean = mean(&totals).unwrap_or(0.0);
            let std = std_dev(&totals).unwrap_or(0.0);
            let constant = is_constant(&totals);
            totals
                .iter()
                .map(|v| v.filter(|_| !constant).map_or(0.0, |v| (v - mean) / (std + scaling.epsilon)))
                .collect()
        }
    };
    Advantages { values, rewards: sums, zero_std }
}

/// `None` when every function abstained, else the weighted sum of those that did not.
fn weighted_sum(row: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    row.iter().zip(weights).filter_map(|(r, w)| r.map(|r| r * w)).fold(None, |sum, v| Some(sum.unwrap_or(0.0) + v))
}

fn normalize(rewards: &[Option<f64>], groups: &[usize], how: Normalization, epsilon: f64) -> Vec<f64> {
    let batch_std = std_dev(rewards).unwrap_or(0.0);
    let mut out = vec![0.0; rewards.len()];
    for range in ranges(groups) {
        let group = &rewards[range.clone()];
        // Equal rewards carry no signal; rounding residue in mean and std must not be blown up into one.
        if is_constant(group) {
            continue;
        }
        let mean = mean(group).unwrap_or(0.0);
        let scale = match how {
            Normalization::Group => std_dev(group).unwrap_or(0.0) + epsilon,
            Normalization::Batch => batch_std + epsilon,
            Normalization::None => 1.0,
        };
        for (value, reward) in out[range].iter_mut().zip(group) {
            *value = reward.map_or(0.0, |r| (r - mean) / scale);
        }
    }
    out
}

/// The row ranges of consecutive groups.
pub fn ranges(groups: &[usize]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    groups.iter().scan(0, |start, &size| {
        let range = *start..*start + size;
        *start += size;
        Some(range)
    })
}

/// Max = min over the values that are there (also with one or none).
pub fn is_constant(values: &[Option<f64>]) -> bool {
    let mut present = values.iter().flatten();
    match present.next() {
        None => true,
        Some(first) => present.all(|v| v == first),
    }
}

/// Mean of the values that are there.
pub fn mean(values: &[Option<f64>]) -> Option<f64> {
    let n = values.iter().flatten().count();
    (n > 0).then(|| values.iter().flatten().sum::<f64>() / n as f64)
}

/// Standard deviation with ddof 1 of the values that are there; `None` for fewer than two.
pub fn std_dev(values: &[Option<f64>]) -> Option<f64> {
    let n = values.iter().flatten().count();
    let mean = mean(values)?;
    (n > 1).then(|| (values.iter().flatten().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Scaling = Scaling {
        normalization: Normalization::Group,
        aggregation: RewardAggregation::SumThenNormalize,
        epsilon: EPSILON,
    };

    #[test]
    fn equal_rewards_give_exactly_zero_whatever_their_rounding() {
        for normalization in [Normalization::Group, Normalization::Batch, Normalization::None] {
            let rewards = vec![vec![Some(0.1 + 0.2)]; 3];
            let scaling = Scaling { normalization, ..GROUP };
            let got = advantages(&rewards, &[1.0 / 3.0], &[3], scaling);
            assert_eq!(got.values, [0.0; 3]);
            assert_eq!(got.zero_std, [true; 3]);
        }
    }

    #[test]
    fn abstentions_leave_mean_and_std_alone() {
        let rewards = [Some(1.0), None, Some(0.0)].map(|r| vec![r]);
        let got = advantages(&rewards, &[1.0], &[3], GROUP);
        let expected = 0.5 / (0.5f64.sqrt() + EPSILON);
        assert_eq!(got.values, [expected, 0.0, -expected]);
        assert_eq!(got.rewards[1], None);
    }
}
