//! What files expand to.

use std::collections::BTreeSet;

use qerl::pipeline::Options;
use qerl::stages::Kind;
use serde_json::json;

use super::{EXAMPLE, MODEL, bad, example, good, inputs, instance, names, only, profile, sets};

#[test]
fn the_example_of_the_design() {
    let folder = example();
    let graph = folder.load("p.yaml", &Options::default()).unwrap();
    let first = graph.first_equal();
    let own: Vec<usize> = (0..graph.instances.len()).filter(|i| !graph.instances[*i].stage.contains('.')).collect();
    assert_eq!(own.len(), 46);
    assert_eq!(own.iter().filter(|i| first[**i] == **i).count(), 41, "the base of nvfp4-aqn is that of nvfp4-lora");
    assert_eq!(graph.instances.len() - own.len(), 10, "a download and a split for each of five sets");
    assert_eq!(graph.instances.iter().filter(|i| i.kind == Kind::Train).count(), 12);
    for (index, instance) in graph.instances.iter().enumerate() {
        let before = instance.inputs.iter().map(|e| e.from).chain(instance.needs.iter().copied());
        assert!(before.into_iter().all(|i| i < index), "inputs come first: {}", instance.name());
    }
    let aqn = instance(&graph, "train@seed=2,variant=nvfp4-aqn");
    assert_eq!(aqn.config["seed"], 2);
    assert_eq!(aqn.config["lr"], json!(1e-5));
    assert_eq!(aqn.config["aqn"]["stages"], 10);
    assert_eq!(aqn.config["policy"], "policy");
    assert_eq!(aqn.config["warmup"], json!(0.1), "defaults are filled in");
    assert_eq!(aqn.resources.gpus, 1);
    assert_eq!(instance(&graph, "train@seed=2,variant=bf16-lora").config["lr"], json!(5e-6));
    assert_eq!(
        inputs(&graph, "train@seed=2,variant=nvfp4-aqn"),
        ["policy <- adapter@seed=2,variant=nvfp4-aqn", "data <- data.bigmath train"]
    );
    let before = inputs(&graph, "before@variant=nf4-lora");
    assert_eq!(before[..2], ["policy <- base@variant=nf4-lora", "data.0 <- data.math500 all"]);
    assert_eq!(before[5], "data.4 <- data.bigmath holdout");
    assert_eq!(instance(&graph, "before@variant=nf4-lora").config["samples"], 8, "from the included defaults");
    assert_eq!(instance(&graph, "report").inputs.len(), 4 + 12);
    assert_eq!(instance(&graph, "report").inputs[4].slot, "gather.1");
    let split = instance(&graph, "data.bigmath");
    assert_eq!(split.config["source"], "source");
    assert_eq!(split.config["holdout"], json!({"n": 500, "seed": 7}));
    assert_eq!(split.config["spec"]["builtin"], "bigmath");
    let download = instance(&graph, "data.bigmath.download");
    assert_eq!((&download.config["dataset"], &download.config["revision"]), (&json!(true), &json!("main")));
    assert!(graph.notes.is_empty(), "{:?}", graph.notes);
}

#[test]
fn a_profile_and_only() {
    let folder = example();
    let smoke = folder.load("p.yaml", &profile("smoke")).unwrap();
    assert_eq!(instance(&smoke, "model").config["repo"], "bundled");
    let train = instance(&smoke, "train@seed=1,variant=nf4-lora");
    assert_eq!((&train.config["steps"], &train.config["data"]), (&json!(2), &json!("arith")));
    assert_eq!(inputs(&smoke, "after@seed=1,variant=nf4-lora")[1], "data.0 <- data.arith holdout");
    assert!(!names(&smoke).iter().any(|n| n.starts_with("data.bigmath")));

    let one = folder.load("p.yaml", &only(&["variant=nvfp4-aqn,seed=1"])).unwrap();
    assert_eq!(one.instances.iter().filter(|i| i.kind == Kind::Train).count(), 1);
    assert_eq!(instance(&one, "report").inputs.len(), 2);
    let two = folder.load("p.yaml", &only(&["variant=nvfp4-aqn,seed=1", "seed=3,variant=nf4-lora"])).unwrap();
    assert_eq!(two.instances.iter().filter(|i| i.kind == Kind::Train).count(), 2);
}

#[test]
fn later_layers_win() {
    let text = r#"
name: x
vars: {steps: 3}
defaults: {train: {steps: 1, lr: 1e-3, seed: 1, warmup: 0.5, rewards: {accuracy: 2}}}
variants: {a: {train.warmup: 0.3}, b: {train.warmup: 0.4, vars.steps: 30}}
profiles: {p: {train.seed: 5, train.warmup: 0.9, train.clip.high: 0.5}}
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: train, run: {train: {policy: model, data: arith, steps: "${vars.steps}", lr: 2e-3, clip: {low: 0.1}}}}
"#;
    let plain = good(text, &Options::default());
    let train = &instance(&plain, "train@variant=a").config;
    assert_eq!((&train["steps"], &train["lr"], &train["seed"]), (&json!(3), &json!(2e-3), &json!(1)));
    assert_eq!((&train["warmup"], &train["rewards"]), (&json!(0.3), &json!({"accuracy": 2.0})));
    assert_eq!(instance(&plain, "train@variant=b").config["steps"], 30, "a variable that a variant sets");
    let graph = good(text, &Options { profile: Some("p".into()), ..sets(&["train.clip.low=0.2", "train.seed=7"]) });
    let train = &instance(&graph, "train@variant=a").config;
    assert_eq!(
        (&train["seed"], &train["warmup"]),
        (&json!(7), &json!(0.3)),
        "--set over profile, variant over profile"
    );
    assert_eq!(train["clip"], json!({"low": 0.2, "high": 0.5}));
}

#[test]
fn values_keep_their_types() {
    let text = r#"
name: x
vars: {n: 4, on: true, lr: 1e-5, list: [q_proj, v_proj], deep: {rank: 8}, rev: 61e9540, tag: v}
stages:
  - {id: model, run: {download: {repo: "a/${vars.tag}${vars.n}", revision: "${vars.rev}"}}}
  - {id: no, run: {download: {repo: NO, revision: 0123}}}
  - {id: lora, run: {lora: {model: model, rank: "${vars.deep.rank}", alpha: "${vars.n}", targets: "${vars.list}", train_norms: "${vars.on}"}}}
  - {id: sft, run: {sft: {policy: lora, data: arith, steps: 2e1, lr: "${vars.lr}"}}}
"#;
    let graph = good(text, &Options::default());
    let of = |name: &str, key: &str| instance(&graph, name).config[key].clone();
    assert_eq!((of("model", "repo"), of("model", "revision")), (json!("a/v4"), json!("61e9540")));
    assert_eq!((of("no", "repo"), of("no", "revision")), (json!("NO"), json!("0123")));
    assert_eq!((of("lora", "rank"), of("lora", "alpha")), (json!(8), json!(4.0)));
    assert_eq!((of("lora", "targets"), of("lora", "train_norms")), (json!(["q_proj", "v_proj"]), json!(true)));
    assert_eq!((of("sft", "steps"), of("sft", "lr")), (json!(20), json!(1e-5)));
}

#[test]
fn secrets_stay_names() {
    let text = "name: x\nstages:\n  - {id: m, run: {download: {repo: \"${secrets.WHERE}\"}}}\n";
    assert_eq!(instance(&good(text, &Options::default()), "m").config["repo"], "${secrets.WHERE}");
    let text = "name: x\nstages:\n  - {id: m, run: {download: {repo: \"${secrets.a b}\"}}}\n";
    assert!(bad(text, &Options::default()).contains("names no environment variable"));
}

#[test]
fn references_pin_axes_and_choose_checkpoints() {
    let text = format!(
        "{MODEL}  - {{id: base, run: {{quantize: {{model: model, format: \"${{sweep.format}}\"}}}}}}
  - {{id: lora, run: {{lora: {{model: base, seed: \"${{sweep.seed}}\"}}}}}}
  - {{id: one, run: {{eval: {{policy: {{stage: lora, at: {{format: nf4}}, checkpoint: init}}, data: [sums]}}}}}}
sweep: {{seed: [1, 2], format: [nf4, nvfp4]}}
"
    );
    let graph = good(&text, &Options::default());
    assert_eq!(inputs(&graph, "one@seed=2")[0], "policy <- lora@format=nf4,seed=2 init");
    assert!(!names(&graph).contains(&"lora@format=nvfp4,seed=1".to_owned()), "nobody reads it");
    assert!(!names(&graph).contains(&"base@format=nvfp4".to_owned()), "only a dropped one would read it");
    assert!(graph.notes.iter().any(|n| n.contains("base@format=nvfp4")), "{:?}", graph.notes);
    let graph = good(&text, &only(&["format=nvfp4,seed=1"]));
    assert_eq!(inputs(&graph, "one@seed=1")[0], "policy <- lora@format=nf4,seed=1 init", "pinned beyond --only");
}

#[test]
fn needs_wait_for_all_that_agree() {
    let text = format!(
        "{MODEL}  - {{id: lora, run: {{lora: {{model: model, seed: \"${{sweep.seed}}\"}}}}}}
  - {{id: later, run: {{eval: {{policy: model, data: [sums]}}}}, needs: lora}}
  - {{id: each, run: {{eval: {{policy: lora, data: [sums]}}}}, needs: [lora, later]}}
sweep: {{seed: [1, 2]}}
"
    );
    let graph = good(&text, &Options::default());
    let needs = |name: &str| -> Vec<String> {
        instance(&graph, name).needs.iter().map(|i| graph.instances[*i].name()).collect()
    };
    assert_eq!(needs("later"), ["lora@seed=1", "lora@seed=2"]);
    assert_eq!(needs("each@seed=2"), ["lora@seed=2", "later"]);
}

/// The points of `s`, which uses three axes.
fn points(select: &str, options: &Options) -> Vec<String> {
    let text = format!(
        "{MODEL}  - {{id: s, run: {{lora: {{model: model, rank: \"${{sweep.a}}\", alpha: \"${{sweep.b}}\", seed: \"${{sweep.c}}\"}}}}}}
sweep: {{a: [1, 2, 3], b: {{low: 1, mid: 5, high: 9}}, c: [7, 8]}}
select: {select}
"
    );
    names(&good(&text, options)).into_iter().filter_map(|n| n.strip_prefix("s@").map(str::to_owned)).collect()
}

#[test]
fn select_chooses_points() {
    let plain = Options::default();
    assert_eq!(points("{}", &plain).len(), 18);
    assert_eq!(points("{exclude: [{a: 1}, {b: [low, mid], c: 7}]}", &plain).len(), 8);
    let zipped = points("{zip: [a, b], exclude: [{c: 7}]}", &plain);
    assert_eq!(zipped, ["a=1,b=low,c=8", "a=2,b=mid,c=8", "a=3,b=high,c=8"]);
    let added = points("{zip: [a, b], exclude: [{c: 7}], add: [{a: 1, b: high, c: 7}, {a: 1, b: low}]}", &plain);
    assert_eq!(added[3..], ["a=1,b=high,c=7", "a=1,b=low,c=7"]);
    let sampled = points("{sample: {n: 5, seed: 3}}", &plain);
    assert_eq!(sampled.len(), 5);
    assert_eq!(sampled, points("{sample: {n: 5, seed: 3}}", &plain), "the same seed, the same points");
    assert_ne!(sampled, points("{sample: {n: 5, seed: 4}}", &plain));
    assert_eq!(points("{sample: {n: 100}}", &plain).len(), 18);
    assert_eq!(points("{exclude: [{a: 1}]}", &only(&["a=2,b=low", "a=3,c=8"])).len(), 5);
    assert_eq!(points("{}", &sets(&["sweep.a=2", "sweep.b=[3]"])), ["a=2,b=3,c=7", "a=2,b=3,c=8"]);
}

#[test]
fn a_huge_grid_can_be_sampled() {
    let axes: Vec<String> = (0..10).map(|i| format!("a{i}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")).collect();
    let seed: String = (0..10).map(|i| format!("${{sweep.a{i}}}")).collect();
    let text = |select: &str| {
        format!(
            "{MODEL}  - {{id: s, run: {{download: {{repo: bundled, revision: \"r{seed}\"}}}}}}\nsweep: {{{}}}\n{select}",
            axes.join(", ")
        )
    };
    let said = bad(&text(""), &Options::default());
    assert!(said.contains("10000000000 combinations, more than 4096"), "{said}");
    // `revision` has no meaning with the bundled model.
    let graph = good(
        &text("select: {sample: {n: 50, seed: 1}}").replace("repo: bundled, rev", "repo: a/b, rev"),
        &Options::default(),
    );
    let distinct: BTreeSet<String> = names(&graph).into_iter().filter(|n| n.starts_with("s@")).collect();
    assert_eq!(distinct.len(), 50);
}

#[test]
fn equal_variants_and_unused_things_are_noted() {
    let folder = example();
    let graph = folder.load("p.yaml", &sets(&["base.format=nf4"])).unwrap();
    assert!(graph.notes.iter().any(|n| n == "the variants nf4-lora, nvfp4-lora are the same experiment (see --set)"));
    let graph = good(
        "name: x\nvars: {a: 1}\ndata: {d: {builtin: sums}}\nstages:\n  - {id: m, run: {download: {repo: bundled}}}\n",
        &Options::default(),
    );
    assert!(graph.notes[0].ends_with("p.yaml:2:8: nothing uses the variable `a`"), "{:?}", graph.notes);
    assert!(graph.notes[1].ends_with("p.yaml:3:8: nothing uses the data set `d`"), "{:?}", graph.notes);
}

#[test]
fn data_sets_are_shared_and_refined() {
    let text = format!(
        "{MODEL}  - {{id: train, run: {{train: {{policy: model, data: gsm8k, steps: 2, eval_every: 1, eval_data: gsm8k}}}}}}
  - {{id: after, run: {{eval: {{policy: train, data: [gsm8k, gsm8k.holdout, mine]}}}}}}
data:
  gsm8k: {{template: boxed}}
  mine: {{repo: \"file:x\", columns: {{prompt: q, answer: a}}}}
"
    );
    let graph = good(&text, &Options::default());
    assert_eq!(
        inputs(&graph, "train")[1..],
        ["data <- data.gsm8k train", "eval_data <- data.gsm8k holdout"],
        "what the source keeps for evaluation is the hold-out"
    );
    assert_eq!(inputs(&graph, "after")[1..3], ["data.0 <- data.gsm8k holdout", "data.1 <- data.gsm8k holdout"]);
    assert_eq!(inputs(&graph, "after")[3], "data.2 <- data.mine all");
    let spec = &instance(&graph, "data.gsm8k").config["spec"];
    assert_eq!((&spec["builtin"], &spec["template"]), (&json!("gsm8k"), &json!("boxed")));
    assert_eq!(instance(&graph, "data.gsm8k.download").config["config"], "main");
    let boxed = good(&text, &sets(&["data.gsm8k.template=plain", "data.mine.holdout={n: 3}"]));
    assert_eq!(instance(&boxed, "data.gsm8k").config["spec"]["template"], "plain");
    assert_eq!(instance(&boxed, "data.mine").config["holdout"], json!({"n": 3, "seed": 0}));
}

#[test]
fn a_variant_may_change_data_and_references() {
    let text = format!(
        "{MODEL}  - {{id: lora, run: {{lora: {{model: model}}}}}}
  - {{id: eval, run: {{eval: {{policy: model, data: [sums]}}}}}}
variants: {{a: {{}}, b: {{eval.policy: lora, data.sums.n: 10}}}}
"
    );
    let graph = good(&text, &Options::default());
    assert_eq!(inputs(&graph, "eval@variant=a"), ["policy <- model", "data.0 <- data.sums@variant=a holdout"]);
    assert_eq!(inputs(&graph, "eval@variant=b"), ["policy <- lora", "data.0 <- data.sums@variant=b holdout"]);
    assert!(EXAMPLE.contains("variants"));
}

#[test]
fn merge_keys_and_anchors() {
    let text = "
name: x
x-common: &common {rank: 4, alpha: 2}
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: a, run: {lora: {<<: *common, model: model, alpha: 3}}}
";
    let graph = good(text, &Options::default());
    let config = &instance(&graph, "a").config;
    assert_eq!((&config["rank"], &config["alpha"]), (&json!(4), &json!(3.0)));
}
