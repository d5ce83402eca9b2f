//! The trainer on a tabular policy: learning, resume, invariances, and the faults known in the field, each as a test
//! named after what must hold.

#[path = "trainer/fake.rs"]
mod fake;
#[path = "trainer/faults.rs"]
mod faults;
#[path = "trainer/on_engine.rs"]
mod on_engine;
#[path = "random_model/mod.rs"]
mod random_model;
#[path = "trainer/stages.rs"]
mod stages;

use std::collections::BTreeMap;
use std::path::Path;

use fake::{EOS, Fake, decode, tasks};
use qerl::control::{Cancel, Quiet};
use qerl::engine::{Engine, Sampling};
use qerl::error::Kind;
use qerl::rl::loss::LossSpec;
use qerl::rl::metrics;
use qerl::rl::rewards::RewardSet;
use qerl::rl::rollout::Task;
use qerl::rl::settings::{OptimizerSettings, Settings, scaling};
use qerl::rl::trainer::{Finished, Trainer};
use qerl::rl::*;
use qerl::{Error, Result};

fn settings(steps: u64) -> Settings {
    Settings {
        steps,
        stop_at: steps,
        prompts_per_step: 4,
        group_size: 8,
        updates_per_rollout: 1,
        micro_batch_tokens: 1000,
        max_completion: 3,
        sampling: Sampling::default(),
        loss: LossSpec {
            loss: Loss::Dapo,
            ratio: Ratio::Token,
            clip_low: 0.2,
            clip_high: 0.28,
            beta: 0.0,
            kl: KlEstimator::K3,
            kl_bias_correction: false,
            correction: None,
            off_policy_mask: None,
            dual_clip: None,
            cispo: None,
            entropy_bonus: 0.0,
            max_completion: 3,
        },
        scaling: scaling(Normalization::Group, RewardAggregation::SumThenNormalize),
        mask_truncated: false,
        overlong_cache: 1,
        overlong_factor: 0.0,
        entropy_quantile: 1.0,
        max_refills: Some(3),
        old_log_probs: OldLogProbs::Recompute,
        shuffle_rewards: false,
        aqn: None,
        optimizer: OptimizerSettings {
            kind: OptimizerKind::AdamW,
            lr: 0.1,
            lr_schedule: LrSchedule::Constant,
            warmup: 0.0,
            weight_decay: 0.0,
            betas: [0.9, 0.99],
            max_grad_norm: 1.0,
            horizon: steps,
        },
        seed: 1,
        checkpoint_every: 3,
        keep_every: 0,
        eval_every: 0,
        early_stop: EarlyStop::default(),
    }
}

fn rewards(names: &[(&str, f64)]) -> RewardSet {
    let specs: BTreeMap<String, RewardSpec> =
        names.iter().map(|(n, w)| ((*n).to_owned(), RewardSpec::Weight(*w))).collect();
    RewardSet::new(&specs, Path::new("")).unwrap()
}

fn train_with(
    engine: &mut Fake,
    settings: &Settings,
    work: &Path,
    rewards: RewardSet,
    tasks: &[Task],
) -> Result<Finished> {
    drive(engine, settings, work, rewards, tasks, &[EOS])
}

fn drive(
    engine: &mut Fake,
    settings: &Settings,
    work: &Path,
    rewards: RewardSet,
    tasks: &[Task],
    eos: &[u32],
) -> Result<Finished> {
    let cancel = Cancel::new();
    let trainer = Trainer {
        engine,
        settings,
        tasks,
        eval_tasks: tasks,
        rewards,
        eos,
        decode: &decode,
        work,
        progress: &Quiet,
        cancel: &cancel,
    };
    trainer.run()
}

/// With other ends than [`EOS`].
fn train_eos(engine: &mut Fake, settings: &Settings, work: &Path, eos: &[u32]) -> Result<Finished> {
    drive(engine, settings, work, rewards(&[("accuracy", 1.0)]), &tasks(), eos)
}

fn train(engine: &mut Fake, settings: &Settings, work: &Path) -> Result<Finished> {
    train_with(engine, settings, work, rewards(&[("accuracy", 1.0)]), &tasks())
}

/// Parameters and metrics (less timings) of a whole run in a fresh folder.
fn whole(settings: &Settings) -> (Vec<u32>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    let finished = train(&mut engine, settings, dir.path()).unwrap();
    (bits(&engine), figures(&finished))
}

fn bits(engine: &Fake) -> Vec<u32> {
    engine.parameters().unwrap()[0].data.iter().map(|v| v.to_bits()).collect()
}

fn figures(finished: &Finished) -> Vec<String> {
    let timed = ["step_time", "time/rollout", "time/update", "rollout/tok_s", "train/tok_s"];
    metrics::read(&finished.metrics)
        .unwrap()
        .into_iter()
        .map(|mut record| {
            timed.iter().for_each(|name| assert!(record.remove(*name).is_some()));
            serde_json::to_string(&record).unwrap()
        })
        .collect()
}

fn series(finished: &Finished, name: &str) -> Vec<f64> {
    metrics::read(&finished.metrics)
        .unwrap()
        .iter()
        .map(|r| r.get(name).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN))
        .collect()
}

#[test]
fn the_policy_learns_and_evaluation_keeps_the_best() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    let settings = Settings { eval_every: 20, ..settings(60) };
    let finished = train(&mut engine, &settings, dir.path()).unwrap();
    let last = metrics::read(&finished.metrics).unwrap().pop().unwrap();
    assert_eq!(last["eval/accuracy"].as_f64(), Some(1.0), "{last:?}");
    assert_eq!(finished.counters.best.unwrap().1, 1.0);
    assert!(finished.checkpoints.join("kept-best.safetensors").exists());
}

#[test]
fn without_a_signal_nothing_is_learned() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    let before = bits(&engine);
    let wrong: Vec<Task> = tasks().into_iter().map(|t| Task { answer: "77".into(), ..t }).collect();
    for max_refills in [None, Some(2)] {
        let settings = Settings { max_refills, ..settings(4) };
        let work = dir.path().join(format!("{}", max_refills.is_some()));
        train_with(&mut engine, &settings, &work, rewards(&[("accuracy", 1.0)]), &wrong).unwrap();
    }
    // Equal rewards: the gradient is exactly zero, with and without the filter.
    assert!(engine.norms.iter().all(|norm| *norm == 0.0));
    assert_eq!(bits(&engine), before);
}

#[test]
fn rewards_that_say_nothing_of_the_answer_do_not_make_it_better() {
    let script = r#"while read -r l; do id=${l#*\"id\":}; id=${id%%,*}; echo "{\"id\": $id, \"reward\": $(( id * 7919 % 13 % 2 ))}"; done"#;
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let spec = RewardSpec::Program { command, weight: 1.0, timeout: 10.0 };
    let specs = BTreeMap::from([("dice".to_owned(), spec), ("accuracy".to_owned(), RewardSpec::Weight(0.0))]);
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { max_refills: None, ..settings(60) };
    let set = RewardSet::new(&specs, Path::new("")).unwrap();
    let finished = train_with(&mut Fake::new(), &settings, dir.path(), set, &tasks()).unwrap();
    assert!(series(&finished, "grad_norm").iter().any(|n| *n > 0.0));
    let accuracy = series(&finished, "rollout/accuracy");
    let last = accuracy[40..].iter().sum::<f64>() / 20.0;
    assert!(last < 0.25, "{last}");
}

#[test]
fn shuffled_rewards_are_those_of_the_group_and_teach_nothing() {
    let base = Settings { max_refills: None, ..settings(60) };
    let run = |shuffle_rewards| {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { shuffle_rewards, ..base.clone() };
        let finished = train(&mut Fake::new(), &settings, dir.path()).unwrap();
        (series(&finished, "rollout/accuracy"), series(&finished, "reward"), series(&finished, "grad_norm"))
    };
    let (honest, shuffled) = (run(false), run(true));
    // The first rollout is the same one, its rewards have only changed places.
    assert_eq!((honest.0[0], honest.1[0]), (shuffled.0[0], shuffled.1[0]));
    assert_ne!(honest.2[0], shuffled.2[0]);
    let last = |accuracy: &[f64]| accuracy[50..].iter().sum::<f64>() / 10.0;
    assert!(last(&honest.0) > 0.6 && last(&shuffled.0) < 0.3, "{} {}", last(&honest.0), last(&shuffled.0));
}

#[test]
fn a_run_killed_at_any_step_continues_bit_by_bit() {
    let aqn = Aqn { sigma_start: 0.1, sigma_end: 0.01, stages: 3, ..Aqn::default() };
    for updates_per_rollout in [1, 2] {
        let settings = Settings {
            aqn: Some(aqn.clone()),
            updates_per_rollout,
            eval_every: 4,
            loss: LossSpec { beta: 0.05, ..settings(12).loss },
            ..settings(12)
        };
        let expected = whole(&settings);
        assert_eq!(expected.1.len(), 12);
        for kill in 0..12 {
            let dir = tempfile::tempdir().unwrap();
            let mut killed = Fake::new();
            killed.cancel_after = Some(kill);
            match train(&mut killed, &settings, dir.path()) {
                Err(error) => assert_eq!(error.kind(), Kind::Cancelled),
                // With several updates there are fewer rollouts than kills.
                Ok(_) => continue,
            }
            let mut engine = Fake::new();
            let finished = train(&mut engine, &settings, dir.path()).unwrap();
            assert_eq!(bits(&engine), expected.0, "killed at rollout {kill}");
            assert_eq!(figures(&finished), expected.1, "killed at rollout {kill}");
        }
    }
}

#[test]
fn a_kill_without_any_warning_continues_from_the_last_checkpoint() {
    let settings = settings(8);
    let expected = whole(&settings);
    let dir = tempfile::tempdir().unwrap();
    // Stopping at 5 leaves metrics of steps 4 and 5 behind; removing the newest checkpoint is a kill before it.
    train(&mut Fake::new(), &Settings { stop_at: 5, ..settings.clone() }, dir.path()).unwrap();
    std::fs::remove_dir_all(dir.path().join("checkpoints/checkpoint-5")).unwrap();
    let mut engine = Fake::new();
    let finished = train(&mut engine, &settings, dir.path()).unwrap();
    assert_eq!((bits(&engine), figures(&finished)), expected);
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let settings = settings(8);
    let expected = whole(&settings);
    let dir = tempfile::tempdir().unwrap();
    train(&mut Fake::new(), &Settings { stop_at: 6, ..settings.clone() }, dir.path()).unwrap();
    let file = dir.path().join("checkpoints/checkpoint-6/parameters.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let mut engine = Fake::new();
    train(&mut engine, &settings, dir.path()).unwrap();
    assert_eq!(bits(&engine), expected.0);
}

#[test]
fn raising_stop_at_continues_the_same_trajectory() {
    let settings = settings(9);
    let expected = whole(&settings);
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    for stop_at in [2, 5, 9] {
        train(&mut engine, &Settings { stop_at, ..settings.clone() }, dir.path()).unwrap();
    }
    assert_eq!(bits(&engine), expected.0);
}

#[test]
fn micro_batches_change_nothing_but_rounding_for_every_loss() {
    for loss in [Loss::Grpo, Loss::Bnpo, Loss::DrGrpo, Loss::Dapo] {
        let run = |micro_batch_tokens| {
            let settings = settings(1);
            let settings = Settings { micro_batch_tokens, loss: LossSpec { loss, ..settings.loss }, ..settings };
            let dir = tempfile::tempdir().unwrap();
            let mut engine = Fake::new();
            train(&mut engine, &settings, dir.path()).unwrap();
            engine.norms[0]
        };
        let whole = run(100_000);
        assert!(whole > 0.0);
        for budget in [1, 5, 17, 40] {
            assert!((run(budget) - whole).abs() < 1e-9 * whole, "{loss:?} {budget}");
        }
    }
}

#[test]
fn a_sigma_of_zero_is_exactly_no_aqn() {
    let aqn = Aqn { sigma_start: 0.0, sigma_end: 0.0, decay: Decay::Linear, ..Aqn::default() };
    let off = whole(&settings(5));
    assert_eq!(whole(&Settings { aqn: Some(aqn), ..settings(5) }).0, off.0);
}

#[test]
fn noise_is_fresh_per_rollout_on_for_the_rollout_and_measured() {
    let aqn = Aqn { decay: Decay::Constant, sigma_start: 0.3, stages: 2, form: AqnForm::Code, ..Aqn::default() };
    for apply_to in [NoiseScope::Rollout, NoiseScope::RolloutAndTrain] {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = Fake::new();
        let settings = Settings { aqn: Some(Aqn { apply_to, ..aqn.clone() }), ..settings(6) };
        let finished = train(&mut engine, &settings, dir.path()).unwrap();
        assert_eq!(series(&finished, "aqn/sigma"), [0.0, 0.0, 0.3, 0.3, 0.3, 0.3]);
        let records = metrics::read(&finished.metrics).unwrap();
        for record in &records[2..] {
            assert!((record["aqn/measured_std"].as_f64().unwrap() - 0.3).abs() < 0.2);
            assert!(record["aqn/entropy_gain"].as_f64().unwrap() != 0.0);
            let gap = record["sampling/sampling_logp_difference/max"].as_f64().unwrap();
            // Training that sees the noise agrees with the sampler; training on clean norms does not.
            assert_eq!(gap < 1e-6, apply_to == NoiseScope::RolloutAndTrain, "{gap}");
        }
        let mut seeds: Vec<u64> = engine.noises.iter().flatten().map(|n| n.seed).collect();
        seeds.dedup();
        assert_eq!(seeds.len(), 4);
        assert_eq!(engine.noises.last(), Some(&None));
    }
}

#[test]
fn one_update_on_policy_has_ratio_one_and_several_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { updates_per_rollout: 3, ..settings(6) };
    let finished = train(&mut Fake::new(), &settings, dir.path()).unwrap();
    // Loss of the first update is -sum(A)/tokens with ratio 1; rewards stay those of the rollout for all three.
    let rewards = series(&finished, "reward");
    assert_eq!(rewards[0], rewards[1]);
    assert_eq!(rewards[1], rewards[2]);
    let clipped = series(&finished, "clip_ratio/region_mean");
    assert_eq!((clipped[0], clipped[3]), (0.0, 0.0));
    assert!(clipped[2] > 0.0);
}

#[test]
fn kl_is_zero_for_the_reference_itself_and_grows() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(6);
    let settings = Settings { loss: LossSpec { beta: 0.01, ..settings.loss }, ..settings };
    let mut engine = Fake::new();
    let finished = train(&mut engine, &settings, dir.path()).unwrap();
    assert!(series(&finished, "kl").iter().all(|kl| *kl > 0.0));
}

#[test]
fn divergence_ends_training_with_the_last_good_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    engine.poison = Some(5);
    let finished = train(&mut engine, &settings(20), dir.path()).unwrap();
    assert!(finished.counters.stopped.as_ref().unwrap().contains("not finite"), "{:?}", finished.counters);
    assert_eq!(finished.counters.step, 8);
    assert!(engine.parameters().unwrap()[0].data.iter().all(|v| v.is_finite()));
    assert_eq!(engine.optimizer_state().unwrap().step, 3);
}

#[test]
fn entropy_collapse_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let early_stop = EarlyStop { patience: 2, min_entropy: Some(10.0), ..EarlyStop::default() };
    let finished = train(&mut Fake::new(), &Settings { early_stop, ..settings(20) }, dir.path()).unwrap();
    assert_eq!(finished.counters.step, 2);
    assert!(finished.counters.stopped.unwrap().contains("entropy"));
}

#[test]
fn every_option_of_the_loss_trains() {
    let base = settings(60);
    let loss = base.loss;
    let correction = |kind| Some(Correction { kind, max: 2.0, min: Some(0.5) });
    let with = |loss: LossSpec| Settings { loss, ..base.clone() };
    let options = [
        ("grpo", with(LossSpec { loss: Loss::Grpo, ..loss })),
        ("dr_grpo", with(LossSpec { loss: Loss::DrGrpo, ..loss })),
        ("sequence ratio", with(LossSpec { ratio: Ratio::Sequence, ..loss })),
        ("cispo", with(LossSpec { cispo: Some(2.0), ..loss })),
        ("dual clip", with(LossSpec { dual_clip: Some(3.0), ..loss })),
        ("kl", with(LossSpec { beta: 0.001, kl_bias_correction: true, ..loss })),
        ("tis", with(LossSpec { correction: correction(CorrectionKind::TokenTruncate), ..loss })),
        ("mis", with(LossSpec { correction: correction(CorrectionKind::SequenceMask), ..loss })),
        ("off-policy mask", with(LossSpec { off_policy_mask: Some(0.05), ..loss })),
        ("entropy bonus", with(LossSpec { entropy_bonus: 0.001, ..loss })),
        ("entropy quantile", Settings { entropy_quantile: 0.6, ..base.clone() }),
        ("mask truncated", Settings { mask_truncated: true, ..base.clone() }),
        ("overlong", Settings { overlong_factor: 0.5, ..base.clone() }),
        ("sampler", Settings { old_log_probs: OldLogProbs::Sampler, updates_per_rollout: 2, ..base.clone() }),
        ("several updates", Settings { updates_per_rollout: 4, ..base.clone() }),
        ("no filter", Settings { max_refills: None, ..base.clone() }),
        (
            "batch std",
            Settings { scaling: scaling(Normalization::Batch, RewardAggregation::SumThenNormalize), ..base.clone() },
        ),
    ];
    for (name, settings) in options {
        let dir = tempfile::tempdir().unwrap();
        let finished = train(&mut Fake::new(), &settings, dir.path()).unwrap();
        let accuracy = series(&finished, "rollout/accuracy");
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (mean(&accuracy[..5]), mean(&accuracy[55..]));
        assert!(first < 0.2 && last > first + 0.3, "{name}: {first:.2} -> {last:.2}");
    }
}

#[test]
fn eight_bit_adamw_trains() {
    let mut settings = settings(60);
    settings.optimizer.kind = OptimizerKind::AdamW8bit;
    settings.eval_every = 60;
    let dir = tempfile::tempdir().unwrap();
    let finished = train(&mut Fake::new(), &settings, dir.path()).unwrap();
    assert_eq!(series(&finished, "eval/accuracy").pop(), Some(1.0));
}

/// docs/training.md names every key of a train stage, and the schema describes each.
#[test]
fn every_option_is_documented() {
    let page = include_str!("../docs/training.md");
    let schema = qerl::stages::Kind::Train.schema().to_value();
    let keys = schema["properties"].as_object().unwrap();
    assert!(keys.len() > 40);
    for (key, field) in keys {
        assert!(page.contains(&format!("`{key}")), "docs/training.md does not name {key}");
        assert!(field["description"].as_str().is_some_and(|text| !text.is_empty()), "{key} has no description");
    }
}

#[test]
fn an_empty_data_set_is_an_error_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let result: Result<Finished, Error> =
        train_with(&mut Fake::new(), &settings(1), dir.path(), rewards(&[("accuracy", 1.0)]), &[]);
    assert!(result.unwrap_err().hint_text().is_some());
}
