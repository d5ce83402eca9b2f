//! A generated set through a model of its own: split, a tokenizer and model made of it, supervised steps, one step of RL,
//! all with qerl's own engine.

use std::collections::BTreeMap;
use std::path::Path;

use qerl::control::{Cancel, Quiet};
use qerl::data::prompt::Prompter;
use qerl::hub::Hub;
use qerl::stages::{Context, Input, Kind, Output, sft, split, train};
use qerl::store::{Artifact, Handle, Meta, Provenance, Store};
use serde_json::{Value, json};

fn finished(dir: &Path, kind: Kind, output: Output, config: Value) -> Artifact {
    let meta = Meta {
        fingerprint: "0".repeat(64),
        kind,
        version: 1,
        backend: None,
        input_keys: BTreeMap::new(),
        digest: String::new(),
        handle: output.handle,
        summary: output.summary,
        config,
        inputs: BTreeMap::new(),
        files: BTreeMap::new(),
        declared: output.declared,
        provenance: Provenance::default(),
    };
    Artifact { dir: dir.to_owned(), meta }
}

type Stage<'a> = &'a dyn Fn(&Context<'_>) -> qerl::Result<Output>;

fn run(root: &Path, kind: Kind, inputs: &[(&str, &Artifact)], config: &Value, stage: Stage<'_>) -> Artifact {
    let dir = |part: &str| {
        let dir = root.join(kind.name()).join(part);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    };
    let input = |(slot, artifact): &(&str, &Artifact)| Input {
        slot: (*slot).to_owned(),
        stage: (*slot).to_owned(),
        point: BTreeMap::new(),
        checkpoint: "last".to_owned(),
        part: None,
        artifact: Ok((*artifact).clone()),
    };
    let context = Context {
        inputs: inputs.iter().map(input).collect(),
        output: dir("output"),
        work: dir("work"),
        store: &Store::open(root.join("store")).unwrap(),
        progress: &Quiet,
        cancel: &Cancel::new(),
        threads: 1,
        base_dir: root.to_owned(),
        hub: &Hub {},
    };
    finished(&dir("output"), kind, stage(&context).unwrap(), config.clone())
}

#[test]
fn a_generated_set_makes_a_model_that_trains_on_it() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let config = json!({"spec": {"builtin": "arith", "n": 40, "template": "qerl_think", "max_prompt_tokens": 200}});
    let problems = run(root, Kind::Split, &[], &config, &|context| {
        split::run(context, &serde_json::from_value(config.clone()).unwrap())
    });
    let config = json!({
        "architecture": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 32},
        "data": "arith", "steps": 3, "batch": 8, "lr": 0.01, "lr_schedule": "constant", "warmup": 0, "max_tokens": 300,
    });
    let model = run(root, Kind::Sft, &[("data", &problems)], &config, &|context| {
        sft::run(context, &serde_json::from_value(config.clone()).unwrap())
    });
    assert_eq!(model.meta.summary["rows"], 32, "a fifth is held out");
    let Handle::Model { at } = &model.meta.handle else { panic!("{:?}", model.meta.handle) };
    let folder = Store::open(root.join("store")).unwrap().locate(&model, at).unwrap();

    // The tokenizer made of the training part knows the held-out problems too, and gives texts back unchanged.
    let prompter = Prompter::open(&folder, &split::spec(&problems).unwrap(), None).unwrap();
    for line in std::fs::read_to_string(problems.dir.join("all.jsonl")).unwrap().lines() {
        let problem: qerl::data::Problem = serde_json::from_str(line).unwrap();
        let ideal = prompter.ideal(&problem);
        assert_eq!(prompter.decode(&prompter.encode(&ideal).unwrap()).unwrap(), ideal);
        assert_eq!(problem.solution.as_deref(), Some(ideal.as_str()));
        assert!(prompter.encode(&ideal).unwrap().len() < 48);
        assert!(prompter.ids(&problem).unwrap().len() < 200);
    }

    let config = json!({
        "policy": "policy", "data": "arith", "steps": 1, "prompts_per_step": 2, "group_size": 2, "max_completion": 6,
        "dynamic_sampling": {"enabled": false}, "rewards": {"accuracy": 1.0, "soft_format": 0.2},
    });
    let trained = run(root, Kind::Train, &[("policy", &model), ("data", &problems)], &config, &|context| {
        train::run(context, &serde_json::from_value(config.clone()).unwrap())
    });
    assert_eq!(trained.meta.summary["steps"], 1);
}
