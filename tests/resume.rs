//! Interruptions of a whole training through the command line: processes killed in the middle, and runs that end early
//! and go on. What comes out must be the bytes of a run that nothing interrupted.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Every kind of state is in it: trained norms, noise, 8-bit moments, a kept step, the best evaluation, a program.
const PIPELINE: &str = r#"
name: resume
data:
  few: {builtin: arith, n: 60, template: qerl_think}
stages:
  - id: model
    run: {download: {repo: bundled}}
  - id: base
    run: {quantize: {model: model, format: nvfp4}}
  - id: adapter
    run: {lora: {model: base, rank: 8, alpha: 8, train_norms: true, seed: 1}}
  - id: train
    run:
      train:
        policy: adapter
        data: few
        algorithm: grpo
        steps: 8
        prompts_per_step: 2
        group_size: 4
        max_completion: 12
        optimizer: adamw_8bit
        lr: 1e-3
        beta: 0.01
        aqn: {sigma_start: 1e-2, sigma_end: 1e-3, stages: 4}
        rewards: {accuracy: 1.0, even: {command: [sh, even.sh], weight: 0.5, timeout: 20}}
        checkpoint_every: 2
        keep_every: 3
        eval_every: 3
        eval_data: few.holdout
        eval_limit: 4
        seed: 1
"#;

/// Takes its time, so that a kill comes before the end.
const EVEN: &str = r#"while read -r l; do
  id=${l#*\"id\":}; id=${id%%,*}; n=${l#*\"tokens\":}; n=${n%%,*}; sleep 0.02
  echo "{\"id\": $id, \"reward\": $(( (n + 1) % 2 ))}"
done"#;

fn place() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("resume.yaml"), PIPELINE).unwrap();
    std::fs::write(dir.path().join("even.sh"), EVEN).unwrap();
    dir
}

fn command(dir: &Path, home: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qerl"));
    command.args(args).current_dir(dir).env("QERL_HOME", dir.join(home)).env("HF_HOME", dir.join("hf"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the pipeline to its end; gives what was said.
fn run(dir: &Path, home: &str, more: &[&str]) -> String {
    let args = [&["run", "resume.yaml", "--threads", "2"], more].concat();
    let done = command(dir, home, &args).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    said
}

fn artifact(dir: &Path, home: &str) -> PathBuf {
    let done = command(dir, home, &["path", "resume:train"]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // An adapter's path is that of the checkpoint `last`.
    let path = PathBuf::from(String::from_utf8(done.stdout).unwrap().trim());
    path.ancestors().find(|p| p.join("artifact.json").is_file()).unwrap().to_path_buf()
}

/// The bytes of all adapters, and the metrics less their timings.
fn outcome(dir: &Path, home: &str) -> (Vec<(String, Vec<u8>)>, Vec<Value>) {
    let artifact = artifact(dir, home);
    let mut adapters = Vec::new();
    for name in ["3", "6", "best", "last"] {
        let file = artifact.join("adapters").join(name).join("adapter_model.safetensors");
        adapters.push((name.to_owned(), std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))));
    }
    (adapters, metrics(&artifact.join("metrics.jsonl")))
}

fn metrics(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    whole
        .map(|mut record| {
            for timed in ["step_time", "time/rollout", "time/update", "rollout/tok_s", "train/tok_s", "memory/peak_gib"]
            {
                record.as_object_mut().unwrap().remove(timed);
            }
            record
        })
        .collect()
}

fn steps(metrics: &[Value]) -> Vec<u64> {
    metrics.iter().map(|record| record["step"].as_u64().unwrap()).collect()
}

/// Starts the run and kills it, as `kill -9` does, once `steps` steps are written down.
fn kill_after(dir: &Path, home: &str, steps: usize) {
    let mut child: Child = command(dir, home, &["run", "resume.yaml", "--threads", "2"]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        assert!(Instant::now() < deadline, "no step in two minutes");
        let works = std::fs::read_dir(dir.join(home).join("work")).into_iter().flatten().flatten();
        if works.map(|work| metrics(&work.path().join("metrics.jsonl")).len()).max().unwrap_or(0) >= steps {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_run_killed_twice_in_the_middle_ends_with_the_same_bytes() {
    let dir = place();
    let dir = dir.path();
    run(dir, "whole", &[]);
    let whole = outcome(dir, "whole");
    assert_eq!(steps(&whole.1), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(whole.1[5]["aqn/measured_std"].as_f64().unwrap() > 0.0 && whole.1[5]["kl"].as_f64().unwrap() > 0.0);
    assert!(whole.1[5]["eval/accuracy"].is_number());
    assert_ne!(whole.0[0].1, whole.0[3].1, "training moved the adapter");

    // Step 3 lies one behind the checkpoint of step 2, and so is done again.
    kill_after(dir, "killed", 3);
    kill_after(dir, "killed", 5);
    let said = run(dir, "killed", &[]);
    assert!(said.contains("continuing after step"), "{said}");
    let killed = outcome(dir, "killed");
    assert_eq!(killed.1, whole.1, "metrics without gap or duplicate");
    assert!(killed.0 == whole.0, "the adapters' bytes");

    // Fault 11: what is kept is the adapter alone, beside the 4-bit base.
    let files = |p: &Path| -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(p).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let artifact = artifact(dir, "killed");
    assert_eq!(files(&artifact.join("adapters/last")), ["adapter_config.json", "adapter_model.safetensors"]);
    assert!(!artifact.join("state").exists(), "nothing is left to go on from");
}

#[test]
fn raising_stop_at_goes_on_where_the_shorter_run_ended() {
    let dir = place();
    let dir = dir.path();
    let short = ["--set", "train.eval_every=2", "--set", "train.keep_every=2", "--set"];
    let with = |stop_at: &'static str| [&short[..], &[stop_at]].concat();
    run(dir, "whole", &with("train.stop_at=6"));
    let lines = dir.join("lines");
    let hook = format!("cat > {}", lines.display());
    run(dir, "parts", &[&with("train.stop_at=4")[..], &["--metrics-hook", &hook]].concat());
    let hooked = metrics(&lines);
    assert_eq!(steps(&hooked), [1, 2, 3, 4], "the hook heard every step");
    assert_eq!(hooked[0]["stage"], "train");
    assert!(hooked[3]["reward"].is_number());

    let said = run(dir, "parts", &[&with("train.stop_at=6")[..], &["--metrics-hook", &hook]].concat());
    assert!(said.contains("continuing after step 4"), "{said}");
    assert_eq!(steps(&metrics(&lines)), [5, 6]);
    let (whole, parts) = (artifact(dir, "whole"), artifact(dir, "parts"));
    assert_eq!(metrics(&parts.join("metrics.jsonl")), metrics(&whole.join("metrics.jsonl")));
    for name in ["2", "4", "6", "best", "last"] {
        let file = Path::new("adapters").join(name).join("adapter_model.safetensors");
        assert!(std::fs::read(parts.join(&file)).unwrap() == std::fs::read(whole.join(&file)).unwrap(), "{name}");
    }
    // Another learning rate is another trajectory: it starts anew.
    let other = run(dir, "parts", &[&with("train.stop_at=6")[..], &["--set", "train.lr=2e-3"]].concat());
    assert!(!other.contains("continuing"), "{other}");
}

#[test]
fn an_adapter_of_others_is_continued_as_it_is() {
    let dir = place();
    let dir = dir.path();
    run(dir, "home", &["--until", "adapter"]);
    let made = command(dir, "home", &["path", "resume:adapter", "--checkpoint", "init"]).output().unwrap();
    let made = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    std::fs::create_dir(dir.join("theirs")).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(made.join(file), dir.join("theirs").join(file)).unwrap();
    }
    let theirs = "  - id: theirs\n    run: {download: {repo: \"file:theirs\"}}\n  - id: adapter\n";
    let init = PIPELINE.replace("  - id: adapter\n", theirs).replace(
        "{lora: {model: base, rank: 8, alpha: 8, train_norms: true, seed: 1}}",
        "{lora: {model: base, init: theirs}}",
    );
    std::fs::write(dir.join("resume.yaml"), &init).unwrap();
    run(dir, "other", &["--until", "adapter"]);
    let taken = command(dir, "other", &["path", "resume:adapter", "--checkpoint", "init"]).output().unwrap();
    let taken = PathBuf::from(String::from_utf8(taken.stdout).unwrap().trim());
    let weights = |dir: &Path| std::fs::read(dir.join("adapter_model.safetensors")).unwrap();
    assert!(weights(&taken) == weights(&made));
    let config = std::fs::read_to_string(taken.join("adapter_config.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&config).unwrap()["r"], 8);

    // What would not be read is refused, and so is a model in its place.
    for (bad, word) in [("init: theirs, rank: 4", "rank would not be read"), ("init: base", "expected a stage of kind")]
    {
        std::fs::write(dir.join("resume.yaml"), init.replace("init: theirs", bad)).unwrap();
        let done = command(dir, "other", &["validate", "resume.yaml"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
        assert!(!done.status.success() && said.contains(word), "{said}");
    }
}
