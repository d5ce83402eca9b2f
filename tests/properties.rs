//! What must not change the result: the order of rows, where a step is split, and what else is in the batch. In f64
//! (loss and its derivatives) to 1e-9, on the engine (log-probs, entropies, gradients) to 1e-5.

#[path = "random_model/mod.rs"]
mod random_model;

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;
use qerl::engine::{AdamW, Batch, Engine, Moments, NamedTensor, Pass, Row, Scores};
use qerl::rl::advantage::{EPSILON, Scaling, advantages};
use qerl::rl::loss::{LossSpec, RowInput, RowLoss, Totals, row_loss};
use qerl::rl::random::{key, normal, permutation};
use qerl::rl::{Correction, CorrectionKind, KlEstimator, Loss, Normalization, Ratio, RewardAggregation};
use random_model::{VOCAB, engine, model};

const GROUP: usize = 4;

/// One completion with everything that the loss reads.
#[derive(Clone)]
struct Completion {
    log_probs: Vec<f64>,
    old: Vec<f64>,
    reference: Vec<f64>,
    sampler: Vec<f64>,
    entropies: Vec<f64>,
    reward: f64,
}

fn completions(seed: u64, groups: usize) -> Vec<Completion> {
    let one = |i: u64| {
        let n = 1 + key(seed, "length", i, 0) % 6;
        let near = |base: &[f64], what: &str, size: f64| -> Vec<f64> {
            base.iter().enumerate().map(|(j, l)| l + size * normal(seed, what, i, j as u64)).collect()
        };
        let log_probs: Vec<f64> = (0..n).map(|j| -normal(seed, "logp", i, j).abs() - 0.01).collect();
        Completion {
            old: near(&log_probs, "old", 0.2),
            reference: near(&log_probs, "ref", 0.3),
            sampler: near(&log_probs, "sampler", 0.2),
            entropies: (0..n).map(|j| normal(seed, "entropy", i, j).abs()).collect(),
            reward: (key(seed, "reward", i, 0) % 5) as f64 / 4.0,
            log_probs,
        }
    };
    (0..(groups * GROUP) as u64).map(one).collect()
}

/// Forms of the loss, each with an option or two on.
fn specs() -> Vec<LossSpec> {
    let base = LossSpec {
        loss: Loss::Dapo,
        ratio: Ratio::Token,
        clip_low: 0.2,
        clip_high: 0.28,
        beta: 0.05,
        kl: KlEstimator::K3,
        kl_bias_correction: false,
        correction: None,
        off_policy_mask: None,
        dual_clip: None,
        cispo: None,
        entropy_bonus: 0.01,
        max_completion: 6,
    };
    let correction = Some(Correction { kind: CorrectionKind::SequenceMask, max: 2.0, min: Some(0.5) });
    vec![
        base,
        LossSpec { loss: Loss::Grpo, kl: KlEstimator::K1, kl_bias_correction: true, ..base },
        LossSpec { loss: Loss::Bnpo, dual_clip: Some(1.5), off_policy_mask: Some(0.05), ..base },
        LossSpec { loss: Loss::DrGrpo, kl: KlEstimator::K2, correction, ..base },
        LossSpec { loss: Loss::Grpo, ratio: Ratio::Sequence, ..base },
        LossSpec { cispo: Some(1.1), ..base },
    ]
}

fn scaling(normalization: Normalization) -> Scaling {
    Scaling { normalization, aggregation: RewardAggregation::SumThenNormalize, epsilon: EPSILON }
}

/// The loss of a step whose rows are handled in `parts`; sums run in the order of the parts.
fn step(spec: &LossSpec, rows: &[Completion], parts: &[Range<usize>]) -> (f64, Vec<RowLoss>) {
    let rewards: Vec<Vec<Option<f64>>> = rows.iter().map(|r| vec![Some(r.reward)]).collect();
    let groups = vec![GROUP; rows.len() / GROUP];
    let advantages = advantages(&rewards, &[1.0], &groups, scaling(Normalization::Group)).values;
    let totals = Totals { rows: rows.len(), tokens: rows.iter().map(|r| r.log_probs.len()).sum() };
    let mut losses = Vec::new();
    let mut sum = 0.0;
    for part in parts {
        let mut micro = 0.0;
        for i in part.clone() {
            let row = &rows[i];
            let input = RowInput {
                log_probs: &row.log_probs,
                old: &row.old,
                reference: Some(&row.reference),
                sampler: Some(&row.sampler),
                entropies: &row.entropies,
                advantage: advantages[i],
                entropy_mask: None,
            };
            let loss = row_loss(spec, &input, totals);
            micro += loss.loss;
            losses.push(loss);
        }
        sum += micro;
    }
    (sum, losses)
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn order_and_splits_change_no_loss_and_no_derivative(seed in any::<u64>(), groups in 1usize..5, cut in 0usize..20) {
        let rows = completions(seed, groups);
        let n = rows.len();
        // Groups change places, and rows do within each group.
        let order: Vec<usize> = permutation(seed, 1, groups)
            .into_iter()
            .flat_map(|g| permutation(seed, 2 + g as u64, GROUP).into_iter().map(move |r| g * GROUP + r))
            .collect();
        let shuffled: Vec<Completion> = order.iter().map(|&i| rows[i].clone()).collect();
        let cut = cut % (n + 1);
        for spec in specs() {
            let (loss, losses) = step(&spec, &rows, std::slice::from_ref(&(0..n)));
            prop_assert!(loss.is_finite());
            let (moved, moved_losses) = step(&spec, &shuffled, std::slice::from_ref(&(0..n)));
            let (split, split_losses) = step(&spec, &rows, &[0..cut, cut..n]);
            prop_assert!(close(&[moved, split], &[loss, loss]), "{spec:?}: {moved} {split} {loss}");
            for (at, &i) in order.iter().enumerate() {
                prop_assert!(close(&moved_losses[at].d_log_probs, &losses[i].d_log_probs));
                prop_assert!(close(&moved_losses[at].d_entropies, &losses[i].d_entropies));
            }
            for (a, b) in split_losses.iter().zip(&losses) {
                prop_assert!(close(&a.d_log_probs, &b.d_log_probs));
            }
        }
    }

    #[test]
    fn equal_rewards_give_a_gradient_of_exactly_zero(seed in any::<u64>(), reward in -3.0f64..3.0, weight in 0.01f64..2.0) {
        let mut rows = completions(seed, 3);
        rows.iter_mut().for_each(|row| row.reward = reward);
        let rewards: Vec<Vec<Option<f64>>> = rows.iter().map(|r| vec![Some(r.reward), Some(r.reward / 3.0)]).collect();
        for normalization in [Normalization::Group, Normalization::Batch, Normalization::None] {
            let got = advantages(&rewards, &[weight, 1.0 / weight], &[GROUP; 3], scaling(normalization));
            prop_assert!(got.values.iter().all(|a| *a == 0.0));
        }
        for spec in specs() {
            let spec = LossSpec { beta: 0.0, entropy_bonus: 0.0, ..spec };
            let (loss, losses) = step(&spec, &rows, std::slice::from_ref(&(0..rows.len())));
            prop_assert!(loss == 0.0);
            prop_assert!(losses.iter().flat_map(|l| &l.d_log_probs).all(|d| *d == 0.0));
        }
    }
}

/// Rows of many lengths, of which some share a prompt, and slopes for their scores.
fn rows(seed: u64) -> Vec<(Row, Vec<f32>, Vec<f32>)> {
    let ids =
        |what: &str, i: u64, n: u64| -> Vec<u32> { (0..n).map(|j| (key(seed, what, i, j) % VOCAB) as u32).collect() };
    let prompts: Vec<Arc<[u32]>> = (0..3).map(|p| ids("prompt", p, 1 + key(seed, "p", p, 0) % 9).into()).collect();
    let one = |i: u64| {
        let n = 1 + key(seed, "n", i, 0) % 20;
        let slopes = |what: &str| (0..n).map(|j| normal(seed, what, i, j) as f32).collect();
        let row = Row { prompt: prompts[i as usize % 3].clone(), completion: ids("completion", i, n) };
        (row, slopes("d"), slopes("e"))
    };
    (0..7).map(one).collect()
}

/// Scores in order, and the gradients of the whole, in batches of `sizes`.
fn pass(engine: &mut dyn Engine, rows: &[(Row, Vec<f32>, Vec<f32>)], size: usize) -> (Scores, Vec<NamedTensor>) {
    engine.clear_gradients();
    let mut all = Scores::default();
    for part in rows.chunks(size) {
        let batch = Batch { rows: part.iter().map(|(row, _, _)| row.clone()).collect(), temperature: 0.8 };
        let scores = engine.forward(&batch, Pass::Train).unwrap();
        let d: Vec<Vec<f32>> = part.iter().map(|(_, d, _)| d.clone()).collect();
        let e: Vec<Vec<f32>> = part.iter().map(|(_, _, e)| e.clone()).collect();
        engine.backward(&d, &e).unwrap();
        all.log_probs.extend(scores.log_probs);
        all.entropies.extend(scores.entropies);
    }
    (all, engine.gradients().unwrap())
}

fn near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5)
}

fn gradients_near(a: &[NamedTensor], b: &[NamedTensor]) {
    for (a, b) in a.iter().zip(b) {
        let top = b.data.iter().fold(0f32, |m, x| m.max(x.abs()));
        let error = a.data.iter().zip(&b.data).fold(0f32, |m, (x, y)| m.max((x - y).abs()));
        assert!(error <= 1e-5 * top.max(1.0), "{}: {error} of {top}", a.name);
    }
}

#[test]
fn on_the_engine_order_splits_and_company_change_no_score_and_no_gradient() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let mut engine = engine(dir.path());
    for seed in 0..4 {
        let rows = rows(seed);
        let (scores, gradients) = pass(engine.as_mut(), &rows, rows.len());
        assert!(gradients.iter().all(|t| t.data.iter().any(|g| *g != 0.0)));
        let order = permutation(seed, 0, rows.len());
        let shuffled: Vec<_> = order.iter().map(|&i| rows[i].clone()).collect();
        let (moved, moved_gradients) = pass(engine.as_mut(), &shuffled, rows.len());
        gradients_near(&moved_gradients, &gradients);
        for (at, &i) in order.iter().enumerate() {
            assert!(
                near(&moved.log_probs[at], &scores.log_probs[i]) && near(&moved.entropies[at], &scores.entropies[i])
            );
        }
        // Splits down to rows alone: without padding, what stands beside a row (longer or shorter) is not seen by it.
        for size in [1, 2, 5] {
            let (split, split_gradients) = pass(engine.as_mut(), &rows, size);
            gradients_near(&split_gradients, &gradients);
            for i in 0..rows.len() {
                assert!(near(&split.log_probs[i], &scores.log_probs[i]), "{size}");
                assert!(near(&split.entropies[i], &scores.entropies[i]), "{size}");
            }
        }
        // Further rows that the loss leaves out (slopes of zero) pull at nothing.
        let mut padded = rows.clone();
        padded.extend(
            self::rows(seed + 100).into_iter().map(|(row, d, e)| (row, vec![0.0; d.len()], vec![0.0; e.len()])),
        );
        let (_, padded_gradients) = pass(engine.as_mut(), &padded, padded.len());
        gradients_near(&padded_gradients, &gradients);
    }
}

#[test]
fn on_the_engine_slopes_of_zero_give_gradients_of_exactly_zero_and_move_nothing() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let mut engine = engine(dir.path());
    let still: Vec<_> = rows(9).into_iter().map(|(row, d, e)| (row, vec![0.0; d.len()], vec![0.0; e.len()])).collect();
    let (_, gradients) = pass(engine.as_mut(), &still, 3);
    assert!(gradients.iter().flat_map(|t| &t.data).all(|g| *g == 0.0));
    let before = engine.parameters().unwrap();
    let step =
        AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.0, max_grad_norm: 1.0, moments: Moments::F32 };
    assert_eq!(engine.apply(&step).unwrap(), 0.0);
    assert_eq!(engine.parameters().unwrap(), before);
}
