//! The whole line with qerl's own stages: a model made from nothing, quantized, trained with and without noise,
//! evaluated before and after, reported. One training fails, and the report says why.

use std::collections::BTreeMap;
use std::path::Path;

use qerl::control::Cancel;
use qerl::hub::{Hub, HubConfig};
use qerl::pipeline::{Edge, Graph, Instance, Resources};
use qerl::run::dispatch::Builtin;
use qerl::run::{Deaf, Executor, Options, Outcome};
use qerl::stages::Kind;
use qerl::store::Store;
use serde_json::{Value, json};

#[derive(Default)]
struct Pipeline(Vec<Instance>);

impl Pipeline {
    /// Adds an instance; inputs are slot, instance and part. Gives its index.
    fn add(
        &mut self,
        stage: &str,
        kind: Kind,
        point: &[(&str, &str)],
        config: Value,
        inputs: &[(&str, usize, Option<&str>)],
    ) -> usize {
        let edge = |(slot, from, part): &(&str, usize, Option<&str>)| Edge {
            slot: (*slot).to_owned(),
            from: *from,
            checkpoint: "last".to_owned(),
            part: part.map(str::to_owned),
        };
        self.0.push(Instance {
            stage: stage.to_owned(),
            kind,
            point: point.iter().map(|(axis, label)| ((*axis).to_owned(), (*label).to_owned())).collect(),
            config,
            inputs: inputs.iter().map(edge).collect(),
            needs: Vec::new(),
            resources: Resources::default(),
        });
        self.0.len() - 1
    }
}

fn instances() -> Vec<Instance> {
    let mut p = Pipeline::default();
    let spec = json!({"spec": {"builtin": "sums", "n": 120, "template": "plain"}, "holdout": {"n": 24, "seed": 3}});
    let sums = p.add("data.sums", Kind::Split, &[], spec, &[]);
    let pretrain = json!({"data": "sums", "steps": 150, "batch": 16, "lr": 3e-3, "architecture": {"hidden_size": 32,
        "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64}});
    let model = p.add("pre", Kind::Sft, &[], pretrain, &[("data", sums, Some("train"))]);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (label, format, extra) in [
        ("bf16-lora", "bf16", json!({})),
        ("nvfp4-lora", "nvfp4", json!({})),
        ("nvfp4-aqn", "nvfp4", json!({"aqn": {"sigma_start": 1e-2, "sigma_end": 5e-4, "stages": 2}})),
        ("broken", "nvfp4", json!({"rewards": {"kindness": 1.0}})),
    ] {
        let at = [("variant", label)];
        let base = json!({"model": "model", "format": format});
        let base = p.add("base", Kind::Quantize, &at, base, &[("model", model, None)]);
        let lora = json!({"model": "model", "rank": 4, "alpha": 4.0, "train_norms": true});
        let lora = p.add("adapter", Kind::Lora, &at, lora, &[("model", base, None)]);
        let eval = json!({"policy": "policy", "data": ["sums.holdout"], "max_new_tokens": 12});
        let with = |policy| [("policy", policy, None), ("data.0", sums, Some("holdout"))];
        before.push(p.add("before", Kind::Eval, &at, eval.clone(), &with(base)));
        let mut train = json!({"policy": "policy", "data": "sums", "algorithm": "grpo", "steps": 2,
            "prompts_per_step": 2, "group_size": 4, "max_completion": 12, "lr": 1e-3, "rewards": {"accuracy": 1.0, "length": 0.1}});
        for (key, value) in extra.as_object().unwrap() {
            train[key] = value.clone();
        }
        let train = p.add("train", Kind::Train, &at, train, &[("policy", lora, None), ("data", sums, Some("train"))]);
        after.push(p.add("after", Kind::Eval, &at, eval, &with(train)));
    }
    let gather: Vec<_> = before.iter().map(|i| ("gather.0", *i, None)).collect();
    let gather: Vec<_> = gather.into_iter().chain(after.iter().map(|i| ("gather.1", *i, None))).collect();
    let report = json!({"gather": ["gather.0", "gather.1"], "rows": "variant", "baseline": "bf16-lora"});
    p.add("report", Kind::Report, &[], report, &gather);
    p.0
}

#[test]
fn a_pipeline_runs_from_nothing_to_a_report_and_then_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph {
        name: "line".to_owned(),
        file: dir.path().join("line.yaml"),
        instances: instances(),
        axes: BTreeMap::new(),
        notes: Vec::new(),
    };
    let store = Store::open(dir.path().join("store")).unwrap().with_hub_cache(dir.path().join("hub"));
    let hub = Hub::new(HubConfig::new("http://127.0.0.1:1", dir.path().join("hub"))).unwrap();
    let run = || {
        let options = Options { keep_going: true, threads: Some(2), ..Options::default() };
        let executor = Executor {
            graph: &graph,
            store: &store,
            hub: &hub,
            stages: &Builtin,
            resolver: &hub,
            listener: &Deaf,
            cancel: Cancel::new(),
            options,
            lock_path: dir.path().join("qerl.lock"),
        };
        executor.run().unwrap()
    };
    let first = run();
    let failed: Vec<_> = first
        .outcomes
        .iter()
        .filter_map(
            |(name, _, o)| if let Outcome::Failed(why) = o { Some((name.as_str(), why.as_str())) } else { None },
        )
        .collect();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert_eq!(failed[0].0, "train@variant=broken");
    assert!(failed[0].1.contains("kindness"), "{}", failed[0].1);

    let report = first.reports().next().expect("the report is made all the same").1;
    let text = std::fs::read_to_string(report.dir.join("report.md")).unwrap();
    if let Some(keep) = std::env::var_os("QERL_KEEP_REPORT") {
        for name in ["report.md", "report.html"] {
            std::fs::copy(report.dir.join(name), Path::new(&keep).join(format!("line-{name}"))).unwrap();
        }
    }
    assert!(text.starts_with("# line\n"), "{text}");
    assert!(text.contains("| after@variant=broken | train@variant=broken failed: "), "the root cause: {text}");
    assert!(text.contains("train.aqn alone (nvfp4-aqn against nvfp4-lora)"), "{text}");
    assert!(text.contains("quantize.format alone") || text.contains("the baseline; quantize.format alone"));
    assert!(text.contains("- broken: nothing that is known\n") && !text.contains("broken differs"), "{text}");
    assert!(
        text.contains("- train.algorithm: grpo\n") && text.contains("nvfp4-aqn differs from bf16-lora in 2 factors")
    );
    assert!(text.contains("`qerl run line.yaml`"));
    for row in ["bf16-lora", "nvfp4-lora", "nvfp4-aqn"] {
        let section = text.split("## Cost").nth(1).unwrap();
        let line = section.lines().find(|l| l.starts_with(&format!("| {row} "))).unwrap();
        assert!(line.contains(" kB |") && !line.ends_with("| – |"), "{line}");
    }
    let page = std::fs::read_to_string(report.dir.join("report.html")).unwrap();
    assert!(page.contains("<b>Entropy</b>") && page.contains("<b>Noise (sigma)</b>"));

    let second = run();
    assert_eq!(second.ran(), 0, "everything is in the store");
    assert_eq!(second.cached(), first.ran() + first.cached());
}
