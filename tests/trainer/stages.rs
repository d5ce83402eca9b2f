//! The stages around the trainer: a model made from nothing, then trained by RL, with the files that both leave.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use qerl::control::{Cancel, Quiet};
use qerl::data::{DataSpec, Problem};
use qerl::engine::*;
use qerl::hub::{Hub, HubConfig};
use qerl::model::{Checkpoint, ModelConfig, eos_ids, names};
use qerl::rl::language::Language;
use qerl::stages::{Context, Input, Kind, Output, sft, train};
use qerl::store::{Artifact, Handle, Meta, Provenance, Store};
use qerl::{Error, Result};

/// Holds a model's parameters and moves each by its gradient, which is what is said of the log-probs in sum.
struct Bag {
    config: ModelConfig,
    parameters: Vec<NamedTensor>,
    pull: f32,
    steps: u64,
}

impl Bag {
    fn load(model: &Path) -> Result<Self> {
        let config = ModelConfig::read(model)?;
        let checkpoint = Checkpoint::open(model)?;
        let parameters =
            names::parameters(&config).iter().map(|(name, _)| checkpoint.dense(name)).collect::<Result<_>>()?;
        Ok(Self { config, parameters, pull: 0.0, steps: 0 })
    }
}

impl Engine for Bag {
    fn config(&self) -> &ModelConfig {
        &self.config
    }
    fn generate(
        &mut self,
        requests: &[Request],
        eos: &[u32],
        _: &Cancel,
        _: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>> {
        // A digit by the request's seed, and the end.
        let zero = self.config.vocab_size as u32;
        let answer = |r: &Request| Completion {
            tokens: vec![zero + (r.seed % 3) as u32, eos[0]],
            log_probs: vec![-1.0; 2],
            finish: Finish::Eos,
        };
        Ok(requests.iter().map(answer).collect())
    }
    fn forward(&mut self, batch: &Batch, _: Pass) -> Result<Scores> {
        let rows = |v: f32| batch.rows.iter().map(|r| vec![v; r.completion.len()]).collect();
        Ok(Scores { log_probs: rows(-1.0), entropies: rows(0.5) })
    }
    fn backward(&mut self, d_log_probs: &[Vec<f32>], _: &[Vec<f32>]) -> Result<()> {
        self.pull += d_log_probs.iter().flatten().map(|d| d.abs()).sum::<f32>();
        Ok(())
    }
    fn clear_gradients(&mut self) {
        self.pull = 0.0;
    }
    fn gradients(&self) -> Result<Vec<NamedTensor>> {
        Ok(Vec::new())
    }
    fn apply(&mut self, step: &AdamW) -> Result<f64> {
        let norm = f64::from(self.pull);
        for value in self.parameters.iter_mut().flat_map(|p| &mut p.data) {
            *value -= step.lr * self.pull;
        }
        self.steps += 1;
        self.pull = 0.0;
        Ok(norm)
    }
    fn logits(&mut self, _: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        Err(Error::failed("not needed"))
    }
    fn set_norm_noise(&mut self, _: Option<NormNoise>) -> Result<NoiseReport> {
        Ok(NoiseReport::default())
    }
    fn set_adapter_enabled(&mut self, _: bool) {}
    fn parameters(&self) -> Result<Vec<NamedTensor>> {
        Ok(self.parameters.clone())
    }
    fn set_parameters(&mut self, parameters: &[NamedTensor]) -> Result<()> {
        self.parameters = parameters.to_vec();
        Ok(())
    }
    fn optimizer_state(&self) -> Result<OptimizerState> {
        Ok(OptimizerState { step: self.steps, tensors: Vec::new() })
    }
    fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()> {
        self.steps = state.step;
        Ok(())
    }
    fn memory(&self) -> Memory {
        Memory::default()
    }
}

/// Prompts as they are; the bag's tokens beyond the vocabulary are the digits 0, 1 and 2.
struct Plain(u32);

impl Language for Plain {
    fn prompt(&self, problem: &Problem) -> Result<Vec<u32>> {
        Ok(vec![5; problem.prompt.len()])
    }
    fn render(&self, problem: &Problem) -> Result<String> {
        Ok(problem.prompt.clone())
    }
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(vec![7; text.len()])
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(format!("<answer>{}</answer>", ids.iter().map(|id| (id - self.0).to_string()).collect::<String>()))
    }
    fn ideal(&self, problem: &Problem) -> String {
        format!("<answer>{}</answer>", problem.answer)
    }
}

/// A bag for every model, and what it was asked to train.
#[derive(Default)]
struct Toys {
    seen: Mutex<Vec<Trainable>>,
}

impl train::Parts for Toys {
    fn engine(&self, policy: &train::PolicyFiles, trainable: Trainable, _: usize) -> Result<Box<dyn Engine>> {
        self.seen.lock().unwrap().push(trainable);
        Ok(Box::new(Bag::load(&policy.model)?))
    }

    fn language(&self, model: &Path, _: &DataSpec) -> Result<Box<dyn Language>> {
        // The folder has no model yet when its tokenizer is being made.
        Ok(Box::new(Plain(ModelConfig::read(model).map_or(0, |c| c.vocab_size as u32))))
    }
}

fn artifact(dir: &Path, kind: Kind, handle: Handle, config: serde_json::Value) -> Artifact {
    let meta = Meta {
        fingerprint: "0".repeat(64),
        kind,
        version: 1,
        backend: None,
        input_keys: BTreeMap::new(),
        digest: String::new(),
        handle,
        summary: serde_json::Value::Null,
        config,
        inputs: BTreeMap::new(),
        files: BTreeMap::new(),
        declared: Vec::new(),
        provenance: Provenance::default(),
    };
    Artifact { dir: dir.to_owned(), meta }
}

fn input(slot: &str, artifact: Artifact) -> Input {
    Input {
        slot: slot.into(),
        stage: slot.into(),
        point: BTreeMap::new(),
        checkpoint: "last".into(),
        part: None,
        artifact: Ok(artifact),
    }
}

fn run(root: &Path, name: &str, inputs: Vec<Input>, stage: &dyn Fn(&Context<'_>) -> Result<Output>) -> Result<Output> {
    let dir = |part: &str| {
        let dir = root.join(name).join(part);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    };
    let context = Context {
        inputs,
        output: dir("output"),
        work: dir("work"),
        store: &Store::open(root.join("store"))?,
        progress: &Quiet,
        cancel: &Cancel::new(),
        threads: 1,
        base_dir: root.to_owned(),
        hub: &Hub::new(HubConfig::new("http://127.0.0.1:9", root.join("hub")))?,
    };
    stage(&context)
}

#[test]
fn a_model_is_made_from_nothing_and_trained() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let lines: String = (0..3)
        .map(|i| format!("{}\n", serde_json::json!({"id": i.to_string(), "prompt": "apples", "answer": i.to_string()})))
        .collect();
    std::fs::write(root.join("train.jsonl"), lines).unwrap();
    let parts = BTreeMap::from([("train".to_owned(), "train.jsonl".to_owned())]);
    let problems =
        artifact(root, Kind::Split, Handle::Problems { parts }, serde_json::json!({"spec": {"max_prompt_tokens": 9}}));
    let made_of = Toys::default();

    let config: sft::Config = serde_json::from_value(serde_json::json!({
        "architecture": {"hidden_size": 16, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "intermediate": 32},
        "data": "mine", "steps": 3, "batch": 2, "lr": 0.01, "lr_schedule": "constant", "warmup": 0,
    }))
    .unwrap();
    let made =
        run(root, "sft", vec![input("data", problems.clone())], &|c| sft::run_with(c, &config, &made_of)).unwrap();
    let output = root.join("sft/output");
    for file in &made.declared {
        assert!(output.join(file).is_file(), "{file}");
    }
    assert!(matches!(&made.handle, Handle::Model { .. }));
    for file in ["metrics.jsonl", "metrics.parquet"] {
        assert!(output.join(file).is_file() && !made.declared.contains(&file.to_owned()));
    }
    assert_eq!(eos_ids(&output.join("models/last")).unwrap(), [2, 0]);

    let model = artifact(&output, Kind::Sft, made.handle, serde_json::Value::Null);
    let config: train::Config = serde_json::from_value(serde_json::json!({
        "policy": "policy", "data": "mine", "steps": 4, "prompts_per_step": 2, "group_size": 4, "max_completion": 5,
        "keep_every": 2, "eval_every": 2, "eval_data": "mine", "lr_schedule": "constant", "warmup": 0, "lr": 0.001,
    }))
    .unwrap();
    let inputs = vec![input("policy", model), input("data", problems.clone()), input("eval_data", problems)];
    let trained = run(root, "train", inputs, &|c| train::run_with(c, &config, &made_of)).unwrap();
    let Handle::Models { checkpoints } = &trained.handle else { panic!("{:?}", trained.handle) };
    assert_eq!(checkpoints.keys().map(String::as_str).collect::<Vec<_>>(), ["2", "4", "best", "last"]);
    let weights = |name: &str| {
        std::fs::read(root.join("train/output").join(&checkpoints[name]).join("model.safetensors")).unwrap()
    };
    assert_ne!(weights("2"), weights("last"));
    assert_eq!(weights("4"), weights("last"));
    assert_eq!(trained.summary["steps"], 4);
    assert!(trained.summary["reward"].is_number(), "{}", trained.summary);
    assert_eq!(*made_of.seen.lock().unwrap(), [Trainable::All, Trainable::All]);
}
