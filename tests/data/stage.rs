//! The `split` stage: what it writes, and what of it the trainer reads.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use qerl::Result;
use qerl::control::{Cancel, Quiet};
use qerl::data::{DataSpec, Holdout, Problem, normalise};
use qerl::hub::{Hub, HubConfig};
use qerl::stages::{Context, Input, Kind, Output, StageRef, split};
use qerl::store::{Artifact, Handle, Location, Meta, Provenance, Store};

fn artifact(dir: &Path, kind: Kind, handle: Handle) -> Artifact {
    let meta = Meta {
        fingerprint: "0".repeat(64),
        kind,
        version: 1,
        backend: None,
        input_keys: BTreeMap::new(),
        digest: String::new(),
        handle,
        summary: serde_json::Value::Null,
        config: serde_json::json!({"spec": {}}),
        inputs: BTreeMap::new(),
        files: BTreeMap::new(),
        declared: Vec::new(),
        provenance: Provenance::default(),
    };
    Artifact { dir: dir.to_owned(), meta }
}

fn run(root: &Path, name: &str, config: &split::Config, source: Option<Handle>) -> Result<(PathBuf, Output)> {
    let output = root.join(name);
    std::fs::create_dir_all(&output).unwrap();
    let inputs = source
        .map(|handle| Input {
            slot: "source".into(),
            stage: "raw".into(),
            point: BTreeMap::new(),
            checkpoint: "last".into(),
            part: None,
            artifact: Ok(artifact(root, Kind::Download, handle)),
        })
        .into_iter()
        .collect();
    let context = Context {
        inputs,
        output: output.clone(),
        work: root.join("work"),
        store: &Store::open(root.join("store"))?.with_hub_cache(root.join("cache")),
        progress: &Quiet,
        cancel: &Cancel::new(),
        threads: 1,
        base_dir: root.to_owned(),
        hub: &Hub::new(HubConfig::new("http://127.0.0.1:9", root.join("hub"))).unwrap(),
    };
    Ok((output, split::run(&context, config)?))
}

fn lines(path: &Path) -> Vec<Problem> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn generated(n: usize) -> split::Config {
    let spec = DataSpec { builtin: Some("arith".into()), n: Some(n), seed: Some(3), ..DataSpec::default() };
    split::Config { source: None, spec, holdout: None }
}

#[test]
fn a_generated_set_has_disjoint_parts_and_the_same_bytes_every_time() {
    let root = tempfile::tempdir().unwrap();
    let (first, output) = run(root.path(), "a", &generated(500), None).unwrap();
    let Handle::Problems { parts } = &output.handle else { panic!() };
    let part = |name: &str| lines(&first.join(&parts[name]));
    let (train, held, all) = (part("train"), part("holdout"), part("all"));
    assert_eq!((train.len(), held.len(), all.len()), (400, 100, 500));
    let held: HashSet<_> = held.iter().map(|p| normalise::key(&p.prompt)).collect();
    assert!(train.iter().all(|p| !held.contains(&normalise::key(&p.prompt))));
    assert_eq!(output.summary["holdout"], 100);
    let (second, again) = run(root.path(), "b", &generated(500), None).unwrap();
    assert_eq!(output.declared, again.declared);
    for file in &output.declared {
        assert_eq!(std::fs::read(first.join(file)).unwrap(), std::fs::read(second.join(file)).unwrap(), "{file}");
    }
    let more = split::Config { holdout: Some(Holdout { n: 50, seed: 1 }), ..generated(500) };
    let (dir, _) = run(root.path(), "c", &more, None).unwrap();
    assert_eq!(lines(&dir.join("holdout.jsonl")).len(), 50);
}

#[test]
fn a_read_set_is_cut_and_its_duplicates_are_joined() {
    let root = tempfile::tempdir().unwrap();
    let rows: String =
        (0..100).map(|i| format!("{{\"problem\": \"What  is {}?\", \"answer\": \"{}\"}}\n", i % 50, i % 50)).collect();
    std::fs::create_dir_all(root.path().join("raw")).unwrap();
    std::fs::write(root.path().join("raw/train.jsonl"), rows).unwrap();
    let files = Handle::Files { at: Location::Own { path: "raw".into() } };
    let config =
        |holdout| split::Config { source: Some(StageRef("source".into())), spec: DataSpec::default(), holdout };
    let (dir, output) = run(root.path(), "whole", &config(None), Some(files.clone())).unwrap();
    assert_eq!((lines(&dir.join("train.jsonl")).len(), output.summary["duplicates"].as_u64()), (100, Some(0)));
    assert!(!dir.join("holdout.jsonl").exists());
    let holdout = Some(Holdout { n: 10, seed: 0 });
    let (dir, output) = run(root.path(), "cut", &config(holdout), Some(files)).unwrap();
    let sizes = ["train", "holdout", "all"].map(|part| lines(&dir.join(format!("{part}.jsonl"))).len());
    assert_eq!((sizes, output.summary["duplicates"].as_u64()), ([40, 10, 50], Some(50)));
    let model = Handle::Model { at: Location::Own { path: "raw".into() } };
    assert!(run(root.path(), "wrong", &config(None), Some(model)).unwrap_err().to_string().contains("no raw files"));
    assert!(run(root.path(), "none", &split::Config { source: None, ..config(None) }, None).is_err());
}

#[test]
fn the_text_of_a_template_file_is_an_output() {
    let root = tempfile::tempdir().unwrap();
    let mut config = generated(20);
    config.spec.template = Some("prompts/mine.j2".into());
    assert!(run(root.path(), "none", &config, None).is_err(), "there is no such file");
    std::fs::create_dir_all(root.path().join("prompts")).unwrap();
    let path = root.path().join("prompts/mine.j2");
    std::fs::write(&path, "{{ problem }} Answer in \\boxed{}.").unwrap();
    let (dir, output) = run(root.path(), "a", &config, None).unwrap();
    std::fs::write(&path, "{{ problem }} Say it in \\boxed{}.").unwrap();
    let (other, _) = run(root.path(), "b", &config, None).unwrap();
    assert!(output.declared.contains(&"spec.json".to_owned()));
    assert_ne!(std::fs::read(dir.join("spec.json")).unwrap(), std::fs::read(other.join("spec.json")).unwrap());
    let spec = split::spec(&artifact(&dir, Kind::Split, output.handle)).unwrap();
    assert_eq!(spec.template_text.as_deref(), Some("{{ problem }} Answer in \\boxed{}."));
    assert!(lines(&dir.join("all.jsonl"))[0].solution.as_deref().unwrap().contains("\\boxed{"));
    std::fs::write(&path, "no problem here").unwrap();
    assert!(run(root.path(), "c", &config, None).unwrap_err().to_string().contains("leaves the problem out"));
}

#[test]
fn a_source_that_keeps_its_test_apart_is_not_cut() {
    let root = tempfile::tempdir().unwrap();
    let row = |i: usize| format!("{{\"question\": \"What is {i}?\", \"answer\": \"#### {i}\"}}\n");
    let put = |name: &str, rows: std::ops::Range<usize>| {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, rows.map(row).collect::<String>()).unwrap();
    };
    put("raw/main/train.jsonl", 0..10);
    put("raw/main/test.jsonl", 8..12);
    put("only/test.jsonl", 0..3);
    let config = |split: Option<&str>, holdout| split::Config {
        source: Some(StageRef("source".into())),
        spec: DataSpec { builtin: Some("gsm8k".into()), split: split.map(str::to_owned), ..DataSpec::default() },
        holdout,
    };
    let files = |at: &str| Some(Handle::Files { at: Location::Own { path: at.into() } });
    let ids = |dir: &Path, part: &str| {
        let path = dir.join(format!("{part}.jsonl"));
        path.exists().then(|| lines(&path).into_iter().map(|p| p.id).collect::<Vec<_>>())
    };
    let (dir, output) = run(root.path(), "both", &config(None, None), files("raw")).unwrap();
    assert_eq!(ids(&dir, "holdout").unwrap(), ["test/0", "test/1", "test/2", "test/3"]);
    assert_eq!(ids(&dir, "train").unwrap().len(), 8, "two stand in the test split too");
    assert_eq!(output.summary["files"], serde_json::json!(["main/train.jsonl", "main/test.jsonl"]));
    let (dir, _) = run(root.path(), "test", &config(Some("test"), None), files("raw")).unwrap();
    assert_eq!(ids(&dir, "all").unwrap(), ["0", "1", "2", "3"]);
    assert_eq!(ids(&dir, "holdout"), None);
    let (dir, _) = run(root.path(), "only", &config(None, None), files("only")).unwrap();
    assert_eq!((ids(&dir, "train").unwrap().len(), ids(&dir, "holdout").unwrap().len()), (0, 3));
    let cut = config(None, Some(Holdout { n: 2, seed: 0 }));
    let (dir, _) = run(root.path(), "cut", &cut, files("raw")).unwrap();
    assert_eq!((ids(&dir, "train").unwrap().len(), ids(&dir, "holdout").unwrap().len()), (8, 2));
}

/// The cache's folder of a commit is shared: another program may have fetched other files of the same repository.
#[test]
fn of_a_snapshot_only_the_files_of_the_download_are_read() {
    let root = tempfile::tempdir().unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let at = Location::Hub { repo: "me/mine".into(), dataset: true, commit: commit.into() };
    let store = Store::open(root.path().join("store")).unwrap().with_hub_cache(root.path().join("cache"));
    let snapshot = store.hub_snapshot("me/mine", true, commit).unwrap();
    std::fs::create_dir_all(snapshot.join("extra")).unwrap();
    let row = |i: usize| format!("{{\"problem\": \"What is {i}?\", \"answer\": \"{i}\"}}\n");
    let put = |name: &str, rows: std::ops::Range<usize>| {
        std::fs::write(snapshot.join(name), rows.map(row).collect::<String>()).unwrap();
    };
    put("train-00000-of-00001.jsonl", 0..5);
    put("train-foreign.jsonl", 5..9);
    put("extra/train.jsonl", 9..12);
    std::fs::write(snapshot.join("test.parquet"), "not parquet").unwrap();
    let manifest = |names: &[&str]| {
        let files: Vec<_> =
            names.iter().map(|name| serde_json::json!({"path": name, "size": 1, "git": commit})).collect();
        let text = serde_json::json!({"repo": "me/mine", "dataset": true, "commit": commit, "files": files});
        std::fs::write(root.path().join("manifest.json"), text.to_string()).unwrap();
    };
    let config = split::Config {
        source: Some(StageRef("source".into())),
        spec: DataSpec::default(),
        holdout: Some(Holdout { n: 2, seed: 0 }),
    };
    manifest(&["README.md", "train-00000-of-00001.jsonl"]);
    let handle = || Some(Handle::Files { at: at.clone() });
    let (dir, output) = run(root.path(), "own", &config, handle()).unwrap();
    assert_eq!(output.summary["files"], serde_json::json!(["train-00000-of-00001.jsonl"]));
    assert_eq!(lines(&dir.join("all.jsonl")).len(), 5);
    manifest(&["train-00000-of-00001.jsonl", "train-foreign.jsonl"]);
    let (dir, _) = run(root.path(), "two", &config, handle()).unwrap();
    assert_eq!(lines(&dir.join("all.jsonl")).len(), 9);
    manifest(&["README.md"]);
    assert!(run(root.path(), "none", &config, handle()).unwrap_err().to_string().contains("holds no data file"));
    manifest(&["train-gone.jsonl"]);
    let error = run(root.path(), "gone", &config, handle()).unwrap_err();
    assert!(error.hint_text().unwrap().contains("fetch it again"), "{error}");
}
