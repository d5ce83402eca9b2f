//! A real model from a local hub through `pipelines/smollm2_dapo.yaml`, with the binary: SmolLM2-135M-Instruct and
//! GSM8K, downloaded, quantized, trained, evaluated, reported. Only the numbers of steps and questions are smaller.
//!
//! `QERL_SMOLLM2_DIR` names the model's folder (fetch_smollm2.py makes it); without it the test is skipped.

mod hub_server;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hub_server::Server;
use polars::df;
use polars::prelude::ParquetWriter;
use qerl::model::{Checkpoint, Projection};
use serde_json::Value;

const REPO: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];
const TOKEN: &str = "hf_seenOnlyByTheEndpoint";

/// The pipeline in a folder of its own, and the hub that it asks.
struct Bench {
    dir: tempfile::TempDir,
    server: Server,
}

impl Bench {
    /// `None` where the model or the problems are not on this machine.
    fn new() -> Option<Self> {
        let Some(model) = std::env::var_os("QERL_SMOLLM2_DIR").map(PathBuf::from).filter(|dir| dir.is_dir()) else {
            eprintln!("skipped: QERL_SMOLLM2_DIR names no folder with SmolLM2-135M-Instruct");
            return None;
        };
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
        if !data.join("gsm8k_test.jsonl").is_file() {
            eprintln!("skipped: ../shared/data/gsm8k_test.jsonl is not there");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join("root/models").join(REPO);
        std::fs::create_dir_all(&repo).unwrap();
        for name in FILES {
            std::os::unix::fs::symlink(model.join(name).canonicalize().unwrap(), repo.join(name)).unwrap();
        }
        let gsm8k = dir.path().join("root/datasets/openai/gsm8k");
        std::fs::create_dir_all(gsm8k.join("main")).unwrap();
        std::fs::write(gsm8k.join("README.md"), "# GSM8K\n").unwrap();
        for split in ["test", "train"] {
            let to = gsm8k.join(format!("main/{split}-00000-of-00001.parquet"));
            parquet(&data.join(format!("gsm8k_{split}.jsonl")), &to);
        }
        let yaml = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/smollm2_dapo.yaml");
        std::fs::copy(yaml, dir.path().join("smollm2_dapo.yaml")).unwrap();
        let server = Server::start(&dir.path().join("root"));
        server.faults().token = Some(TOKEN.to_owned());
        Some(Self { dir, server })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qerl"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        for name in
            ["HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN_PATH", "HTTP_PROXY", "http_proxy"]
        {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", self.server.endpoint()).env("HF_TOKEN", TOKEN);
        command.env("HF_HOME", self.dir.path().join("hf")).env("QERL_HOME", self.dir.path().join("home"));
        command
    }

    /// The pipeline with less of everything.
    fn run(&self) -> Command {
        let mut command = self.command(&["run", "smollm2_dapo.yaml"]);
        for set in [
            "before.limit=2",
            "before.max_new_tokens=8",
            "after.limit=2",
            "after.max_new_tokens=8",
            "train.steps=2",
            "train.prompts_per_step=2",
            "train.group_size=4",
            "train.max_completion=6",
            "train.dynamic_sampling.enabled=false",
            "train.aqn.stages=2",
        ] {
            command.args(["--set", set]);
        }
        command
    }

    fn path(&self, stage: &str) -> PathBuf {
        let said = done(&mut self.command(&["path", &format!("smollm2-dapo:{stage}")]));
        PathBuf::from(text(&said.stdout).trim())
    }
}

/// JSON lines as the hub keeps them.
fn parquet(from: &Path, to: &Path) {
    let rows: Vec<Value> =
        std::fs::read_to_string(from).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let column = |name: &str| -> Vec<String> { rows.iter().map(|r| r[name].as_str().unwrap().to_owned()).collect() };
    let mut frame = df!("question" => column("question"), "answer" => column("answer")).unwrap();
    ParquetWriter::new(std::fs::File::create(to).unwrap()).finish(&mut frame).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

/// Every regular file under `dir`; links are not followed.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => out.extend(files(&entry.path())),
            kind if kind.is_file() => out.push(entry.path()),
            _ => {}
        }
    }
    out
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_real_model_goes_from_the_hub_to_a_report() {
    let Some(bench) = Bench::new() else { return };
    let first = done(&mut bench.run());
    let seen = bench.server.seen();

    // The token went to the endpoint, and to nothing that the endpoint pointed at.
    let sent = format!("Bearer {TOKEN}");
    assert!(seen.iter().any(|s| s.storage && s.path.contains("model.safetensors")), "large files lie elsewhere");
    assert!(seen.iter().all(|s| if s.storage { s.token.is_none() } else { s.token.as_ref() == Some(&sent) }));
    let said = text(&first.stderr) + &text(&first.stdout);
    assert!(!said.contains(TOKEN));

    the_report_has_the_evaluations_figures(&bench);
    the_weights_are_packed(&bench);
    training_was_noisy_and_left_an_adapter(&bench);
    the_cache_holds_everything_once(&bench);
    nothing_keeps_the_token(bench.dir.path());

    // Again: no work, no request.
    let again = done(&mut bench.run());
    assert!(text(&again.stderr).contains("nothing to do"), "{}", text(&again.stderr));
    assert!(bench.server.seen().is_empty(), "what is pinned and here is not asked for");

    a_lost_blob_is_said_or_fetched_again(&bench);

    // What was made has an address.
    let args = ["generate", "smollm2-dapo:train", "--prompt", "2 + 2 =", "--max-new-tokens", "3", "--json"];
    let made: Value = serde_json::from_slice(&done(&mut bench.command(&args)).stdout).unwrap();
    assert!((1..=3).contains(&made["tokens"].as_array().unwrap().len()), "{made}");
}

fn the_report_has_the_evaluations_figures(bench: &Bench) {
    let folder = bench.dir.path().join("reports/out/smollm2-dapo");
    let markdown = std::fs::read_to_string(folder.join("report.md")).unwrap();
    let html = std::fs::read_to_string(folder.join("report.html")).unwrap();
    let table = markdown.split("## Accuracy").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert!(rows[0].contains("gsm8k before") && rows[0].contains("gsm8k after"), "{table}");
    assert_eq!(rows.len(), 3, "no variants, so one row: {table}");
    for stage in ["before", "after"] {
        let summary = json(&bench.path(stage).join("summary.json"));
        let set = &summary["sets"][0];
        assert_eq!((set["data"].as_str(), set["n"].as_u64()), (Some("gsm8k"), Some(2)), "{summary:#}");
        let figure = format!("{:.1}", 100.0 * set["accuracy"].as_f64().unwrap());
        assert!(rows[2].contains(&figure) && html.contains(&figure), "{figure} of {stage}: {table}");
    }
    // What `qerl reproduce` reads is data; nothing runs.
    let record = "<script type=\"application/json\" id=\"qerl-reproduce\">";
    assert_eq!(html.matches("<script").count(), html.matches(record).count());
    assert!(html.contains("<svg"), "curves");
    assert!(rows[2].contains("nvfp4"), "{table}");
}

fn the_weights_are_packed(bench: &Bench) {
    let snapshot = bench.dir.path().join("hf/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct/snapshots");
    let (dense, packed) =
        (Checkpoint::open(&snapshot.join(Server::commit())).unwrap(), Checkpoint::open(&bench.path("base")).unwrap());
    let bytes = |model: &Checkpoint, suffixes: &[&str]| -> usize {
        let layers = 0..model.config.num_layers;
        let prefixes = layers.flat_map(|layer| Projection::ALL.map(|p| p.prefix(layer)));
        let names = prefixes.flat_map(|prefix| suffixes.iter().map(move |suffix| format!("{prefix}.{suffix}")));
        names.map(|name| model.tensors().tensor(&name).unwrap().data.len()).sum()
    };
    let before = bytes(&dense, &["weight"]);
    let after = bytes(&packed, &["weight_packed", "weight_scale", "weight_global_scale"]);
    assert_eq!(before, 2 * 106_168_320, "SmolLM2's projections in BF16");
    assert!(3 * after < before, "{after} of {before} bytes");
}

fn training_was_noisy_and_left_an_adapter(bench: &Bench) {
    let folder = bench.path("train");
    let adapter = files(&folder).into_iter().find(|path| path.ends_with("adapter_model.safetensors"));
    assert!(adapter.is_some(), "no adapter under {}", folder.display());
    let artifact = folder.ancestors().find(|dir| dir.join("metrics.jsonl").is_file()).unwrap();
    let lines = std::fs::read_to_string(artifact.join("metrics.jsonl")).unwrap();
    let steps: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 2);
    assert!(steps.iter().all(|s| s["loss"].is_f64() && s["entropy"].as_f64().unwrap() > 0.0), "{steps:#?}");
    assert!(steps.iter().any(|s| s["aqn/sigma"].as_f64().unwrap() > 0.0), "{steps:#?}");
}

fn the_cache_holds_everything_once(bench: &Bench) {
    let repo = bench.dir.path().join("hf/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct");
    let snapshot = repo.join("snapshots").join(Server::commit());
    for name in FILES {
        let link = std::fs::read_link(snapshot.join(name)).unwrap_or_else(|e| panic!("{name} is no link: {e}"));
        assert!(link.starts_with("../../blobs"), "{name}: {}", link.display());
    }
    assert_eq!(std::fs::read_dir(repo.join("blobs")).unwrap().count(), FILES.len());
    let size = std::fs::metadata(snapshot.join("model.safetensors")).unwrap().len();
    let all: Vec<_> =
        [bench.dir.path().join("home"), bench.dir.path().join("hf")].iter().flat_map(|d| files(d)).collect();
    let as_large: Vec<_> = all.iter().filter(|path| std::fs::metadata(path).unwrap().len() >= size).collect();
    assert_eq!(as_large.len(), 1, "one copy of the weights: {as_large:?}");
    assert_eq!(std::fs::metadata(as_large[0]).unwrap().nlink(), 1);
}

fn nothing_keeps_the_token(dir: &Path) {
    for path in files(dir) {
        let bytes = std::fs::read(&path).unwrap();
        // Weights hold no text; looking through them would take longer than the rest.
        let shown = &bytes[..bytes.len().min(4 << 20)];
        assert!(!shown.windows(TOKEN.len()).any(|w| w == TOKEN.as_bytes()), "{}", path.display());
    }
}

fn a_lost_blob_is_said_or_fetched_again(bench: &Bench) {
    let repo = bench.dir.path().join("hf/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct");
    let snapshot = repo.join("snapshots").join(Server::commit());
    let blob = snapshot.join("tokenizer.json").canonicalize().unwrap();
    let bytes = std::fs::read(&blob).unwrap();
    std::fs::remove_file(&blob).unwrap();
    let offline = bench.run().env("HF_HUB_OFFLINE", "1").output().unwrap();
    let said = text(&offline.stderr);
    assert_eq!(offline.status.code(), Some(1), "{said}");
    assert!(said.contains("tokenizer.json") && said.contains("hint:") && said.contains("HF_HUB_OFFLINE"), "{said}");
    bench.server.seen();
    done(&mut bench.run());
    assert_eq!(std::fs::read(&blob).unwrap(), bytes);
    let asked: Vec<_> = bench.server.seen().into_iter().filter(|s| s.path.contains("/resolve/")).collect();
    assert_eq!(asked.len(), 1, "that file and no other: {asked:?}");
    let last = done(&mut bench.run());
    assert!(text(&last.stderr).contains("nothing to do"), "earlier work is kept: {}", text(&last.stderr));
}
