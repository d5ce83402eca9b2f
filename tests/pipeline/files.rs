//! Pipelines that ship with qerl, examples of the documentation, and files that include others.

use std::path::Path;

use qerl::pipeline::{Options, load, profiles};
use serde_json::json;

use super::{Folder, instance, names, profile, rendered};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_shipped_pipeline_is_valid_in_every_profile() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(root().join("pipelines")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let check = |options: &Options| {
            let graph = load(&path, options).unwrap_or_else(|d| panic!("{} {options:?}: {d}", path.display()));
            assert!(graph.notes.is_empty() || options.profile.is_some(), "{}: {:?}", path.display(), graph.notes);
            graph
        };
        check(&Options::default());
        for name in profiles(&path) {
            check(&profile(&name));
        }
        seen.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    for name in ["3b_dapo", "7b_dapo", "14b_dapo", "32b_dapo", "7b_grpo_gsm8k", "tiny_dapo", "smollm2_dapo"] {
        assert!(seen.iter().any(|s| s == name), "{name} is missing");
    }
}

#[test]
fn the_papers_pipelines_have_its_settings_and_a_smoke_test() {
    for (name, levels, paper) in [
        ("3b_dapo", "level_3_4_5", None),
        ("7b_dapo", "level_3_4_5", Some("table2.7B")),
        ("14b_dapo", "level_4_5", Some("table2.14B")),
        ("32b_dapo", "level_4_5", Some("table2.32B")),
        ("7b_grpo_gsm8k", "", Some("table1.7B")),
    ] {
        let path = root().join("pipelines").join(format!("{name}.yaml"));
        let graph = load(&path, &Options::default()).unwrap();
        assert_eq!(graph.axes["variant"], ["bf16-lora", "nf4-lora", "nvfp4-lora", "nvfp4-aqn"], "{name}");
        let train = &instance(&graph, "train@seed=1,variant=nvfp4-aqn").config;
        let batch = train["prompts_per_step"].as_u64().unwrap() * train["group_size"].as_u64().unwrap();
        assert_eq!((batch, &train["lr"], &train["aqn"]["sigma_start"]), (128, &json!(1e-5), &json!(1e-2)), "{name}");
        assert_eq!(instance(&graph, "train@seed=1,variant=bf16-lora").config["lr"], json!(5e-6), "{name}");
        assert_eq!(instance(&graph, "adapter@seed=1,variant=nf4-lora").config["rank"], 32, "{name}");
        assert_eq!(instance(&graph, "report").config.get("paper").and_then(|p| p.as_str()), paper, "{name}");
        if !levels.is_empty() {
            assert_eq!(instance(&graph, "data.bigmath").config["spec"]["config"], levels, "{name}");
        }
        let smoke = load(&path, &profile("smoke")).unwrap();
        assert_eq!(instance(&smoke, "model").config["repo"], "bundled", "{name}");
        assert_eq!(smoke.instances.iter().filter(|i| i.stage == "train").count(), 4, "{name}");
        assert!(smoke.instances.iter().all(|i| i.stage != "train" || i.config["steps"] == 10), "{name}");
        let noisy = &instance(&smoke, "train@seed=1,variant=nvfp4-aqn").config;
        assert_eq!(noisy["aqn"]["stages"], noisy["steps"], "{name}: the smoke test sees every stage of the noise");
        let needs_a_hub = |name: &String| name.contains("download");
        assert!(!names(&smoke).iter().any(needs_a_hub), "{name}: the smoke test is offline");
    }
}

#[test]
fn every_example_of_the_documentation_is_valid() {
    let text = std::fs::read_to_string(root().join("docs/pipeline.md")).unwrap();
    let blocks: Vec<&str> = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5, "{} examples", blocks.len());
    let examples: Vec<(String, String)> = blocks
        .iter()
        .enumerate()
        .map(|(i, block)| {
            let head = if i == 0 { "" } else { "include: [0.yaml]\n" };
            (format!("{i}.yaml"), format!("{head}{block}"))
        })
        .collect();
    let files: Vec<(&str, &str)> = examples.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    let folder = Folder::new(&files);
    for (name, text) in &examples {
        for options in
            std::iter::once(Options::default()).chain(profiles(&folder.path(name)).iter().map(|p| profile(p)))
        {
            folder.load(name, &options).unwrap_or_else(|d| panic!("{text}\n{d}"));
        }
    }
}

#[test]
fn the_documented_axes_multiply_as_the_documentation_says() {
    let text = std::fs::read_to_string(root().join("docs/pipeline.md")).unwrap();
    let blocks: Vec<&str> = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let axes = blocks.iter().find(|b| b.starts_with("variants:")).unwrap();
    let folder = Folder::new(&[("0.yaml", blocks[0]), ("a.yaml", &format!("include: [0.yaml]\n{axes}"))]);
    let graph = folder.load("a.yaml", &Options::default()).unwrap();
    let count = |stage: &str| graph.instances.iter().filter(|i| i.stage == stage).count();
    assert_eq!((count("model"), count("base"), count("other")), (1, 3, 2 + 2 * 6), "bf16 has one seed only");
}

#[test]
fn includes_merge_and_errors_keep_their_file() {
    let folder = Folder::new(&[
        (
            "p.yaml",
            "name: x\ninclude: [a/one.yaml, two.yaml]\nvars: {rank: 4}\nstages:\n  - {id: last, run: {lora: {model: model, rank: \"${vars.rank}\", alpha: \"${vars.alpha}\"}}}\n",
        ),
        ("a/one.yaml", "include: inner.yaml\nvars: {rank: 1, alpha: 1}\n"),
        (
            "a/inner.yaml",
            "vars: {alpha: 9, other: 1}\nstages:\n  - {id: model, run: {download: {repo: \"bundled\"}}}\n",
        ),
        ("two.yaml", "vars: {alpha: 2}\n"),
        ("bad.yaml", "name: x\ninclude: [a/wrong.yaml, p.yaml]\n"),
        (
            "a/wrong.yaml",
            "stages:\n  - {id: q, run: {quantize: {model: model, format: nf5}}}\n  - {id: last, run: {lora: {model: model}}}\n",
        ),
    ]);
    let graph = folder.load("p.yaml", &Options::default()).unwrap();
    assert_eq!(names(&graph), ["model", "last"]);
    let last = &instance(&graph, "last").config;
    assert_eq!((&last["rank"], &last["alpha"]), (&json!(4), &json!(2.0)));
    let said = rendered(&folder.load("bad.yaml", &Options::default()).unwrap_err(), folder.0.path());
    assert!(said.contains("--> a/wrong.yaml:2:52"), "{said}");
    assert!(said.contains("two stages have the id `last`") && said.contains("::: a/wrong.yaml:3:10"), "{said}");
}
