//! The report stage over a made-up store: four variants, two seeds, one training that failed.

#[path = "report/browser.rs"]
#[allow(dead_code, reason = "the live page's tests use the rest")]
mod browser;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qerl::control::{Cancel, Quiet};
use qerl::eval::{Interval, Record, SetSummary, Summary, files, stats};
use qerl::hub::{Hub, HubConfig};
use qerl::math::Verdict;
use qerl::stages::{Context, Input, Kind, report};
use qerl::store::{Artifact, Finished, Handle, InputKey, Key, Location, Provenance, Store};
use serde_json::{Value, json};

const QUESTIONS: usize = 40;
const LABELS: [&str; 4] = ["bf16-lora", "nf4-lora", "nvfp4-lora", "nvfp4-aqn"];
/// Questions answered after training, by variant and seed; `None` failed.
const RIGHT: [[Option<usize>; 2]; 4] =
    [[Some(20), Some(22)], [Some(18), Some(20)], [Some(20), None], [Some(36), Some(38)]];
const HOSTILE: &str = "<script>alert(1)</script> | ```\n# heading\n[x](https://evil.example)";

struct Made {
    kind: Kind,
    instance: String,
    config: Value,
    summary: Value,
    inputs: Vec<(&'static str, Artifact)>,
    files: Vec<(&'static str, Vec<u8>)>,
    seconds: f64,
}

fn put(store: &Store, handle: Handle, made: Made) -> Artifact {
    let key_of = |a: &Artifact| InputKey { digest: a.meta.digest.clone(), ..InputKey::default() };
    let heavy = matches!(made.kind, Kind::Train | Kind::Eval);
    let key = Key {
        kind: made.kind,
        version: 1,
        backend: heavy.then(|| "cpu".to_owned()),
        config: made.config,
        inputs: made.inputs.iter().map(|(slot, a)| ((*slot).to_owned(), key_of(a))).collect(),
        files: BTreeMap::new(),
    };
    let fingerprint = key.fingerprint();
    let lock = store.lock(&fingerprint, "test", &Cancel::new(), |_| {}).unwrap();
    let draft = store.begin(&fingerprint, &lock).unwrap();
    for (name, bytes) in &made.files {
        std::fs::write(draft.dir().join(name), bytes).unwrap();
    }
    let declared = made.files.iter().map(|(name, _)| (*name).to_owned()).collect();
    let provenance = Provenance {
        qerl_version: "0.1.0".into(),
        pipeline: "toy".into(),
        instance: made.instance,
        host: "box".into(),
        device: "cpu (Toy 9000, 2 threads)".into(),
        started: "2026-11-30T08:15:00.5Z".into(),
        wall_seconds: made.seconds,
    };
    let inputs = made.inputs.iter().map(|(slot, a)| ((*slot).to_owned(), a.meta.fingerprint.clone())).collect();
    draft.commit(&key, Finished { declared, handle, summary: made.summary, inputs, provenance }).unwrap()
}

fn model() -> Handle {
    Handle::Model { at: Location::Own { path: ".".into() } }
}

fn adapter() -> Handle {
    Handle::Adapter { model: Location::Own { path: ".".into() }, adapters: BTreeMap::new() }
}

/// summary.json and records.parquet of an evaluation that answers the questions for which `right` holds.
fn evaluation(right: &dyn Fn(usize) -> bool) -> Vec<(&'static str, Vec<u8>)> {
    let records: Vec<Record> = (0..QUESTIONS)
        .map(|i| Record {
            data: "arith.holdout".into(),
            id: format!("q{i:02}"),
            prompt: format!("What is {i} + {i}?"),
            sample: 0,
            gold: (2 * i).to_string(),
            completion: if i == 1 { HOSTILE.into() } else { format!("the answer is {i}") },
            extracted: Some(i.to_string()),
            verdict: if right(i) { Verdict::Correct } else { Verdict::Wrong },
            tokens: 5,
            truncated: false,
        })
        .collect();
    let hits = (0..QUESTIONS).filter(|i| right(*i)).count();
    let (low, high) = stats::wilson(hits, QUESTIONS);
    let set = SetSummary {
        data: "arith.holdout".into(),
        n: QUESTIONS,
        samples: 1,
        accuracy: hits as f64 / QUESTIONS as f64,
        interval: Interval { low, high, method: "wilson".into() },
        mean_tokens: 5.0,
        top_p: 1.0,
        max_new_tokens: 48,
        ..SetSummary::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(files::RECORDS);
    files::write_parquet(&path, &records).unwrap();
    vec![
        (files::SUMMARY, serde_json::to_vec(&Summary { sets: vec![set] }).unwrap()),
        (files::RECORDS, std::fs::read(path).unwrap()),
    ]
}

/// errors.json of two layers with two projections each; one name is hostile.
fn errors(error: f64) -> Vec<u8> {
    let layer = |name: &str, factor: f64| json!({"layer": name, "relative_frobenius": error * factor});
    let layers = [
        layer("model.layers.0.self_attn.q_proj", 1.0),
        layer("model.layers.0.mlp.<b>|_proj", 1.5),
        layer("model.layers.1.self_attn.q_proj", 1.25),
        layer("model.layers.1.mlp.<b>|_proj", 2.0),
    ];
    json!({"format": "x", "relative_frobenius": error, "layers": layers}).to_string().into_bytes()
}

fn before(i: usize) -> bool {
    i.is_multiple_of(4)
}

fn input(stage: &str, point: &[(&str, &str)], artifact: Result<Artifact, String>) -> Input {
    Input {
        slot: if stage == "before" { "gather.0" } else { "gather.1" }.into(),
        stage: stage.into(),
        point: point.iter().map(|(a, l)| ((*a).to_owned(), (*l).to_owned())).collect(),
        checkpoint: "last".into(),
        part: None,
        artifact,
    }
}

/// The inputs of the report: every evaluation before and after.
fn experiment(store: &Store) -> Vec<Input> {
    let plain = |kind, instance: String, config, inputs| Made {
        kind,
        instance,
        config,
        summary: Value::Null,
        inputs,
        files: Vec::new(),
        seconds: 1.0,
    };
    let source = json!({"repo": "bundled", "revision": "main"});
    let source = put(store, model(), plain(Kind::Download, "model".into(), source, vec![]));
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for (v, label) in LABELS.into_iter().enumerate() {
        let (format, size, error) =
            [("bf16", 4_000_000, 0.0), ("nf4", 1_100_000, 0.0912), ("nvfp4", 1_250_000, 0.0951)][v.min(2)];
        let base = put(
            store,
            model(),
            Made {
                files: std::iter::once(("weights", format.into()))
                    .chain((error > 0.0).then(|| ("errors.json", errors(error))))
                    .collect(),
                summary: json!({"format": format, "bytes_before": 4_000_000, "bytes_after": size, "ratio": 1.0,
                "relative_frobenius": error}),
                ..plain(
                    Kind::Quantize,
                    format!("base@variant={label}"),
                    json!({"model": "model", "format": format, "fuse": true}),
                    vec![("model", source.clone())],
                )
            },
        );
        let evaluate = |instance: String, policy: &Artifact, right: &dyn Fn(usize) -> bool| {
            put(
                store,
                Handle::Eval,
                Made {
                    files: evaluation(right),
                    ..plain(
                        Kind::Eval,
                        instance,
                        json!({"policy": "policy", "data": ["arith.holdout"]}),
                        vec![("policy", policy.clone())],
                    )
                },
            )
        };
        let start = evaluate(format!("before@variant={label}"), &base, &before);
        starts.push(input("before", &[("variant", label)], Ok(start)));
        for (s, right) in RIGHT[v].into_iter().enumerate() {
            let seed = s + 1;
            let point = [("seed", ["1", "2"][s]), ("variant", label)];
            let Some(right) = right else {
                let why = "train@seed=2,variant=nvfp4-lora failed: the loss is not finite | <b>\n> quote".to_owned();
                ends.push(input("after", &point, Err(why)));
                continue;
            };
            let lora = json!({"model": "model", "rank": 16, "seed": seed});
            let lora = put(
                store,
                adapter(),
                Made {
                    files: vec![("weights", format!("{format} {seed}").into_bytes())],
                    ..plain(Kind::Lora, "adapter".into(), lora, vec![("model", base.clone())])
                },
            );
            let mut config = json!({"policy": "policy", "data": "arith", "algorithm": "dapo", "steps": 4, "seed": seed,
                "lr": if v == 0 { 5e-4 } else { 1e-3 }});
            if label == "nvfp4-aqn" {
                config["aqn"] = json!({"decay": "exponential", "sigma_start": 1e-2});
            }
            let metrics: String = (1..=4)
                .map(|step| {
                    let mut line = json!({"step": step, "reward": 0.1 * f64::from(step) + 0.05 * s as f64 + 0.03 * v as f64, "entropy": 0.5,
                        "rollout/accuracy": 0.25, "completions/mean_length": 12.0, "aqn/sigma": 0.0, "kl": null,
                        "rollout/tok_s": 1000.0 + 100.0 * f64::from(step), "train/tok_s": 500.0 + v as f64,
                        "step_time": 0.25, "time/rollout": 0.125, "time/update": 0.0625 + 0.03125 * s as f64, "memory/peak_gib": 0.5});
                    if label == "nvfp4-aqn" {
                        line["aqn/sigma"] = json!(0.01 / f64::from(step));
                    }
                    format!("{line}\n")
                })
                .collect();
            let train = put(
                store,
                adapter(),
                Made {
                    files: vec![
                        ("metrics.jsonl", metrics.into_bytes()),
                        ("weights", format!("{label} {seed}").into_bytes()),
                    ],
                    seconds: 60.0 + 20.0 * s as f64,
                    ..plain(Kind::Train, format!("train@seed={seed},variant={label}"), config, vec![("policy", lora)])
                },
            );
            let end = evaluate(format!("after@seed={seed},variant={label}"), &train, &|i| i < right);
            ends.push(input("after", &point, Ok(end)));
        }
    }
    starts.into_iter().chain(ends).collect()
}

fn render(root: &Path, store: &Store, inputs: Vec<Input>, config: Value, name: &str) -> PathBuf {
    let output = root.join(name);
    std::fs::create_dir_all(&output).unwrap();
    let config: report::Config = serde_json::from_value(config).unwrap();
    let context = Context {
        inputs,
        output: output.clone(),
        work: root.join("work"),
        store,
        progress: &Quiet,
        cancel: &Cancel::new(),
        threads: 1,
        base_dir: root.to_owned(),
        hub: &Hub::new(HubConfig::new("http://127.0.0.1:1", root.join("hub"))).unwrap(),
    };
    let made = report::run(&context, &config).unwrap();
    assert_eq!(made.declared[..2], ["report.html", "report.md"]);
    let found: Vec<String> =
        std::fs::read_dir(&output).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let declared: std::collections::BTreeSet<&String> = made.declared.iter().collect();
    assert_eq!(found.iter().collect::<std::collections::BTreeSet<_>>(), declared, "only what is declared");
    output
}

fn config() -> Value {
    json!({"gather": ["gather.0", "gather.1"], "rows": "variant", "over": "seed", "baseline": "bf16-lora",
        "paper": "table2.7B", "pipeline": {"name": "toy", "file": "toy.yaml"}})
}

/// Cells of the first row of the table under `heading` that starts with `label`.
fn row<'a>(text: &'a str, heading: &str, label: &str) -> Vec<&'a str> {
    let section = text.split(&format!("\n## {heading}")).nth(1).unwrap_or_else(|| panic!("no {heading}: {text}"));
    let section = section.split("\n## ").next().unwrap();
    let line =
        section.lines().find(|l| l.starts_with(&format!("| {label}"))).unwrap_or_else(|| panic!("{label}: {section}"));
    line.trim_matches('|').split(" | ").map(str::trim).collect()
}

fn shares(right: &dyn Fn(usize) -> bool) -> Vec<f64> {
    (0..QUESTIONS).map(|i| f64::from(u8::from(right(i)))).collect()
}

fn mean_of(a: usize, b: usize) -> Vec<f64> {
    shares(&|i| i < a).iter().zip(shares(&|i| i < b)).map(|(x, y)| f64::midpoint(*x, y)).collect()
}

#[test]
fn every_figure_stands_in_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let inputs = experiment(&store);
    let out = render(dir.path(), &store, inputs.clone(), config(), "one");
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    if let Some(keep) = std::env::var_os("QERL_KEEP_REPORT") {
        std::fs::create_dir_all(&keep).unwrap();
        for name in ["report.md", "report.html"] {
            std::fs::copy(out.join(name), Path::new(&keep).join(name)).unwrap();
        }
    }

    // Accuracy. Two seeds: t(1) = 12.706205, SD = 0.0353553, half width 0.3177.
    let signed = |x: f64| format!("{:+.1}", x * 100.0).replace("+0.0", "0.0").replace("-0.0", "0.0");
    let range = |p: &stats::Paired| format!("{} to {}", signed(p.low), signed(p.high));
    let gain = stats::paired(&shares(&before), &mean_of(20, 22), 0).unwrap();
    let bf16 = row(&text, "Accuracy", "bf16-lora");
    assert_eq!(bf16[..4], ["bf16-lora", "bf16, 4.00 MB", "25.0 (14.2 to 40.2)", "52.5 (20.7 to 84.3; SD 3.5 of 2)"]);
    assert_eq!(bf16[4..], [format!("+27.5 ({})", range(&gain)), "baseline".to_owned()]);
    let versus = stats::paired(&mean_of(20, 22), &mean_of(36, 38), 0).unwrap();
    let aqn = row(&text, "Accuracy", "nvfp4-aqn");
    assert_eq!(aqn[3], "**92.5** (60.7 to 100.0; SD 3.5 of 2)", "better than every other row");
    assert_eq!(aqn[5], format!("+40.0 ({}; p <0.001)", range(&versus)));
    // One seed is left: Wilson's interval of 20 of 40 and the exact test of 15 against 5.
    let lora = row(&text, "Accuracy", "nvfp4-lora");
    assert_eq!(lora[3], "50.0 (35.2 to 64.8)");
    let start = row(&text, "Comparisons", "nvfp4-lora: after − before");
    assert_eq!(start[5..8], ["+15 −5", "40", "0.041 (McNemar)"]);
    assert_eq!(start[8], "– |".trim_end_matches(" |"));

    // AQN alone against the same without: seed 1 only, which both have.
    let alone = row(&text, "Comparisons", "nvfp4-aqn − nvfp4-lora");
    let pair = stats::paired(&shares(&|i| i < 20), &shares(&|i| i < 36), 0).unwrap();
    assert_eq!(alone[1..6], ["arith.holdout", "train.aqn alone", "+40.0", &range(&pair), "+16 −0"]);
    assert!(text.contains("train.aqn alone (nvfp4-aqn against nvfp4-lora): +40.0 points, more than the noise"));
    let over = row(&text, "Comparisons", "nf4-lora − bf16-lora");
    assert_eq!(over[8], "-5.0 ± 0.0 (2)");
    assert_eq!(over[2], "the baseline; 2 factors");

    // Costs: medians of 1100, 1200, 1300, 1400 twice; 60 s and 80 s; 147 s in all.
    let cost = row(&text, "Cost", "nf4-lora");
    let want = [
        "nf4-lora",
        "nf4",
        "1.10 MB",
        "0.0912",
        "0.50 GiB",
        "1250",
        "501",
        "0.25",
        "70.0 s",
        "2.5 min",
        "train 2.3 min, eval 3.0 s, lora 2.0 s",
    ];
    assert_eq!(cost, want);

    // Time by phase: updates of 62.5 and 93.75 ms over the two seeds, steps of 250 ms.
    let time = row(&text, "Time of a step", "nf4-lora");
    assert_eq!(time, ["nf4-lora", "0.125 s (50%)", "0.078 s (31%)", "0.047 s (19%)", "0.250 s"]);
    assert!(page.contains("aria-label=\"Time of a step by phase\""));
    // Quantization by layer: nf4 apart, the two nvfp4 rows together, bf16 not at all.
    let layers = row(&text, "Quantization error by layer", "nvfp4-lora, nvfp4-aqn");
    assert_eq!(layers[1..4], ["0.0951", "0.1070", "0.1664"]);
    assert_eq!(layers[4].trim_end_matches(" |"), "0.1902, model.layers.1.mlp.&lt;b&gt;\\|\\_proj");
    assert_eq!(row(&text, "Quantization error by layer", "nf4-lora")[1], "0.0912");
    assert!(page.contains("aria-label=\"Quantization error by layer\"") && page.contains("nf4-lora, 1: 0.1482"));

    // Differences and warnings.
    assert!(text.contains("- nvfp4-lora: `quantize.format: bf16 -> nvfp4`, `train.lr: 5e-4 -> 1e-3`\n"), "{text}");
    assert!(
        text.contains("`train.aqn: off -> decay exponential, sigma_start 0.01`, `train.lr: 5e-4 -> 1e-3`\n"),
        "{text}"
    );
    assert!(
        text.contains("nf4-lora, nvfp4-lora differ from bf16-lora in 2 factors at once (quantize.format, train.lr)")
    );
    assert!(text.contains("nvfp4-aqn differs from bf16-lora in 3 factors at once"));
    assert!(text.contains("1 of 12 gathered points failed"));
    assert!(text.contains("as few as 1 point of seed behind a row"));
    assert!(!text.contains("different devices") && !text.contains("no longer in the store"));

    // The failed point and its reason, harmless.
    let failed = row(&text, "Failed points", "after@seed=2,variant=nvfp4-lora");
    assert_eq!(failed[1], "train@seed=2,variant=nvfp4-lora failed: the loss is not finite \\| &lt;b&gt; &gt; quote");
    assert!(page.contains("the loss is not finite | &lt;b&gt;"));

    // The paper's figures stand apart and are named as such.
    let paper = row(&text, "The paper's figures", "NVFP4 LoRA+AQN");
    assert_eq!(paper, ["NVFP4 LoRA+AQN", "77.4", "15.5", "10.0", "42.5", "36.4", "nvfp4-aqn after"]);
    assert_eq!(row(&text, "The paper's figures", "BF16 Full")[6], "–");
    assert!(
        text.contains("as published (QeRL, arXiv 2510.11696 v1): measured by its authors with their model, hardware")
    );

    // Settings, provenance and the command.
    assert!(text.contains("- train.algorithm: dapo\n") && !text.contains("- train.lr:"));
    let made = row(&text, "Provenance", "train@seed=2,variant=nf4-lora");
    assert_eq!(made[2..], ["2", "0.1.0", "cpu (Toy 9000, 2 threads)", "box", "2026-11-30 08:15:00", "80.0 s"]);
    assert!(text.contains("`qerl run toy.yaml`"));

    // Curves with a band over seeds, noise only where there is some, nothing from outside, nothing injected.
    for title in ["Reward", "Entropy", "Noise (sigma)", "Completion length", "Training accuracy"] {
        assert!(page.contains(&format!("<figure><b>{title}</b>")), "{title}");
    }
    assert!(!page.contains("<b>KL</b>") && page.contains("class=\"band c0\""));
    for bad in ["<script", "http://", "https://", "<img", "<link", "url(", "@import"] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("&lt;script&gt;") && text.contains("````text\n<script>"));

    // The same inputs in the same store give the same bytes.
    let again = render(dir.path(), &store, inputs, config(), "two");
    for name in ["report.md", "report.html"] {
        assert!(std::fs::read(out.join(name)).unwrap() == std::fs::read(again.join(name)).unwrap(), "{name}");
    }
}

#[test]
fn without_a_baseline_seeds_or_a_finished_row_it_still_says_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let inputs: Vec<Input> = experiment(&store)
        .into_iter()
        .filter(|i| i.stage == "after" && i.point["seed"] == "2")
        .map(|mut i| {
            i.point.remove("seed");
            i
        })
        .collect();
    let config = json!({"gather": ["gather.1"], "baseline": "int8"});
    let out = render(dir.path(), &store, inputs, config, "one");
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert_eq!(row(&text, "Accuracy", "nvfp4-lora")[..], ["nvfp4-lora", "–", "failed |".trim_end_matches(" |")]);
    assert!(text.contains("the baseline int8 is not among the rows"));
    assert!(!text.contains("gain |") && !text.contains("The paper's figures") && !text.contains("qerl run"));
}

/// Trainings that changed nothing have equal outputs, hence one evaluation: each row still shows its own settings.
#[test]
fn rows_that_share_an_evaluation_keep_their_own_settings() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let mut inputs = Vec::new();
    for (label, lr) in [("slow", 1e-5), ("fast", 1e-3)] {
        let instance = format!("train@variant={label}");
        let train = put(
            &store,
            adapter(),
            Made {
                kind: Kind::Train,
                instance: instance.clone(),
                config: json!({"policy": "policy", "lr": lr}),
                summary: Value::Null,
                inputs: vec![],
                files: vec![],
                seconds: if label == "slow" { 9.0 } else { 5.0 },
            },
        );
        store.set_name("toy", &instance, &train.meta.fingerprint).unwrap();
        if inputs.is_empty() {
            let made = Made {
                kind: Kind::Eval,
                instance: "after@variant=slow".into(),
                config: json!({"policy": "policy", "data": ["arith.holdout"]}),
                summary: Value::Null,
                inputs: vec![("policy", train)],
                files: evaluation(&before),
                seconds: 1.0,
            };
            let shared = put(&store, Handle::Eval, made);
            inputs = ["slow", "fast"].map(|l| input("after", &[("variant", l)], Ok(shared.clone()))).to_vec();
        }
    }
    let config = json!({"gather": ["gather.1"], "baseline": "slow", "pipeline": {"name": "toy", "file": "toy.yaml"}});
    let out = render(dir.path(), &store, inputs, config, "one");
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(text.contains("- fast: `train.lr: 1e-5 -> 1e-3`\n"), "{text}");
    assert_eq!(row(&text, "Cost", "fast")[1], "5.0 s");
    assert!(
        text.contains("**No single row is highest: slow, fast are equal with 25.0% on arith.holdout after.**"),
        "{text}"
    );
}

#[test]
fn figures_outlive_the_artifacts_behind_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let inputs = experiment(&store);
    let last = inputs.last().unwrap().artifact.as_ref().unwrap();
    let training = &last.meta.inputs["policy"];
    std::fs::remove_dir_all(store.entry(training).unwrap()).unwrap();
    let out = render(dir.path(), &store, inputs.clone(), config(), "one");
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(text.contains(&format!("no longer in the store or damaged ({})", &training[..12])));
    assert!(row(&text, "Accuracy", "nvfp4-aqn")[3].starts_with("**92.5**"));
}

#[test]
fn the_gate_reads_the_gain_of_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let out = render(dir.path(), &store, experiment(&store), config(), "one");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/check_gain.py");
    let check = |need: &str| {
        let run = std::process::Command::new("python3").arg(&script).arg(out.join("report.md")).arg(need).output();
        run.map(|o| (o.status.success(), String::from_utf8_lossy(&o.stdout).into_owned()))
    };
    let Ok((passed, said)) = check("15") else {
        println!("skipped: python3 is not here");
        return;
    };
    assert!(passed && said.contains("bf16-lora: +27.5 points") && said.contains("nvfp4-aqn: +67.5"), "{said}");
    assert!(!check("26").unwrap().0, "nf4-lora gained 22.5");
}

#[test]
fn the_page_holds_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let out = render(dir.path(), &store, experiment(&store), config(), "one");
    browser::check(&out.join("report.html"), 10, 6);
}

/// What the tables say is what anybody gets from the parquet beside them.
#[test]
fn the_tables_can_be_recomputed_from_the_parquet() {
    use polars::prelude::{DataFrame, ParquetReader, SerReader};
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    let out = render(dir.path(), &store, experiment(&store), config(), "one");
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    let read = |name: &str| -> DataFrame {
        ParquetReader::new(std::fs::File::open(out.join(name)).unwrap()).finish().unwrap()
    };
    let texts = |frame: &DataFrame, name: &str| -> Vec<String> {
        frame.column(name).unwrap().str().unwrap().iter().map(|t| t.unwrap().to_owned()).collect()
    };
    let frame = read("answers.parquet");
    let [rows, stages, points] = ["row", "stage", "point"].map(|name| texts(&frame, name));
    let correct: Vec<u64> = frame.column("correct").unwrap().u64().unwrap().iter().map(Option::unwrap).collect();
    for label in LABELS {
        for (stage, column) in [("before", 2), ("after", 3)] {
            let mut shares: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
            for i in (0..rows.len()).filter(|&i| rows[i] == label && stages[i] == stage) {
                let slot = shares.entry(&points[i]).or_default();
                *slot = (slot.0 + correct[i] as f64, slot.1 + 1.0);
            }
            let accuracies: Vec<f64> = shares.values().map(|(right, n)| right / n).collect();
            let expected = format!("{:.1}", 100.0 * accuracies.iter().sum::<f64>() / accuracies.len() as f64);
            let shown = row(&text, "Accuracy", label)[column].trim_start_matches("**").to_owned();
            assert!(shown.starts_with(&expected), "{label} {stage}: {shown} is not {expected}");
        }
    }
    // The paired difference of two rows at the seed that both have.
    let share = |label: &str| -> Vec<u64> {
        let own = (0..rows.len())
            .filter(|&i| rows[i] == label && stages[i] == "after" && points[i] == format!("seed=1,variant={label}"));
        own.map(|i| correct[i]).collect()
    };
    let (a, b) = (share("nvfp4-aqn"), share("nvfp4-lora"));
    let difference = (a.iter().sum::<u64>() as f64 - b.iter().sum::<u64>() as f64) / a.len() as f64;
    assert_eq!(row(&text, "Comparisons", "nvfp4-aqn − nvfp4-lora")[3], format!("{:+.1}", difference * 100.0));
    let errors = read("quantization.parquet");
    let (owners, layers) = (texts(&errors, "row"), texts(&errors, "layer"));
    let own = (0..owners.len()).filter(|&i| owners[i] == "nf4-lora" && layers[i].ends_with("q_proj"));
    let column = errors.column("relative_frobenius").unwrap().f64().unwrap();
    let values: Vec<f64> = own.map(|i| column.get(i).unwrap()).collect();
    assert_eq!(values.len(), 2);
    let shown = row(&text, "Quantization error by layer", "nf4-lora")[2];
    assert_eq!(shown, format!("{:.4}", values.iter().sum::<f64>() / 2.0));
    // csv and parquet hold the same lines.
    for name in ["accuracy", "answers", "curves", "comparisons", "quantization"] {
        let csv = std::fs::read_to_string(out.join(format!("{name}.csv"))).unwrap();
        assert_eq!(csv.lines().count() - 1, read(&format!("{name}.parquet")).height(), "{name}");
    }
}

#[test]
fn a_users_template_replaces_the_built_in_one_and_cannot_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    std::fs::write(dir.path().join("mine/report.md.j2"), "mine: {{ data.title | md }}\n").unwrap();
    let mut own = config();
    own["templates"] = json!("mine");
    let out = render(dir.path(), &store, experiment(&store), own, "one");
    assert_eq!(std::fs::read_to_string(out.join("report.md")).unwrap().trim(), "mine: toy");
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("<h2 id=\"accuracy\">"));
}

#[test]
fn any_finished_runs_make_a_report_and_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    for input in experiment(&store) {
        let Ok(artifact) = &input.artifact else { continue };
        let point: Vec<String> = input.point.iter().map(|(a, l)| format!("{a}={l}")).collect();
        let name = format!("{}@{}", input.stage, point.join(","));
        store.set_name("toy", &name, &artifact.meta.fingerprint).unwrap();
    }
    let qerl = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_qerl"));
        command.args(args).current_dir(dir.path()).env("QERL_HOME", dir.path().join("store"));
        command.env("HF_HOME", dir.path().join("hf"));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, error) = qerl(&["runs", "top", "--metric", "after.arith.holdout.pass1", "--limit", "2"]);
    assert_eq!(code, Some(0), "{error}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("0.9500") && lines[0].ends_with("toy:after@seed=2,variant=nvfp4-aqn"), "{out}");
    assert!(lines[1].contains("0.9000") && lines[1].ends_with("toy:after@seed=1,variant=nvfp4-aqn"), "{out}");
    let (code, _, error) = qerl(&["runs", "top", "--metric", "after.arith.pass1"]);
    assert!(code != Some(0) && error.contains("arith.holdout.pass1"), "it says what there is: {error}");

    let (code, out, error) = qerl(&["report", "toy:after", "--over", "seed", "--baseline", "bf16-lora", "-o", "x"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("report.html"));
    let text = std::fs::read_to_string(dir.path().join("x/report.md")).unwrap();
    assert!(row(&text, "Accuracy", "nvfp4-aqn")[2].starts_with("**92.5**"), "{text}");
    let ranks = row(&text, "Ranking", "nvfp4-aqn");
    assert_eq!(ranks[1..5], ["arith.holdout", "1", "92.5", "1: 90.0, 2: 95.0"]);
    assert_eq!(row(&text, "Ranking", "bf16-lora")[7], "yes");
    assert!(qerl(&["report", "tow"]).2.contains("finished pipelines: toy"));
}
