//! The faults known in the field: one test each, named after what must hold; the numbers are those of docs/training.md.

use std::collections::BTreeSet;
use std::sync::Arc;

use qerl::engine::{Batch, Load, Pass, Request, Row, Trainable, load};
use qerl::rl::loss::{RowInput, Totals, row_loss};
use qerl::rl::select::{completion_length, has_signal};

use super::random_model::{VOCAB, engine, model};
use super::*;

/// The gradient's norm at the first step.
fn first_norm(settings: &Settings) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    train(&mut engine, settings, dir.path()).unwrap();
    engine.norms[0]
}

#[test]
fn fault_01_dapo_is_scaled_by_the_tokens_of_the_whole_step_however_often_it_is_updated_on() {
    let base = settings(4);
    let whole = first_norm(&base);
    assert!(whole > 0.0);
    // Several updates per rollout are as many optimizer steps, each over all tokens; micro-batches only split them.
    for (updates_per_rollout, micro_batch_tokens) in [(2, 100_000), (2, 7), (4, 1)] {
        let got = first_norm(&Settings { updates_per_rollout, micro_batch_tokens, ..base.clone() });
        assert!((got - whole).abs() < 1e-9 * whole, "{updates_per_rollout} {micro_batch_tokens}: {got} {whole}");
    }
}

#[test]
fn fault_02_dapo_is_not_divided_by_the_number_of_micro_batches() {
    let whole = first_norm(&Settings { micro_batch_tokens: 100_000, ..settings(1) });
    for micro_batch_tokens in [1, 3, 9, 50] {
        let got = first_norm(&Settings { micro_batch_tokens, ..settings(1) });
        assert!((got - whole).abs() < 1e-9 * whole, "{micro_batch_tokens}: {got} {whole}");
    }
}

/// A row of `n` tokens with log-prob -1, on policy.
fn row_of(n: usize, totals: Totals) -> Vec<f64> {
    let (ones, zeros) = (vec![-1.0; n], vec![0.5; n]);
    let input = RowInput {
        log_probs: &ones,
        old: &ones,
        reference: None,
        sampler: None,
        entropies: &zeros,
        advantage: 1.0,
        entropy_mask: None,
    };
    row_loss(&settings(1).loss, &input, totals).d_log_probs
}

#[test]
fn fault_03_the_denominator_counts_no_masked_token() {
    // Three rows of 2, 3 and 3 tokens, the last one cut and masked: 5 tokens count.
    let totals = Totals { rows: 3, tokens: 5 };
    assert_eq!(row_of(2, totals), [-0.2; 2]);
    // And the trainer counts so: with half of the rows cut, those that ended pull as if they were alone.
    let dir = tempfile::tempdir().unwrap();
    let masked = Settings { max_completion: 2, mask_truncated: true, max_refills: None, ..settings(1) };
    let mut engine = Fake::new();
    let finished = train(&mut engine, &masked, dir.path()).unwrap();
    let cut = series(&finished, "completions/clipped_ratio")[0];
    assert!(cut > 0.0 && cut < 1.0, "{cut}");
    let (tokens, all) = (series(&finished, "num_tokens")[0], 4.0 * 8.0);
    // Tokens that were trained on: prompt and completion of the rows that ended, no others.
    assert!(tokens <= (1.0 - cut) * all * 3.0 + 1e-9, "{tokens} {cut}");
}

#[test]
fn fault_04_a_step_whose_completions_are_all_cut_has_loss_zero_and_changes_nothing() {
    for loss in [Loss::Grpo, Loss::Bnpo, Loss::DrGrpo, Loss::Dapo] {
        let base = settings(2);
        let masked =
            Settings { mask_truncated: true, max_refills: None, loss: LossSpec { loss, ..base.loss }, ..base.clone() };
        let dir = tempfile::tempdir().unwrap();
        let mut engine = Fake::new();
        let before = bits(&engine);
        // No id ends a completion: all of them are cut.
        let finished = train_eos(&mut engine, &masked, dir.path(), &[]).unwrap();
        assert_eq!(series(&finished, "completions/clipped_ratio"), [1.0, 1.0]);
        assert_eq!(series(&finished, "loss"), [0.0, 0.0]);
        assert_eq!(series(&finished, "grad_norm"), [0.0, 0.0]);
        assert!(series(&finished, "entropy").iter().all(|e| e.is_finite()));
        assert_eq!(bits(&engine), before);
    }
}

#[test]
fn fault_05_lengths_are_those_of_the_completions_and_not_of_the_mask() {
    let dir = tempfile::tempdir().unwrap();
    let masked = Settings { mask_truncated: true, max_refills: None, ..settings(2) };
    let finished = train_eos(&mut Fake::new(), &masked, dir.path(), &[]).unwrap();
    for name in ["mean", "min", "max"] {
        assert_eq!(series(&finished, &format!("completions/{name}_length")), [3.0, 3.0], "{name}");
        assert_eq!(series(&finished, &format!("completions/{name}_terminated_length")), [0.0, 0.0], "{name}");
    }
}

#[test]
fn fault_06_sampler_and_trainer_divide_the_logits_by_the_same_temperature() {
    let dir = tempfile::tempdir().unwrap();
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    let finished = train(&mut Fake::new(), &Settings { sampling, ..settings(4) }, dir.path()).unwrap();
    assert!(series(&finished, "sampling/sampling_logp_difference/max").iter().all(|gap| *gap < 1e-6));

    // On the engine: both are log softmax(logits / T), which is not log softmax(logits) / T.
    model(dir.path());
    let mut engine = engine(dir.path());
    let prompt: Arc<[u32]> = [3, 1, 4].into();
    let request = Request { prompt: prompt.clone(), max_new_tokens: 6, sampling, seed: 5 };
    let done = engine.generate(&[request], &[], &Cancel::new(), &mut |_, _| {}).unwrap().remove(0);
    let rows = vec![Row { prompt: prompt.clone(), completion: done.tokens.clone() }];
    let scores = engine.forward(&Batch { rows, temperature: 0.7 }, Pass::Score).unwrap();
    let ids: Vec<u32> = prompt.iter().chain(&done.tokens).copied().collect();
    let logits = engine.logits(&[ids]).unwrap().remove(0);
    for (j, &token) in done.tokens.iter().enumerate() {
        let at = &logits[(prompt.len() - 1 + j) * VOCAB as usize..][..VOCAB as usize];
        let log_prob = |t: f64| {
            let z = at.iter().map(|l| (f64::from(*l) / t).exp()).sum::<f64>().ln();
            f64::from(at[token as usize]) / t - z
        };
        assert!((f64::from(done.log_probs[j]) - log_prob(0.7)).abs() < 1e-4);
        assert!((f64::from(scores.log_probs[0][j]) - log_prob(0.7)).abs() < 1e-4);
        assert!((log_prob(1.0) / 0.7 - log_prob(0.7)).abs() > 1e-3);
    }
}

#[test]
fn fault_07_prompts_reach_the_engine_as_their_token_ids() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    train(&mut engine, &settings(2), dir.path()).unwrap();
    let prompts: Vec<_> = tasks().into_iter().map(|t| t.prompt).collect();
    assert!(!engine.requests.is_empty() && engine.requests.iter().all(|r| prompts.contains(&r.prompt)));
}

#[test]
fn fault_08_every_eos_id_of_the_model_ends_a_completion() {
    assert_eq!(completion_length(&[5, 3, 9], &[2, 3]), (2, false));
    assert_eq!(completion_length(&[5, 6], &[2, 3]), (2, true));
    // generation_config.json names several; config.json has but one.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), r#"{"eos_token_id": 2}"#).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [2, 3]}"#).unwrap();
    let ids: BTreeSet<u32> = qerl::model::eos_ids(dir.path()).unwrap().into_iter().collect();
    assert_eq!(ids, BTreeSet::from([2, 3]));
    // The trainer passes all of them on: with digit 1 as a second end, completions end there too.
    let mut engine = Fake::new();
    let short = Settings { max_refills: None, ..settings(1) };
    let finished = train_eos(&mut engine, &short, dir.path(), &[EOS, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    assert!(series(&finished, "completions/mean_terminated_length")[0] < 1.5);
}

#[test]
fn fault_09_the_eos_token_is_trained_on_even_where_it_is_the_pad_token() {
    // Lengths decide, never the pad id: the first end belongs to the completion, what follows does not.
    assert_eq!(completion_length(&[5, 2, 2, 2], &[2]), (2, false));
    assert_eq!(completion_length(&[2, 2], &[2]), (1, false));
    // The reward's text is without it, the trained tokens are with it.
    let dir = tempfile::tempdir().unwrap();
    let finished = train(&mut Fake::new(), &settings(1), dir.path()).unwrap();
    assert!(series(&finished, "completions/min_terminated_length")[0] >= 1.0);
    assert!(series(&finished, "completions/mean_terminated_length")[0] > 1.5, "a digit and the end are two tokens");
}

#[test]
fn fault_10_what_stands_beside_a_row_changes_none_of_its_log_probs() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let mut engine = engine(dir.path());
    let row = |n: u32, from: u32| Row {
        prompt: (from..from + n).collect::<Vec<_>>().into(),
        completion: (0..n).map(|i| (7 * i + from) % VOCAB as u32).collect(),
    };
    let short = row(3, 2);
    let mut score = |rows: Vec<Row>| engine.forward(&Batch { rows, temperature: 1.0 }, Pass::Score).unwrap().log_probs;
    let alone = score(vec![short.clone()]).remove(0);
    // Behind and before rows that are much longer, where frameworks pad on the left.
    let behind = score(vec![row(40, 1), short.clone()]).remove(1);
    let before = score(vec![short, row(40, 1), row(25, 5)]).remove(0);
    assert_eq!((behind, before), (alone.clone(), alone));
}

#[test]
fn fault_11_the_adapter_alone_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { keep_every: 3, ..settings(6) };
    let finished = train(&mut Fake::new(), &settings, dir.path()).unwrap();
    assert_eq!(finished.counters.kept, [3, 6]);
    let kept = qerl::rl::checkpoint::Checkpoints::open(&finished.checkpoints).unwrap().kept("3").unwrap();
    assert_eq!(kept.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["table"]);
    // On the engine: parameters are those of the adapter; the base is in none of them, and nothing merges.
    model(dir.path());
    let names = engine(dir.path()).parameters().unwrap();
    assert!(names.iter().all(|t| t.name.contains("lora_") || t.name.ends_with("layernorm.weight")));
}

#[test]
fn fault_12_the_rollout_uses_the_newest_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let finished = train(&mut Fake::new(), &settings(8), dir.path()).unwrap();
    assert!(series(&finished, "grad_norm").iter().any(|n| *n > 0.0));
    assert!(series(&finished, "sampling/sampling_logp_difference/max").iter().all(|gap| *gap < 1e-6));

    // On the engine: after a step the sampler's log-probs have moved and are those of the trainer.
    model(dir.path());
    let mut engine = engine(dir.path());
    let prompt: Arc<[u32]> = [3, 1, 4].into();
    let sample = |engine: &mut dyn Engine| {
        let request = Request { prompt: prompt.clone(), max_new_tokens: 4, sampling: Sampling::default(), seed: 5 };
        let done = engine.generate(&[request], &[], &Cancel::new(), &mut |_, _| {}).unwrap().remove(0);
        let rows = vec![Row { prompt: prompt.clone(), completion: done.tokens.clone() }];
        let scores = engine.forward(&Batch { rows, temperature: 1.0 }, Pass::Train).unwrap();
        for (a, b) in done.log_probs.iter().zip(&scores.log_probs[0]) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        done
    };
    let before = sample(engine.as_mut());
    engine.backward(&[vec![-1.0; 4]], &[]).unwrap();
    settings(1).optimizer.apply(engine.as_mut(), 0).unwrap();
    assert_ne!(sample(engine.as_mut()).log_probs, before.log_probs);
}

#[test]
fn fault_13_a_resumed_run_is_the_uninterrupted_one_bit_by_bit() {
    // Every step is tried in `a_run_killed_at_any_step_continues_bit_by_bit`, SIGKILL in tests/resume.rs.
    let settings = Settings { updates_per_rollout: 2, ..settings(6) };
    let expected = whole(&settings);
    let dir = tempfile::tempdir().unwrap();
    let mut killed = Fake::new();
    killed.cancel_after = Some(2);
    train(&mut killed, &settings, dir.path()).unwrap_err();
    let mut engine = Fake::new();
    let finished = train(&mut engine, &settings, dir.path()).unwrap();
    assert_eq!((bits(&engine), figures(&finished)), expected);
}

#[test]
fn fault_14_groups_are_filtered_whole_and_by_accuracy_that_varies() {
    // Constant groups go, binary or not.
    assert!(!has_signal(&[0.5, 0.5, 0.5]) && !has_signal(&[0.0, 0.0]) && !has_signal(&[1.0, 1.0]));
    assert!(has_signal(&[0.5, 0.25]) && has_signal(&[0.0, 1.0]));
    // The shaped reward differs within all-wrong groups; the filter must not be fooled by it.
    let wrong: Vec<Task> = tasks().into_iter().map(|t| Task { answer: "77".into(), ..t }).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    let settings = Settings { overlong_factor: 1.0, overlong_cache: 2, ..settings(2) };
    let set = rewards(&[("accuracy", 1.0), ("length", 0.5)]);
    let finished = train_with(&mut engine, &settings, dir.path(), set, &wrong).unwrap();
    assert_eq!(series(&finished, "dynamic_sampling/kept_groups"), [0.0, 0.0]);
    assert_eq!(series(&finished, "dynamic_sampling/refills"), [3.0, 3.0]);
    // Bounded, and whole groups: prompts are asked for by the group size.
    assert_eq!(engine.requests.len() % settings.group_size, 0);
    let dir = tempfile::tempdir().unwrap();
    let finished = train(&mut Fake::new(), &Settings { max_refills: Some(20), ..settings }, dir.path()).unwrap();
    assert_eq!(series(&finished, "dynamic_sampling/kept_groups"), [4.0, 4.0]);
    assert_eq!(series(&finished, "frac_reward_zero_std"), [0.0, 0.0]);
}

#[test]
fn fault_15_equal_rewards_are_no_signal_whatever_their_rounding() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    let constant = rewards(&[("think_format", 0.3), ("strict_format", 0.1)]);
    let settings = Settings { max_refills: None, ..settings(3) };
    train_with(&mut engine, &settings, dir.path(), constant, &tasks()).unwrap();
    assert!(engine.norms.iter().all(|n| *n == 0.0));
}

#[test]
fn fault_16_a_reward_that_hangs_abstains_and_training_goes_on() {
    let spec = RewardSpec::Program {
        command: ["sh", "-c", "exec sleep 30"].map(str::to_owned).to_vec(),
        weight: 1.0,
        timeout: 0.02,
    };
    let specs = BTreeMap::from([("hangs".to_owned(), spec), ("accuracy".to_owned(), RewardSpec::Weight(1.0))]);
    let set = RewardSet::new(&specs, Path::new("")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { prompts_per_step: 1, max_refills: None, ..settings(1) };
    let finished = train_with(&mut Fake::new(), &settings, dir.path(), set, &tasks()).unwrap();
    let record = metrics::read(&finished.metrics).unwrap().remove(0);
    assert!(record["rewards/hangs/mean"].is_null());
    assert!(record["rewards/accuracy/mean"].is_number());
}

#[test]
fn fault_17_whole_answers_are_compared_and_an_evaluation_sees_the_adapter() {
    use qerl::rl::rewards::{accuracy, text};
    assert_eq!((text::gsm8k_score("#### 18", "18"), text::gsm8k_score("#### 1", "18")), (1.0, 0.0));
    assert_eq!((text::gsm8k_score("#### 18", "1"), accuracy("#### 18", "1")), (0.0, Some(0.0)));
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let (base, adapter) = (dir.path().join("model"), dir.path().join("adapter"));
    let logits = |adapter: Option<&Path>| {
        let what = Load { model: &base, adapter, trainable: Trainable::None, threads: 1 };
        load(&what).unwrap().logits(&[vec![3, 1, 4]]).unwrap()
    };
    assert_ne!(logits(Some(&adapter)), logits(None));
}

#[test]
fn fault_18_a_gold_answer_in_the_prompted_form_earns_full_marks_or_training_is_refused() {
    use qerl::rl::rewards::Sample;
    let gold = |completion| Sample { prompt: "p", completion, answer: "18", tokens: 0, truncated: false };
    let tagged = [vec![gold("<think>\nx\n</think>\n<answer>\n18\n</answer>")]];
    let hashed = [vec![gold("#### 18")]];
    let check = |name, golds: &[Vec<Sample<'_>>]| rewards(&[(name, 1.0)]).check_gold(golds, &Cancel::new());
    check("correctness", &tagged).unwrap();
    check("gsm8k", &hashed).unwrap();
    for refused in [check("gsm8k", &tagged), check("correctness", &hashed), check("soft_format", &hashed)] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("full marks") && error.hint_text().is_some(), "{error}");
    }
}
