//! The faults known in the field, numbered as in docs/training.md. Those of the engine alone (10: left padding) and of
//! evaluation (17) are tested with these.

use super::*;

#[test]
fn fault_01_02_dapo_is_scaled_by_the_tokens_of_the_whole_step_once() {
    // The same as the split invariance: neither the number of micro-batches nor their sizes enter the gradient.
    micro_batches_change_nothing_but_rounding_for_every_loss();
}

#[test]
fn fault_03_04_masked_completions_leave_numerator_and_denominator_and_an_all_masked_step_is_harmless() {
    let dir = tempfile::tempdir().unwrap();
    // One token: every completion that is not EOS at once is cut.
    let settings = Settings { max_completion: 1, mask_truncated: true, max_refills: None, ..settings(3) };
    let mut engine = Fake::new();
    let before = bits(&engine);
    let only_digits: Vec<Task> = tasks();
    // No row ends by itself: EOS is not reachable within one token from these prompts but with small probability,
    // so look at the finite figures rather than at exact zeros where one did.
    let finished = train_with(&mut engine, &settings, dir.path(), rewards(&[("accuracy", 1.0)]), &only_digits).unwrap();
    for record in metrics::read(&finished.metrics).unwrap() {
        assert!(record["loss"].as_f64().unwrap().is_finite());
        assert!(record["entropy"].as_f64().unwrap().is_finite());
        assert!(record["grad_norm"].as_f64().unwrap().is_finite());
        // Fault 5: lengths are those of the completions, not of the zeroed mask.
        assert_eq!(record["completions/mean_length"].as_f64(), Some(1.0));
        assert!(record["completions/clipped_ratio"].as_f64().unwrap() > 0.5);
    }
    // Masked rows give no gradient: what little moved came from rows that ended.
    let moved = bits(&engine) != before;
    assert_eq!(moved, engine.norms.iter().any(|n| *n > 0.0));
}

#[test]
fn fault_06_sampler_and_trainer_see_the_same_temperature() {
    let dir = tempfile::tempdir().unwrap();
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    let finished = train(&mut Fake::new(), &Settings { sampling, ..settings(4) }, dir.path()).unwrap();
    assert!(series(&finished, "sampling/sampling_logp_difference/max").iter().all(|gap| *gap < 1e-6));
}

#[test]
fn fault_07_prompts_reach_the_engine_as_their_token_ids() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    train(&mut engine, &settings(2), dir.path()).unwrap();
    let prompts: Vec<_> = tasks().into_iter().map(|t| t.prompt).collect();
    assert!(engine.requests.iter().all(|r| prompts.contains(&r.prompt)));
}

#[test]
fn fault_08_09_every_eos_id_ends_a_completion_and_is_trained_on() {
    use qerl::rl::select::completion_length;
    assert_eq!(completion_length(&[5, 3, 9], &[2, 3]), (2, false));
    assert_eq!(completion_length(&[5, 6], &[2, 3]), (2, true));
    // A pad id equal to an EOS id changes nothing: lengths decide.
    assert_eq!(completion_length(&[5, 2, 2, 2], &[2]), (2, false));
}

#[test]
fn fault_11_the_adapter_alone_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { keep_every: 3, ..settings(6) };
    let finished = train(&mut Fake::new(), &settings, dir.path()).unwrap();
    assert_eq!(finished.counters.kept, [3, 6]);
    let kept = qerl::rl::checkpoint::Checkpoints::open(&finished.checkpoints).unwrap().kept("3").unwrap();
    assert_eq!(kept.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["table"]);
}

#[test]
fn fault_12_the_rollout_uses_the_newest_parameters() {
    // One engine holds one copy: on-policy log-probs of sampler and trainer agree at every step of a moving policy.
    let dir = tempfile::tempdir().unwrap();
    let finished = train(&mut Fake::new(), &settings(8), dir.path()).unwrap();
    assert!(series(&finished, "grad_norm").iter().any(|n| *n > 0.0));
    assert!(series(&finished, "sampling/sampling_logp_difference/max").iter().all(|gap| *gap < 1e-6));
}

#[test]
fn fault_14_groups_are_kept_whole_and_by_accuracy_not_by_shaped_reward() {
    // The shaped reward differs within all-wrong groups; the filter must not be fooled by it.
    let wrong: Vec<Task> = tasks().into_iter().map(|t| Task { answer: "77".into(), ..t }).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Fake::new();
    let settings = Settings { overlong_factor: 1.0, overlong_cache: 2, ..settings(2) };
    let set = rewards(&[("accuracy", 1.0), ("length", 0.5)]);
    let finished = train_with(&mut engine, &settings, dir.path(), set, &wrong).unwrap();
    assert_eq!(series(&finished, "dynamic_sampling/kept_groups"), [0.0, 0.0]);
    assert_eq!(series(&finished, "dynamic_sampling/refills"), [3.0, 3.0]);
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
