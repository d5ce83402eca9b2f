//! That training trains: DAPO with AQN on the bundled model, three seeds, against the same with shuffled rewards. Some
//! minutes in a debug build, so only with QERL_LONG_TESTS=1.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Points of greedy accuracy on 200 held-out problems that every seed must gain (tiny_dapo's promise).
const MARGIN: f64 = 15.0;
/// Points that no run with shuffled rewards may gain: less than what chance moves on 200 questions.
const CHANCE: f64 = 6.0;

const PIPELINE: &str = r#"
name: learning
data:
  arith: {builtin: arith, template: qerl_think}
sweep: {seed: [1, 2, 3]}
variants:
  honest: {}
  shuffled: {train.shuffle_rewards: true}
stages:
  - id: model
    run: {download: {repo: bundled}}
  - id: base
    run: {quantize: {model: model, format: nvfp4}}
  - id: adapter
    run: {lora: {model: base, rank: 16, alpha: 16, train_norms: true, seed: "${sweep.seed}"}}
  - id: before
    run: {eval: {policy: base, data: [arith.holdout], max_new_tokens: 48}}
  - id: train
    run:
      train:
        policy: adapter
        data: arith
        algorithm: dapo
        steps: 60
        prompts_per_step: 16
        group_size: 8
        max_completion: 48
        lr: 1e-3
        rewards: {accuracy: 1.0, soft_format: 0.2}
        aqn: {decay: exponential, sigma_start: 1e-2, sigma_end: 5e-4, stages: 10}
        seed: "${sweep.seed}"
  - id: after
    run: {eval: {policy: train, data: [arith.holdout], max_new_tokens: 48}}
"#;

fn qerl(dir: &Path, args: &[&str]) -> String {
    // A release build does this in a tenth of the time.
    let program = std::env::var_os("QERL_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_qerl").into());
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("QERL_HOME", dir.join("home")).env("HF_HOME", dir.join("hf"));
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Greedy accuracy in percent.
fn accuracy(dir: &Path, address: &str) -> f64 {
    let place = qerl(dir, &["path", &format!("learning:{address}")]);
    let text = std::fs::read_to_string(Path::new(&place).join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(summary["sets"][0]["n"], 200);
    100.0 * summary["sets"][0]["accuracy"].as_f64().unwrap()
}

#[test]
fn dapo_with_noise_beats_its_start_on_every_seed_and_shuffled_rewards_do_not() {
    if std::env::var_os("QERL_LONG_TESTS").is_none() {
        eprintln!("skipped: set QERL_LONG_TESTS=1 to train on the bundled model (minutes)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("learning.yaml"), PIPELINE).unwrap();
    qerl(dir, &["run", "learning.yaml"]);
    let before = accuracy(dir, "before");
    for seed in 1..=3 {
        let gain = |variant: &str| accuracy(dir, &format!("after@seed={seed},variant={variant}")) - before;
        let (honest, shuffled) = (gain("honest"), gain("shuffled"));
        println!("seed {seed}: {before:.1} {honest:+.1}, shuffled {shuffled:+.1}");
        assert!(honest >= MARGIN, "seed {seed} gained {honest:+.1} points");
        assert!(shuffled < CHANCE, "seed {seed} gained {shuffled:+.1} points with shuffled rewards");
    }
}
