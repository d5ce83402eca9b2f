//! The pipeline language: what files expand to, and what is said about wrong ones.

#[path = "pipeline/cli.rs"]
mod cli;
#[path = "pipeline/errors.rs"]
mod errors;
#[path = "pipeline/expansion.rs"]
mod expansion;
#[path = "pipeline/files.rs"]
mod files;
#[path = "pipeline/hostile.rs"]
mod hostile;
#[path = "pipeline/traps.rs"]
mod traps;

use std::path::{Path, PathBuf};

use qerl::pipeline::{Diagnostics, Graph, Instance, Options, load};

/// A folder of pipeline files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self, name: &str, options: &Options) -> Result<Graph, Diagnostics> {
        load(&self.path(name), options)
    }
}

fn sets(sets: &[&str]) -> Options {
    Options { sets: sets.iter().map(|s| (*s).to_owned()).collect(), ..Options::default() }
}

fn only(only: &[&str]) -> Options {
    Options { only: only.iter().map(|s| (*s).to_owned()).collect(), ..Options::default() }
}

fn profile(name: &str) -> Options {
    Options { profile: Some(name.to_owned()), ..Options::default() }
}

/// Expands a text that must be right.
fn good(text: &str, options: &Options) -> Graph {
    let folder = Folder::new(&[("p.yaml", text)]);
    folder.load("p.yaml", options).unwrap_or_else(|d| panic!("{}", d.render(false)))
}

/// The diagnostics of a text that must be wrong, the folder's name taken out.
fn bad(text: &str, options: &Options) -> String {
    let folder = Folder::new(&[("p.yaml", text)]);
    let diagnostics = folder.load("p.yaml", options).expect_err("this must be refused");
    rendered(&diagnostics, folder.0.path())
}

fn rendered(diagnostics: &Diagnostics, folder: &Path) -> String {
    diagnostics.render(false).replace(&format!("{}/", folder.display()), "")
}

fn names(graph: &Graph) -> Vec<String> {
    graph.instances.iter().map(Instance::name).collect()
}

fn instance<'a>(graph: &'a Graph, name: &str) -> &'a Instance {
    graph.instances.iter().find(|i| i.name() == name).unwrap_or_else(|| panic!("no {name} in {:?}", names(graph)))
}

/// `slot <- producer (checkpoint, part)`.
fn inputs(graph: &Graph, name: &str) -> Vec<String> {
    let edges = instance(graph, name).inputs.iter();
    edges
        .map(|e| {
            let part = e.part.as_ref().map(|p| format!(" {p}")).unwrap_or_default();
            let checkpoint = if e.checkpoint == "last" { String::new() } else { format!(" {}", e.checkpoint) };
            format!("{} <- {}{checkpoint}{part}", e.slot, graph.instances[e.from].name())
        })
        .collect()
}

/// The example of the design: four variants, three seeds.
const EXAMPLE: &str = r#"
name: qwen2.5-7b-dapo
include: [shared/eval.yaml]
vars: {model: Qwen/Qwen2.5-7B-Instruct}
data:
  bigmath: {repo: open-r1/Big-Math-RL-Verified-Processed, config: level_3_4_5, columns: {prompt: prompt, answer: solution}, template: qerl_think, max_prompt_tokens: 1024, holdout: {n: 500, seed: 7}}
variants:
  bf16-lora:  {base.format: bf16, train.lr: 5e-6}
  nf4-lora:   {base.format: nf4}
  nvfp4-lora: {}
  nvfp4-aqn:  {train.aqn: {decay: exponential, sigma_start: 1e-2, sigma_end: 5e-4, stages: 10}}
sweep: {seed: [1, 2, 3]}
profiles:
  smoke: {model.repo: bundled, train.steps: 2, train.data: arith, before.data: [arith], after.data: [arith]}
stages:
  - id: model
    run: {download: {repo: "${vars.model}", revision: main}}
  - id: base
    run: {quantize: {model: model, format: nvfp4}}
  - id: adapter
    run: {lora: {model: base, rank: 32, alpha: 32, train_norms: true, seed: "${sweep.seed}"}}
  - id: train
    run: {train: {policy: adapter, data: bigmath, algorithm: dapo, steps: 500, prompts_per_step: 8, group_size: 16, updates_per_rollout: 1, max_completion: 8192, optimizer: adamw_8bit, lr: 1e-5, rewards: {accuracy: 1.0, soft_format: 0.2}, seed: "${sweep.seed}"}}
    resources: {gpus: 1}
  - id: before
    run: {eval: {policy: base, data: [math500, aime24, aime25, amc23, bigmath.holdout]}}
  - id: after
    run: {eval: {policy: {stage: train, checkpoint: last}, data: [math500, aime24, aime25, amc23, bigmath.holdout]}}
  - id: report
    run: {report: {gather: [before, after], rows: variant, over: seed, baseline: bf16-lora, paper: table2.7B}}
"#;

fn example() -> Folder {
    let eval = "defaults: {eval: {samples: 8, temperature: 0.6, top_p: 0.95}}";
    Folder::new(&[("p.yaml", EXAMPLE), ("shared/eval.yaml", eval)])
}

/// A stage that others can read.
const MODEL: &str = "name: x\nstages:\n  - {id: model, run: {download: {repo: bundled}}}\n";
