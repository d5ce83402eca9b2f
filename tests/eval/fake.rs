//! A policy that adds: it reads the sum in its prompt and answers it, right or wrong by the request's seed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use qerl::control::{Cancel, Progress};
use qerl::data::{DataSpec, Problem};
use qerl::engine::*;
use qerl::hub::{Hub, HubConfig};
use qerl::model::{Architecture, ModelConfig};
use qerl::rl::language::Language;
use qerl::stages::{Context, Input, Kind, Output, eval, train};
use qerl::store::{Artifact, Finished, Handle, InputKey, Key, Location, Meta, Provenance, Store};
use qerl::{Error, Result};

const EOS: u32 = 0;

/// Bytes as ids, one above their value: 0 ends.
pub fn encode(text: &str) -> Vec<u32> {
    text.bytes().map(|b| u32::from(b) + 1).collect()
}

fn decode(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().map(|id| u8::try_from(id - 1).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

/// What the engine was asked, shared with the test.
#[derive(Default)]
pub struct Log {
    pub requests: Vec<Request>,
    pub calls: usize,
    /// Sets the flag within this call (from 1).
    pub cancel_in: Option<usize>,
    pub loaded: Vec<Trainable>,
}

pub struct Adder {
    config: ModelConfig,
    log: Arc<Mutex<Log>>,
    /// Of `out_of` seeds so many are answered right.
    skill: u64,
}

/// The last `A+B` in a prompt.
fn sum(prompt: &str) -> Option<i64> {
    let at = prompt.rfind('+')?;
    let left: String = prompt[..at].chars().rev().take_while(char::is_ascii_digit).collect();
    let right: String = prompt[at + 1..].chars().take_while(char::is_ascii_digit).collect();
    Some(left.chars().rev().collect::<String>().parse::<i64>().ok()? + right.parse::<i64>().ok()?)
}

impl Adder {
    /// Seeds 0..skill of every four are answered right, seed 3 of four may ramble to the limit.
    fn say(&self, request: &Request) -> Completion {
        let prompt = decode(&request.prompt);
        let dice = request.seed % 4;
        let (mut tokens, mut finish) = match sum(&prompt) {
            Some(n) if dice < self.skill => (encode(&format!("é, so\n#### {n}")), Finish::Eos),
            Some(n) if dice == 3 => (encode(&format!("it is {}", n + 1).repeat(500)), Finish::Length),
            Some(n) => (encode(&format!("The answer is {}.", n + 1)), Finish::Eos),
            None => (encode("I do not know"), Finish::Eos),
        };
        if tokens.len() >= request.max_new_tokens {
            tokens.truncate(request.max_new_tokens);
            // A whole character, since this test's language cannot write half of one.
            finish = Finish::Length;
        }
        if finish == Finish::Eos {
            tokens.push(EOS);
        }
        Completion { log_probs: vec![-0.5; tokens.len()], tokens, finish }
    }
}

impl Engine for Adder {
    fn config(&self) -> &ModelConfig {
        &self.config
    }
    fn generate(
        &mut self,
        requests: &[Request],
        eos: &[u32],
        cancel: &Cancel,
        tick: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>> {
        assert_eq!(eos, [EOS]);
        let mut log = self.log.lock().unwrap();
        log.calls += 1;
        if log.cancel_in == Some(log.calls) {
            cancel.cancel();
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for request in requests {
            out.push(self.say(request));
            tick(out.len(), 1);
        }
        log.requests.extend_from_slice(requests);
        Ok(out)
    }
    fn forward(&mut self, _: &Batch, _: Pass) -> Result<Scores> {
        Err(Error::failed("an evaluation scores nothing"))
    }
    fn backward(&mut self, _: &[Vec<f32>], _: &[Vec<f32>]) -> Result<()> {
        Err(Error::failed("an evaluation trains nothing"))
    }
    fn clear_gradients(&mut self) {}
    fn gradients(&self) -> Result<Vec<NamedTensor>> {
        Ok(Vec::new())
    }
    fn apply(&mut self, _: &AdamW) -> Result<f64> {
        Err(Error::failed("an evaluation trains nothing"))
    }
    fn logits(&mut self, _: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        Err(Error::failed("an evaluation needs no logits"))
    }
    fn set_norm_noise(&mut self, _: Option<NormNoise>) -> Result<NoiseReport> {
        Err(Error::failed("an evaluation has no noise"))
    }
    fn set_adapter_enabled(&mut self, _: bool) {}
    fn parameters(&self) -> Result<Vec<NamedTensor>> {
        Ok(Vec::new())
    }
    fn set_parameters(&mut self, _: &[NamedTensor]) -> Result<()> {
        Ok(())
    }
    fn optimizer_state(&self) -> Result<OptimizerState> {
        Ok(OptimizerState::default())
    }
    fn set_optimizer_state(&mut self, _: &OptimizerState) -> Result<()> {
        Ok(())
    }
    fn memory(&self) -> Memory {
        Memory::default()
    }
}

/// Prompts as they are.
struct Bytes {
    template: Option<String>,
}

impl Language for Bytes {
    fn prompt(&self, problem: &Problem) -> Result<Vec<u32>> {
        Ok(encode(&self.render(problem)?))
    }
    fn render(&self, problem: &Problem) -> Result<String> {
        Ok(problem.prompt.clone())
    }
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(encode(text))
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(decode(ids))
    }
    fn ideal(&self, problem: &Problem) -> String {
        match self.template.as_deref() {
            Some("broken") => "so be it".to_owned(),
            _ => format!("#### {}", problem.answer),
        }
    }
}

/// Adders for every policy.
pub struct Adders {
    pub log: Arc<Mutex<Log>>,
    pub skill: u64,
    pub context_length: usize,
}

impl Adders {
    pub fn new(skill: u64) -> Self {
        Self { log: Arc::default(), skill, context_length: 4096 }
    }
}

impl train::Parts for Adders {
    fn engine(&self, _: &train::PolicyFiles, trainable: Trainable, _: usize) -> Result<Box<dyn Engine>> {
        self.log.lock().unwrap().loaded.push(trainable);
        let config = ModelConfig {
            architecture: Architecture::Qwen2,
            vocab_size: 257,
            hidden_size: 1,
            intermediate_size: 1,
            num_layers: 1,
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: 1,
            max_position: self.context_length,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            rope_scaling: None,
            tie_word_embeddings: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
        };
        Ok(Box::new(Adder { config, log: Arc::clone(&self.log), skill: self.skill }))
    }

    fn language(&self, _: &Path, spec: &DataSpec) -> Result<Box<dyn Language>> {
        Ok(Box::new(Bytes { template: spec.template.clone() }))
    }
}

/// Remembers what it is told.
#[derive(Default)]
pub struct Ear {
    pub lines: Mutex<Vec<String>>,
    pub total: Mutex<u64>,
    pub done: Mutex<Vec<(u64, String)>>,
}

impl Progress for Ear {
    fn total(&self, total: u64, _: &'static str) {
        *self.total.lock().unwrap() = total;
    }
    fn at(&self, done: u64, note: &str) {
        self.done.lock().unwrap().push((done, note.to_owned()));
    }
    fn say(&self, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
    }
}

impl Ear {
    pub fn heard(&self, what: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(what))
    }
}

/// Problems `i+j` with ids 0, 1, ...
pub fn sums(n: usize) -> Vec<Problem> {
    (0..n)
        .map(|i| Problem {
            id: i.to_string(),
            prompt: format!("How many apples are {}+{}?", 7 * i, i % 5),
            answer: (7 * i + i % 5).to_string(),
            solution: None,
            tags: BTreeMap::new(),
        })
        .collect()
}

/// A folder with a store, and stages run in it.
pub struct Bench {
    pub root: tempfile::TempDir,
    pub store: Store,
    pub ear: Ear,
}

impl Bench {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("config.json"), r#"{"eos_token_id": 0}"#).unwrap();
        let store = Store::open(root.path().join("store")).unwrap();
        Self { root, store, ear: Ear::default() }
    }

    /// A stored artifact of problems, all of them in `part`.
    pub fn problems(&self, part: &str, spec: serde_json::Value, problems: &[Problem]) -> Artifact {
        let lines: String = problems.iter().map(|p| serde_json::to_string(p).unwrap() + "\n").collect();
        let name = format!("{part}.jsonl");
        let parts = BTreeMap::from([(part.to_owned(), name.clone())]);
        self.put(Kind::Split, serde_json::json!({"spec": spec}), &[(&name, &lines)], Handle::Problems { parts }, &[])
    }

    /// Stores an artifact; `inputs`: slot, artifact, part.
    pub fn put(
        &self,
        kind: Kind,
        config: serde_json::Value,
        files: &[(&str, &str)],
        handle: Handle,
        inputs: &[(&str, &Artifact, Option<&str>)],
    ) -> Artifact {
        let input = |(slot, artifact, part): &(&str, &Artifact, Option<&str>)| {
            let key =
                InputKey { digest: artifact.meta.digest.clone(), part: part.map(str::to_owned), ..InputKey::default() };
            ((*slot).to_owned(), key)
        };
        let key = Key {
            kind,
            version: 1,
            backend: None,
            config,
            inputs: inputs.iter().map(input).collect(),
            // Artifacts of one test differ by what they hold.
            files: files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        };
        let lock = self.store.lock(&key.fingerprint(), "test", &Cancel::new(), |_| {}).unwrap();
        let draft = self.store.begin(&key.fingerprint(), &lock).unwrap();
        for (name, text) in files {
            std::fs::write(draft.dir().join(name), text).unwrap();
        }
        let finished = Finished {
            declared: files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            handle,
            summary: serde_json::Value::Null,
            inputs: inputs.iter().map(|(slot, a, _)| ((*slot).to_owned(), a.meta.fingerprint.clone())).collect(),
            provenance: Provenance::default(),
        };
        draft.commit(&key, finished).unwrap()
    }

    /// The model of this bench, as an input artifact.
    pub fn model(&self) -> Artifact {
        let meta = Meta {
            fingerprint: "0".repeat(64),
            kind: Kind::Download,
            version: 1,
            backend: None,
            input_keys: BTreeMap::new(),
            digest: String::new(),
            handle: Handle::Model { at: Location::Local { path: self.root.path().to_owned() } },
            summary: serde_json::Value::Null,
            config: serde_json::Value::Null,
            inputs: BTreeMap::new(),
            files: BTreeMap::new(),
            declared: Vec::new(),
            provenance: Provenance::default(),
        };
        Artifact { dir: self.root.path().to_owned(), meta }
    }

    /// Runs the stage in the folders `name/output` and `name/work`; inputs: slot, artifact, part.
    pub fn eval(
        &self,
        name: &str,
        inputs: &[(&str, &Artifact, Option<&str>)],
        config: serde_json::Value,
        parts: &Adders,
    ) -> Result<Output> {
        let folder = |part: &str| {
            let dir = self.root.path().join(name).join(part);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let context = Context {
            inputs: inputs
                .iter()
                .map(|(slot, artifact, part)| Input {
                    slot: (*slot).to_owned(),
                    stage: (*slot).to_owned(),
                    point: BTreeMap::new(),
                    checkpoint: "last".to_owned(),
                    part: part.map(str::to_owned),
                    artifact: Ok((*artifact).clone()),
                })
                .collect(),
            output: folder("output"),
            work: folder("work"),
            store: &self.store,
            progress: &self.ear,
            cancel: &Cancel::new(),
            threads: 1,
            base_dir: self.root.path().to_owned(),
            hub: &Hub::new(HubConfig::new("http://127.0.0.1:1", self.root.path().join("hub"))).unwrap(),
        };
        let config: eval::Config = serde_json::from_value(config).unwrap();
        eval::run_with(&context, &config, parts)
    }

    pub fn bytes(&self, name: &str, file: &str) -> Vec<u8> {
        std::fs::read(self.root.path().join(name).join("output").join(file)).unwrap()
    }
}
