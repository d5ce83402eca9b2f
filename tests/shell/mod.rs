//! A folder in which the binary runs, offline, with a store and a Hugging Face cache of its own.

#![allow(dead_code, reason = "every test crate uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use qerl::store::{Artifact, Store};
use serde_json::Value;

/// Every kind of stage on the bundled model, in a few seconds.
pub const TINY: &str = r#"name: tiny
data:
  arith: {builtin: arith, template: qerl_think, n: 300, holdout: {n: 20, seed: 1}}
stages:
  - id: model
    run: {download: {repo: bundled}}
  - id: base
    run: {quantize: {model: model, format: nvfp4}}
  - id: adapter
    run: {lora: {model: base, rank: 4, alpha: 4, seed: 1}}
  - id: warm
    run: {sft: {policy: adapter, data: arith, steps: 3, batch: 4, lr: 1e-3, checkpoint_every: 1}}
  - id: train
    run: {train: {policy: warm, data: arith, steps: 3, prompts_per_step: 2, group_size: 2, max_completion: 12, lr: 1e-3, rewards: {accuracy: 1.0}, dynamic_sampling: {}, checkpoint_every: 1}}
  - id: after
    run: {eval: {policy: train, data: [arith.holdout], limit: 6, max_new_tokens: 12}}
  - id: report
    run: {report: {gather: [after]}}
"#;

pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new(pipeline: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("p.yaml"), pipeline).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn store(&self) -> Store {
        Store::open(self.path("home")).unwrap().with_hub_cache(self.path("hf/hub"))
    }

    pub fn command(&self, args: &[&str]) -> Command {
        command(self.dir.path(), args)
    }

    pub fn qerl(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs and must succeed; gives stdout and stderr.
    pub fn good(&self, args: &[&str]) -> (String, String) {
        let done = self.qerl(args);
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        assert!(done.status.success(), "{args:?}\n{out}\n{err}");
        (out, err)
    }

    /// Runs and must fail with `code`; gives stderr.
    pub fn fails(&self, args: &[&str], code: i32) -> String {
        let done = self.qerl(args);
        let err = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{args:?}\n{}\n{err}", text(&done.stdout));
        err
    }

    /// `name -> action` of a plan, and the reasons of what would run.
    pub fn plan(&self, args: &[&str]) -> BTreeMap<String, String> {
        let args: Vec<&str> = ["plan", "p.yaml", "--json"].into_iter().chain(args.iter().copied()).collect();
        let plan: Value = serde_json::from_str(&self.good(&args).0).unwrap();
        let stages = plan["stages"].as_array().unwrap().iter();
        let what = |stage: &Value| match stage["action"].as_str().unwrap() {
            "run" => stage["message"].as_str().unwrap().to_owned(),
            other => other.to_owned(),
        };
        stages.map(|stage| (stage["name"].as_str().unwrap().to_owned(), what(stage))).collect()
    }

    /// Instances that a plan would run, and no others.
    pub fn would_run(&self, args: &[&str]) -> Vec<String> {
        self.plan(args).into_iter().filter(|(_, what)| what != "cached").map(|(name, _)| name).collect()
    }

    /// Instance -> digest of its outputs; a report's holds times and is left out.
    pub fn digests(&self) -> BTreeMap<String, String> {
        let all = self.artifacts().into_iter().filter(|(_, a)| a.meta.kind != qerl::stages::Kind::Report);
        all.map(|(name, artifact)| (name, artifact.meta.digest)).collect()
    }

    pub fn artifacts(&self) -> BTreeMap<String, Artifact> {
        let store = self.store();
        let names = store.names("tiny").unwrap();
        names.into_iter().map(|(name, f)| (name, store.get(&f).unwrap().unwrap())).collect()
    }
}

pub fn command(dir: &Path, args: &[&str]) -> Command {
    // A release build gets through many kills in a fraction of the time.
    let program = std::env::var_os("QERL_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_qerl").into());
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_ENDPOINT", "QERL_STORE", "XDG_CACHE_HOME"] {
        command.env_remove(name);
    }
    command.env("QERL_HOME", dir.join("home")).env("HF_HOME", dir.join("hf")).env("HF_HUB_OFFLINE", "1");
    command.env("HOME", dir).env("NO_COLOR", "1");
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the long tests were asked for; says so otherwise.
pub fn long(what: &str) -> bool {
    let asked = std::env::var_os("QERL_LONG_TESTS").is_some_and(|v| v == "1");
    if !asked {
        eprintln!("{what}: QERL_LONG_TESTS=1 does it at length");
    }
    asked
}

/// Every regular file below `dir`.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut queue = vec![dir.to_path_buf()];
    while let Some(path) = queue.pop() {
        for item in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            let kind = item.file_type().unwrap();
            if kind.is_dir() {
                queue.push(item.path());
            } else if kind.is_file() {
                found.push(item.path());
            }
        }
    }
    found.sort();
    found
}
