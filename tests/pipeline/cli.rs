//! The subcommands that read pipeline files.

use std::process::{Command, Output};

use qerl::pipeline::{Options, schema};
use serde_json::Value;

use super::{Folder, MODEL, example};

fn qerl(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qerl"));
    command.args(args).current_dir(folder.0.path()).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn validate_counts_what_is_valid() {
    let folder = example();
    let output = qerl(&folder, &["validate", "p.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "p.yaml: valid, 46 stage instances (41 distinct), 12 trainings, 10 stages for data; also with profile smoke\n"
    );
    let output = qerl(&folder, &["validate", "p.yaml", "--json", "--only", "seed=2"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json[0]["valid"], &json[0]["trainings"]), (&Value::Bool(true), &4.into()));
    assert_eq!(json[0]["axes"]["variant"][3], "nvfp4-aqn");
}

#[test]
fn validate_refuses_with_exit_code_2() {
    let wrong_profile = format!("{MODEL}profiles: {{p: {{model.repos: x}}}}\n");
    let folder = Folder::new(&[("a.yaml", "name: x\nstags: []\n"), ("b.yaml", &wrong_profile), ("c.yaml", MODEL)]);
    let output = qerl(&folder, &["validate", "a.yaml", "b.yaml", "c.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "c.yaml: valid, 1 stage instance, 0 trainings, 0 stages for data\n");
    let errors = text(&output.stderr);
    assert!(errors.contains("a.yaml:2:1") && errors.contains("did you mean `stages`?"), "{errors}");
    assert!(errors.contains("b.yaml, profile p:") && errors.contains("did you mean `repo`?"), "{errors}");
    let output = qerl(&folder, &["validate", "a.yaml", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = json[0]["errors"].as_array().unwrap().iter().find(|e| e["line"] == 2).unwrap();
    assert_eq!((&error["column"], &error["message"]), (&1.into(), &"unknown key `stags`".into()));
    assert_eq!(error["file"], "a.yaml");
    let output = qerl(&folder, &["plan", "a.yaml"]);
    assert_eq!(output.status.code(), Some(2), "as does every command that reads a pipeline");
}

#[test]
fn plan_creates_nothing() {
    let folder = Folder::new(&[("c.yaml", MODEL)]);
    let output = qerl(&folder, &["plan", "c.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("run     model"), "{}", text(&output.stdout));
    assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 1);
}

#[test]
fn graph_draws_stages_or_instances() {
    let lora = "  - {id: lora, run: {lora: {model: model, seed: \"${sweep.seed}\"}}}\n  - {id: e, run: {eval: {policy: {stage: lora, checkpoint: init}, data: [sums]}}, needs: model}\nsweep: {seed: [1, 2]}\n";
    let folder = Folder::new(&[("p.yaml", &format!("{MODEL}{lora}"))]);
    let mermaid = text(&qerl(&folder, &["graph", "p.yaml"]).stdout);
    assert_eq!(
        mermaid,
        "flowchart LR
  n0[\"model<br/><small>download</small>\"]
  n1[\"lora x 2<br/><small>lora</small>\"]
  n2[\"data.sums<br/><small>split</small>\"]
  n3[\"e x 2<br/><small>eval</small>\"]
  n0 --> n1
  n0 -.-> n3
  n1 -->|init| n3
  n2 -->|holdout| n3
"
    );
    let dot = text(&qerl(&folder, &["graph", "p.yaml", "--format", "dot", "--instances", "--only", "seed=2"]).stdout);
    assert!(dot.starts_with("digraph \"x\" {"), "{dot}");
    assert!(dot.contains("n1 [label=\"lora@seed=2\\nlora\"];") && dot.contains("n0 -> n1;"), "{dot}");
    assert!(dot.contains("n0 -> n3 [style=dotted];"), "{dot}");
}

#[test]
fn the_schema_knows_every_kind_and_definition() {
    let folder = Folder::new(&[("c.yaml", MODEL)]);
    let printed: Value = serde_json::from_slice(&qerl(&folder, &["schema"]).stdout).unwrap();
    assert_eq!(printed, schema());
    let text = printed.to_string();
    for kind in qerl::stages::Kind::ALL {
        assert!(printed["$defs"].get(format!("stage-{}", kind.name())).is_some(), "{}", kind.name());
    }
    for reference in text.split("\"$ref\":\"#/$defs/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(printed["$defs"].get(name).is_some(), "{name} is not defined");
    }
    let steps = &printed["$defs"]["stage-train"]["properties"]["steps"]["anyOf"];
    assert_eq!((&steps[0]["minimum"], &steps[1]["type"]), (&1.into(), &"string".into()), "{steps}");
    assert!(Options::default().sets.is_empty());
}
