//! The pipelines that ship: each is valid and plans offline in every profile, and the smoke test of the paper's runs
//! to the end with what its report promises.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use qerl::pipeline::profiles;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every pipeline file; `shared` holds parts of them.
fn pipelines(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("shared") {
            out.extend(pipelines(&path));
        } else if path.extension().is_some_and(|end| end == "yaml") {
            out.push(path);
        }
    }
    out.sort();
    out
}

/// Without a hub, and with everything that is kept in `home`.
fn qerl(home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qerl"));
    command.args(args).current_dir(home).stdin(Stdio::null());
    command
        .env("QERL_HOME", home.join("qerl"))
        .env("HF_HOME", home.join("hf"))
        .env("HF_ENDPOINT", "http://127.0.0.1:1");
    for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

#[track_caller]
fn said(output: Output) -> String {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (status, out, err) = (output.status, text(output.stdout), text(output.stderr));
    assert!(status.success(), "{status}: {err}");
    out + &err
}

#[test]
fn every_pipeline_is_valid_and_plans_offline_in_every_profile() {
    let home = tempfile::tempdir().unwrap();
    let all = pipelines(&root().join("pipelines"));
    assert!(all.len() >= 8, "{all:?}");
    for file in all {
        let name = file.to_str().unwrap();
        said(qerl(home.path(), &["validate", name]));
        said(qerl(home.path(), &["plan", name]));
        for profile in profiles(&file) {
            said(qerl(home.path(), &["validate", name, "--profile", &profile]));
            let plan = said(qerl(home.path(), &["plan", name, "--profile", &profile]));
            assert!(profile != "smoke" || !plan.contains("unresolved"), "{name}: the smoke test is offline: {plan}");
        }
    }
    assert!(!home.path().join("qerl").exists() && !home.path().join("hf").exists(), "planning writes nothing");
}

#[test]
fn a_smoke_test_runs_to_its_report() {
    let home = tempfile::tempdir().unwrap();
    let file = root().join("pipelines/7b_dapo.yaml");
    let less = ["--set", "train.steps=2", "--set", "train.group_size=4", "--set", "train.prompts_per_step=4"];
    let limits = ["--set", "before.limit=8", "--set", "after.limit=8"];
    let args: Vec<&str> =
        ["run", file.to_str().unwrap(), "--profile", "smoke"].into_iter().chain(less).chain(limits).collect();
    said(qerl(home.path(), &args));
    let folder = home.path().join("reports/out/qwen2.5-7b-dapo");
    let report = std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(folder.join("report.html").is_file());
    let section = |name: &str| {
        let found = report.split(&format!("\n## {name}")).nth(1).unwrap_or_else(|| panic!("no {name}: {report}"));
        found.split("\n## ").next().unwrap().to_owned()
    };
    let accuracy = section("Accuracy");
    for variant in ["bf16-lora", "nf4-lora", "nvfp4-lora", "nvfp4-aqn"] {
        let row = accuracy.lines().find(|line| line.starts_with(&format!("| {variant} |")));
        let row = row.unwrap_or_else(|| panic!("no {variant}: {accuracy}"));
        // Variant, weights, before, after, gain, against the baseline.
        assert_eq!(row.trim_matches('|').split('|').count(), 6, "{row}");
        assert!(!row.contains('–'), "a figure is missing: {row}");
    }
    assert!(accuracy.contains("arith before") && accuracy.contains("arith after"), "{accuracy}");
    assert!(section("The paper's figures").contains("| NVFP4 LoRA+AQN |"), "{report}");
    // Nobody takes it for the real thing, and everybody can make it again.
    let head = report.split("\n## ").next().unwrap();
    assert!(head.contains("--profile smoke"), "{head}");
    let command = format!("`qerl run 7b_dapo.yaml --profile smoke {}`", [less.join(" "), limits.join(" ")].join(" "));
    assert!(section("Provenance").contains(&command), "{command}: {}", section("Provenance"));
    assert!(said(qerl(home.path(), &args)).contains("nothing to do"));
}

#[test]
fn leaving_out_the_baseline_is_said() {
    let home = tempfile::tempdir().unwrap();
    let file = root().join("pipelines/7b_dapo.yaml");
    let plan = |only: &[&str]| {
        let args: Vec<&str> =
            ["plan", file.to_str().unwrap(), "--profile", "smoke"].iter().chain(only).copied().collect();
        said(qerl(home.path(), &args))
    };
    let note = "compares with variant=bf16-lora, which is left out";
    let without = plan(&["--only", "variant=nvfp4-aqn"]);
    assert!(without.contains(note) && without.contains("--set report.baseline=nvfp4-aqn"), "{without}");
    assert!(!plan(&[]).contains(note));
    assert!(!plan(&["--only", "variant=nvfp4-aqn", "--only", "variant=bf16-lora"]).contains(note));
    assert!(!plan(&["--only", "variant=nvfp4-aqn", "--set", "report.baseline=nvfp4-aqn"]).contains(note));
}
