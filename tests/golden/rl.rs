//! rl_losses.json: every entry, in f64 to 1e-9. Case lists come from the file.

use std::path::PathBuf;

use qerl::rl::advantage::{Scaling, advantages, mean, std_dev};
use qerl::rl::loss::{LossSpec, RowInput, RowLoss, Totals, correction_weights, keeps_sequence, kl, row_loss};
use qerl::rl::select::{entropy_mask, quantile};
use qerl::rl::{Correction, CorrectionKind, KlEstimator, Loss, Normalization, Ratio, RewardAggregation};
use serde_json::Value;

#[path = "rl_rules.rs"]
mod rules;

const TOLERANCE: f64 = 1e-9;

/// The file, or `None` (said aloud) where there is no golden folder. A folder that QERL_GOLDEN_DIR names must have it,
/// unless it is one of models alone.
fn golden() -> Option<Value> {
    let named = std::env::var_os("QERL_GOLDEN_DIR").map(PathBuf::from);
    let must = named.as_ref().is_some_and(|dir| !dir.join("models").is_dir() && !dir.join("meta.json").is_file());
    let dir = named.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/golden")));
    let path = dir.join("rl_losses.json");
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(serde_json::from_str(&text).unwrap()),
        Err(error) if must => panic!("QERL_GOLDEN_DIR: {}: {error}", path.display()),
        Err(_) => {
            eprintln!("skipped: no {}", path.display());
            None
        }
    }
}

/// A part of the file that no test here reads would be a case that nobody checks.
#[test]
fn every_part_of_the_file_is_read_by_a_test() {
    let Some(file) = golden() else { return };
    let read = [
        "doc",
        "inputs",
        "advantages",
        "advantages_used_below",
        "loss_cases",
        "gradient_accumulation",
        "kl_estimators",
        "ratio",
        "entropy_mean_over_tokens",
        "sampling_logp_difference",
        "all_masked_batch",
        "on_policy_identity",
        "verl",
        "dynamic_sampling",
        "soft_overlong",
        "aqn",
        "eos_mask",
        "logps_from_logits",
        "lr_schedule",
        "rewards_qerl",
    ];
    let unread: Vec<&String> = file.as_object().unwrap().keys().filter(|key| !read.contains(&key.as_str())).collect();
    assert!(unread.is_empty(), "{unread:?}");
}

/// A case of a name that is not known is a failure, not one case fewer.
#[test]
#[should_panic(expected = "unknown loss sapo")]
fn a_loss_of_another_name_fails() {
    loss_named("sapo");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}

fn row(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn table(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(row).collect()
}

fn counts(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| usize::try_from(v.as_u64().unwrap()).unwrap()).collect()
}

#[track_caller]
fn near(what: &str, got: f64, want: f64) {
    assert!((got - want).abs() <= TOLERANCE * want.abs().max(1.0), "{what}: got {got}, want {want}");
}

#[track_caller]
fn rows_near(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        near(&format!("{what}[{i}]"), *g, *w);
    }
}

/// The inputs all loss cases share, cut to each row's length.
struct Inputs {
    log_probs: Vec<Vec<f64>>,
    old: Vec<Vec<f64>>,
    reference: Vec<Vec<f64>>,
    sampler: Vec<Vec<f64>>,
    entropies: Vec<Vec<f64>>,
    lengths: Vec<usize>,
    truncated: Vec<usize>,
    advantages: Vec<f64>,
    raw: Value,
}

impl Inputs {
    fn read(file: &Value) -> Self {
        let raw = &file["inputs"];
        let lengths = counts(&raw["lengths"]);
        let cut = |key: &str| {
            table(&raw[key]).into_iter().zip(&lengths).map(|(row, n)| row[..*n].to_vec()).collect::<Vec<_>>()
        };
        Self {
            log_probs: cut("logps"),
            old: cut("old_logps"),
            reference: cut("ref_logps"),
            sampler: cut("sampling_logps"),
            entropies: cut("entropies"),
            truncated: counts(&raw["truncated"]),
            advantages: row(&file["advantages_used_below"]),
            lengths,
            raw: raw.clone(),
        }
    }

    fn spec(&self) -> LossSpec {
        LossSpec {
            loss: Loss::Dapo,
            ratio: Ratio::Token,
            clip_low: number(&self.raw["epsilon"]),
            clip_high: number(&self.raw["epsilon_high"]),
            beta: 0.0,
            kl: KlEstimator::K3,
            kl_bias_correction: false,
            correction: None,
            off_policy_mask: None,
            dual_clip: None,
            cispo: None,
            entropy_bonus: 0.0,
            max_completion: usize::try_from(self.raw["max_completion_length"].as_u64().unwrap()).unwrap(),
        }
    }

    /// One result per row; `None` for a masked row.
    fn run(&self, spec: &LossSpec, case: &Case, rows: std::ops::Range<usize>, totals: Totals) -> Vec<Option<RowLoss>> {
        rows.map(|i| {
            if case.masks(self.truncated[i]) {
                return None;
            }
            let input = RowInput {
                log_probs: &self.log_probs[i],
                old: if case.on_policy { &self.log_probs[i] } else { &self.old[i] },
                reference: Some(&self.reference[i]),
                sampler: Some(&self.sampler[i]),
                entropies: &self.entropies[i],
                advantage: self.advantages[i],
                entropy_mask: case.entropy_mask.as_ref().map(|m| m[i].as_slice()),
            };
            Some(row_loss(spec, &input, totals))
        })
        .collect()
    }

    fn totals(&self, case: &Case, rows: std::ops::Range<usize>) -> Totals {
        let tokens = rows.clone().filter(|&i| !case.masks(self.truncated[i])).map(|i| self.lengths[i]).sum();
        Totals { rows: rows.len(), tokens }
    }
}

#[derive(Default)]
struct Case {
    mask_truncated: bool,
    mask_all: bool,
    on_policy: bool,
    entropy_mask: Option<Vec<Vec<bool>>>,
}

impl Case {
    fn masks(&self, truncated: usize) -> bool {
        self.mask_all || self.mask_truncated && truncated == 1
    }
}

fn loss_named(name: &str) -> Loss {
    match name {
        "grpo" => Loss::Grpo,
        "bnpo" => Loss::Bnpo,
        "dr_grpo" => Loss::DrGrpo,
        "dapo" => Loss::Dapo,
        other => panic!("unknown loss {other}"),
    }
}

fn sum(rows: &[Option<RowLoss>]) -> f64 {
    rows.iter().flatten().map(|r| r.loss).sum()
}

/// Compares derivatives; columns behind a row's end and masked rows must be 0 in the file.
#[track_caller]
fn gradients_near(what: &str, rows: &[Option<RowLoss>], want: &Value, scale: f64) {
    for (i, (got, want)) in rows.iter().zip(table(want)).enumerate() {
        let mut padded: Vec<f64> = got.iter().flat_map(|r| r.d_log_probs.iter().map(|d| d * scale)).collect();
        padded.resize(want.len(), 0.0);
        rows_near(&format!("{what} row {i}"), &padded, &want);
    }
}

#[test]
fn every_loss_case_has_its_loss_gradient_and_metrics() {
    let Some(file) = golden() else { return };
    let inputs = Inputs::read(&file);
    for (name, want) in file["loss_cases"].as_object().unwrap() {
        let mut spec = inputs.spec();
        let mut case = Case::default();
        let mut words = name.split('+');
        let head = words.next().unwrap();
        if head == "cispo" {
            // TRL's cispo caps the ratio at epsilon_high itself.
            spec.cispo = Some(number(&inputs.raw["epsilon_high"]));
        } else {
            spec.loss = loss_named(head);
        }
        for word in words {
            match word {
                "kl" => spec.beta = number(&inputs.raw["beta"]),
                "kl_bias_corrected" => {
                    spec.beta = number(&inputs.raw["beta"]);
                    spec.kl_bias_correction = true;
                }
                "mask_truncated" => case.mask_truncated = true,
                "two_sided_delta" => spec.dual_clip = Some(number(&inputs.raw["delta"])),
                "sequence_is(GSPO)" | "sequence_is(GSPO,tight_clip)" => spec.ratio = Ratio::Sequence,
                "top_entropy_quantile" => {
                    let keep = number(&want["top_entropy_quantile"]);
                    case.entropy_mask = Some(entropy_mask(&inputs.entropies, keep));
                    let all: Vec<f64> = inputs.entropies.concat();
                    // The file's threshold went through f32.
                    let threshold = quantile(&all, 1.0 - keep).unwrap();
                    assert!((threshold - number(&want["entropy_threshold"])).abs() < 1e-6);
                }
                "off_policy_mask" => spec.off_policy_mask = Some(number(&inputs.raw["opsm_threshold"])),
                other => {
                    let kind = other.strip_prefix("rollout_is/").unwrap_or_else(|| panic!("unknown case {name}"));
                    let kind: CorrectionKind = serde_json::from_value(Value::from(kind)).unwrap();
                    let min = inputs.raw["is_clip_min"].as_f64();
                    spec.correction = Some(Correction { kind, max: number(&inputs.raw["is_clip_max"]), min });
                }
            }
        }
        if let Some(epsilon) = want["epsilon"].as_f64() {
            spec.clip_low = epsilon;
            spec.clip_high = number(&want["epsilon_high"]);
        }
        let totals = inputs.totals(&case, 0..inputs.lengths.len());
        let rows = inputs.run(&spec, &case, 0..inputs.lengths.len(), totals);
        near(name, sum(&rows), number(&want["loss"]));
        gradients_near(name, &rows, &want["grad_logps"], 1.0);
        for (i, want) in table(&want["per_token_loss"]).iter().enumerate() {
            let mut got = rows[i].as_ref().map(|r| r.per_token.clone()).unwrap_or_default();
            got.resize(want.len(), 0.0);
            rows_near(&format!("{name} per token {i}"), &got, want);
        }
        check_extras(name, &inputs, &spec, &case, want);
        check_metrics(name, &spec, &rows, want);
    }
}

fn check_extras(name: &str, inputs: &Inputs, spec: &LossSpec, case: &Case, want: &Value) {
    for i in 0..inputs.lengths.len() {
        if let (Some(correction), Some(weights)) = (&spec.correction, want.get("importance_sampling_ratio")) {
            let weights = row(&weights[i]);
            let got = correction_weights(correction, &inputs.old[i], &inputs.sampler[i]);
            for (j, got) in got.iter().enumerate() {
                near(name, *got, weights[j.min(weights.len() - 1)]);
            }
        }
        if let (Some(mask), Some(want)) = (&case.entropy_mask, want.get("entropy_mask")) {
            let want: Vec<bool> = row(&want[i])[..inputs.lengths[i]].iter().map(|v| *v == 1.0).collect();
            assert_eq!(mask[i], want, "{name}");
        }
        if let (Some(threshold), Some(want)) = (spec.off_policy_mask, want.get("off_policy_mask")) {
            let kept = keeps_sequence(threshold, inputs.advantages[i], &inputs.log_probs[i], &inputs.sampler[i]);
            assert_eq!(f64::from(u8::from(kept)), number(&want[i][0]), "{name}");
        }
    }
}

fn check_metrics(name: &str, spec: &LossSpec, rows: &[Option<RowLoss>], want: &Value) {
    let Some(metrics) = want["metrics"].as_object() else { return };
    let present: Vec<&RowLoss> = rows.iter().flatten().collect();
    let tokens: usize = present.iter().map(|r| r.tokens).sum();
    let counted = if spec.ratio == Ratio::Sequence { present.len() } else { tokens } as f64;
    let low: usize = present.iter().map(|r| r.clipped_low).sum();
    let high: usize = present.iter().map(|r| r.clipped_high).sum();
    for (metric, want) in metrics {
        let got = match metric.as_str() {
            "clip_ratio/low_mean" => low as f64 / counted,
            "clip_ratio/high_mean" => high as f64 / counted,
            "clip_ratio/region_mean" => (low + high) as f64 / counted,
            "kl" => present.iter().map(|r| r.kl).sum::<f64>() / tokens as f64,
            other => panic!("unknown metric {other}"),
        };
        near(&format!("{name} {metric}"), got, number(want));
    }
}

#[test]
fn micro_batches_do_not_change_the_step() {
    let Some(file) = golden() else { return };
    let inputs = Inputs::read(&file);
    let accumulation = file["gradient_accumulation"].as_object().unwrap();
    let case = Case::default();
    for (name, want) in accumulation.iter().filter(|(_, v)| v.is_object()) {
        let spec = LossSpec { loss: loss_named(name), ..inputs.spec() };
        let micro_losses = row(&want["micro_losses"]);
        let parts = micro_losses.len();
        let n = inputs.lengths.len() / parts;
        let whole = inputs.totals(&case, 0..inputs.lengths.len());
        let mut rows = Vec::new();
        for (part, micro) in micro_losses.iter().enumerate() {
            let range = part * n..(part + 1) * n;
            // bnpo is defined over the micro-batch and divided by their number; the others by the whole step.
            let (totals, scale) = if spec.loss == Loss::Bnpo {
                (inputs.totals(&case, range.clone()), 1.0 / parts as f64)
            } else {
                (whole, 1.0)
            };
            let mut got = inputs.run(&spec, &case, range, totals);
            for row in got.iter_mut().flatten() {
                row.loss *= scale;
                row.d_log_probs.iter_mut().for_each(|d| *d *= scale);
            }
            near(name, sum(&got), *micro);
            rows.append(&mut got);
        }
        near(name, sum(&rows), number(&want["sum"]));
        gradients_near(name, &rows, &want["grad_logps"], 1.0);
        let full = inputs.run(&spec, &case, 0..inputs.lengths.len(), whole);
        near(name, sum(&full), number(&want["full_batch_loss"]));
        let equal = (sum(&full) - sum(&rows)).abs() < TOLERANCE;
        let expected =
            want["equal_to_full_batch"].as_bool().unwrap_or(number_or(&want["equal_to_full_batch"], 1.0) == 1.0);
        assert_eq!(equal, expected, "{name}");
        if spec.loss == Loss::Dapo {
            let wrong = number(&accumulation["dapo_wrong_if_also_divided_by_GA"]);
            assert!((sum(&rows) - wrong).abs() > 1e-3, "dapo must not be divided by the accumulation count");
        }
    }
}

fn number_or(value: &Value, default: f64) -> f64 {
    value.as_f64().unwrap_or(default)
}

#[test]
fn advantages_follow_every_normalisation() {
    let Some(file) = golden() else { return };
    let raw = &file["inputs"];
    let size = usize::try_from(raw["num_generations"].as_u64().unwrap()).unwrap();
    let weights = row(&raw["reward_weights"]);
    let rewards: Vec<Vec<Option<f64>>> = raw["rewards_per_func"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r.as_array().unwrap().iter().map(Value::as_f64).collect())
        .collect();
    let groups = vec![size; rewards.len() / size];
    let scaling =
        |normalization| Scaling { normalization, aggregation: RewardAggregation::SumThenNormalize, epsilon: 1e-4 };
    let forms = [("group", Normalization::Group), ("batch", Normalization::Batch), ("none", Normalization::None)];
    let want = &file["advantages"];
    for (name, normalization) in forms {
        let got = advantages(&rewards, &weights, &groups, scaling(normalization));
        rows_near(name, &got.values, &row(&want[name]["advantages"]));
        let zero: Vec<f64> = got.zero_std.iter().map(|z| f64::from(u8::from(*z))).collect();
        rows_near(name, &zero, &row(&want[name]["is_std_zero_per_sample"]));
    }
    let both = Scaling { aggregation: RewardAggregation::NormalizeThenSum, ..scaling(Normalization::Group) };
    let got = advantages(&rewards, &weights, &groups, both);
    rows_near("normalize_then_sum", &got.values, &row(&want["normalize_then_sum"]["advantages"]));

    let sums: Vec<Option<f64>> = want["rewards_weighted_sum"].as_array().unwrap().iter().map(Value::as_f64).collect();
    assert_eq!(got.rewards.len(), sums.len());
    for (g, w) in got.rewards.iter().zip(&sums) {
        assert_eq!(g.is_some(), w.is_some());
        near("weighted sum", g.unwrap_or(0.0), w.unwrap_or(0.0));
    }
    for (i, group) in sums.chunks(size).enumerate() {
        near("group mean", mean(group).unwrap(), number(&want["group_mean"][i]));
        near("group std", std_dev(group).unwrap(), number(&want["group_std_ddof1"][i]));
    }
    near("batch std", std_dev(&sums).unwrap(), number(&want["batch_std_ddof1"]));

    let nansum: Vec<Vec<Option<f64>>> = sums.iter().map(|r| vec![Some(r.unwrap_or(0.0))]).collect();
    let old = advantages(&nansum, &[1.0], &groups, scaling(Normalization::Group));
    rows_near("trl 0.21", &old.values, &row(&want["qerl_trl0.21_group"]["advantages"]));
    let verl = Scaling { epsilon: 1e-6, ..scaling(Normalization::Group) };
    let verl = advantages(&nansum, &[1.0], &groups, verl);
    rows_near("verl", &verl.values, &row(&file["verl"]["advantages_eps1e-6"]));

    let zero = &want["zero_variance"];
    let flat: Vec<Vec<Option<f64>>> = row(&zero["rewards"]).iter().map(|r| vec![Some(*r)]).collect();
    for (name, normalization) in forms {
        let got = advantages(&flat, &[1.0], &groups, scaling(normalization));
        rows_near(name, &got.values, &row(&zero[name]));
        let share = got.zero_std.iter().filter(|z| **z).count() as f64 / got.zero_std.len() as f64;
        near("frac_reward_zero_std", share, number(&zero["frac_reward_zero_std"]));
        near("std", std_dev(&got.rewards).unwrap(), number(&zero["reward_std_batch_ddof1"]));
    }

    let metrics = &want["metrics"];
    near("reward", mean(&sums).unwrap(), number(&metrics["reward"]));
    near("reward_std", std_dev(&sums).unwrap(), number(&metrics["reward_std"]));
    for f in 0..weights.len() {
        let column: Vec<Option<f64>> = rewards.iter().map(|r| r[f]).collect();
        near("mean", mean(&column).unwrap(), number(&metrics[format!("rewards/f{f}/mean")]));
        near("std", std_dev(&column).unwrap(), number(&metrics[format!("rewards/f{f}/std")]));
    }
}

#[test]
fn kl_ratio_entropy_and_mismatch_are_as_given() {
    let Some(file) = golden() else { return };
    let inputs = Inputs::read(&file);
    let estimators = [("k1", KlEstimator::K1), ("k2", KlEstimator::K2), ("k3", KlEstimator::K3)];
    let (mut entropy, mut difference, mut largest, mut tokens) = (0.0, 0.0, 0.0f64, 0.0);
    for i in 0..inputs.lengths.len() {
        for j in 0..inputs.lengths[i] {
            for (name, estimator) in estimators {
                let (value, slope) = kl(estimator, inputs.log_probs[i][j], inputs.reference[i][j]);
                near(name, value, number(&file["kl_estimators"][name][i][j]));
                if name == "k3" {
                    near("slope of k3", slope, number(&file["kl_estimators"]["grad_k3_wrt_logps"][i][j]));
                }
                let above = kl(estimator, inputs.log_probs[i][j] + 1e-6, inputs.reference[i][j]).0;
                let below = kl(estimator, inputs.log_probs[i][j] - 1e-6, inputs.reference[i][j]).0;
                assert!(((above - below) / 2e-6 - slope).abs() < 1e-7, "{name}");
            }
            near("ratio", (inputs.log_probs[i][j] - inputs.old[i][j]).exp(), number(&file["ratio"][i][j]));
            let gap = (inputs.old[i][j] - inputs.sampler[i][j]).abs();
            (entropy, difference, tokens) = (entropy + inputs.entropies[i][j], difference + gap, tokens + 1.0);
            largest = largest.max(gap);
        }
    }
    near("entropy", entropy / tokens, number(&file["entropy_mean_over_tokens"]));
    near("mean", difference / tokens, number(&file["sampling_logp_difference"]["mean"]));
    near("max", largest, number(&file["sampling_logp_difference"]["max"]));
}

#[test]
fn a_fully_masked_batch_gives_zero_and_an_on_policy_batch_minus_a() {
    let Some(file) = golden() else { return };
    let inputs = Inputs::read(&file);
    let all = 0..inputs.lengths.len();
    for (name, want) in file["all_masked_batch"].as_object().unwrap().iter().filter(|(_, v)| v.is_number()) {
        let case = Case { mask_all: true, ..Case::default() };
        let spec = LossSpec { loss: loss_named(name), ..inputs.spec() };
        let rows = inputs.run(&spec, &case, all.clone(), inputs.totals(&case, all.clone()));
        near(name, sum(&rows), number(want));
        // And a row that does get in finds a weight of 0, not 1/0.
        let stray = inputs.run(&spec, &Case::default(), 0..1, Totals::default());
        assert!(stray[0].as_ref().unwrap().d_log_probs.iter().all(|d| d.is_finite()), "{name}");
    }
    for (name, want) in file["on_policy_identity"].as_object().unwrap().iter().filter(|(_, v)| v.is_object()) {
        let case = Case { on_policy: true, ..Case::default() };
        let spec = LossSpec { loss: loss_named(name), ..inputs.spec() };
        let rows = inputs.run(&spec, &case, all.clone(), inputs.totals(&case, all.clone()));
        near(name, sum(&rows), number(&want["loss"]));
        gradients_near(name, &rows, &want["grad_logps"], 1.0);
    }
}

#[test]
fn verls_policy_loss_is_ours_with_a_dual_clip() {
    let Some(file) = golden() else { return };
    let inputs = Inputs::read(&file);
    let all = 0..inputs.lengths.len();
    let rows = inputs.lengths.len() as f64;
    for (name, want) in file["verl"].as_object().unwrap() {
        let Some(rest) = name.strip_prefix("policy_loss/") else { continue };
        let (mode, clip) = rest.split_once("/clip_ratio_c=").unwrap();
        let max = inputs.spec().max_completion as f64;
        // verl's sequence modes are ours up to a constant.
        let (loss, scale) = match mode {
            "token-mean" => (Loss::Bnpo, 1.0),
            "seq-mean-token-mean" => (Loss::Grpo, 1.0),
            "seq-mean-token-sum" => (Loss::DrGrpo, max),
            "seq-mean-token-sum-norm" => (Loss::DrGrpo, rows),
            other => panic!("unknown mode {other}"),
        };
        let spec = LossSpec { loss, dual_clip: Some(clip.parse().unwrap()), ..inputs.spec() };
        let got = inputs.run(&spec, &Case::default(), all.clone(), inputs.totals(&Case::default(), all.clone()));
        // verl adds 1e-8 to its row lengths in seq-mean-token-mean.
        let tolerance = if mode == "seq-mean-token-mean" { 1e-8 } else { TOLERANCE };
        assert!((sum(&got) * scale - number(&want["loss"])).abs() < tolerance, "{name}");
        for (row, want) in got.iter().flatten().zip(table(&want["grad_logps"])) {
            for (d, want) in row.d_log_probs.iter().zip(want) {
                assert!((d * scale - want).abs() < tolerance, "{name}: {d} {want}");
            }
        }
    }
}
