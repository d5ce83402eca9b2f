//! LoRA adapters (Hu et al. 2021) in PEFT's format: adapter_config.json and adapter_model.safetensors.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::names::{Norm, Projection};
use super::{Checkpoint, ModelConfig};
use crate::engine::NamedTensor;
use crate::tensors::{DType, Spec, TensorFile, write_file};
use crate::{Error, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts before the name of a parameter of the base model.
const PREFIX: &str = "base_model.model.";

/// y = W x + (alpha / rank) * B A x on every target, and trained block norms where `norms`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub rank: usize,
    pub alpha: f64,
    /// In the order of [`Projection::ALL`].
    pub targets: Vec<Projection>,
    /// The two block norms of every layer are trained too.
    pub norms: bool,
    /// Scaled by alpha / sqrt(rank) (Kalajdzievski 2023, rsLoRA).
    pub rank_stabilized: bool,
    /// PEFT's `base_model_name_or_path`, for information.
    pub base: Option<String>,
    /// `base_model.model.model.layers.L.BLOCK.PROJ.lora_A.weight` `[rank, inputs]`, `...lora_B.weight`
    /// `[outputs, rank]`, and `base_model.model.model.layers.L.NORM.weight` `[hidden]`; in the order of [`keys`].
    pub tensors: Vec<NamedTensor>,
}

/// `model.layers.0.input_layernorm.weight` -> PEFT's key for it.
pub fn peft_key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// PEFT's key -> the base model's own name for the parameter.
pub fn base_name(key: &str) -> &str {
    key.strip_prefix(PREFIX).unwrap_or(key)
}

/// Key and shape of every tensor, layer by layer: A and B of each target, then the norms.
pub fn keys(config: &ModelConfig, rank: usize, targets: &[Projection], norms: bool) -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    for layer in 0..config.num_layers {
        for projection in Projection::ALL.into_iter().filter(|p| targets.contains(p)) {
            let [outputs, inputs] = projection.shape(config);
            let prefix = peft_key(&projection.prefix(layer));
            all.push((format!("{prefix}.lora_A.weight"), vec![rank, inputs]));
            all.push((format!("{prefix}.lora_B.weight"), vec![outputs, rank]));
        }
        if norms {
            for norm in Norm::BLOCK {
                all.push((peft_key(&norm.weight(layer)), vec![config.hidden_size]));
            }
        }
    }
    all
}

impl Adapter {
    /// A fresh adapter as PEFT makes it: A from U(-1/sqrt(inputs), 1/sqrt(inputs)) (Kaiming, a = sqrt(5)), B zero, so
    /// that it changes nothing yet; norms as in `base`. Every entry depends on `seed` and its tensor's name only.
    pub fn init(
        base: &Checkpoint,
        rank: usize,
        alpha: f64,
        targets: &[Projection],
        norms: bool,
        seed: u64,
    ) -> Result<Self> {
        if rank == 0 || targets.is_empty() {
            return Err(Error::usage("an adapter needs a rank of at least 1 and at least one target"));
        }
        if !(alpha > 0.0 && alpha.is_finite()) {
            return Err(Error::usage(format!("alpha {alpha} is not a number above zero")));
        }
        let mut tensors = Vec::new();
        for (name, shape) in keys(&base.config, rank, targets, norms) {
            let data = if name.ends_with(".lora_A.weight") {
                kaiming_uniform(seed, &name, shape[0] * shape[1], shape[1])
            } else if name.ends_with(".lora_B.weight") {
                vec![0.0; shape[0] * shape[1]]
            } else {
                base.dense(base_name(&name))?.data
            };
            tensors.push(NamedTensor { name, shape, data });
        }
        let targets = Projection::ALL.into_iter().filter(|p| targets.contains(p)).collect();
        Ok(Self { rank, alpha, targets, norms, rank_stabilized: false, base: None, tensors })
    }

    /// The same adapter with the block norms of `base` trained beside it.
    pub fn with_norms(mut self, base: &Checkpoint) -> Result<Self> {
        let mut old = self.tensors.into_iter().map(|t| (t.name.clone(), t)).collect::<HashMap<_, _>>();
        self.tensors = Vec::new();
        self.norms = true;
        for (name, shape) in keys(&base.config, self.rank, &self.targets, true) {
            let tensor = match old.remove(&name) {
                Some(tensor) => tensor,
                None => NamedTensor { data: base.dense(base_name(&name))?.data, name, shape },
            };
            self.tensors.push(tensor);
        }
        Ok(self)
    }

    /// The factor on B A x.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }

    /// The tensor under PEFT's `key`.
    pub fn tensor(&self, key: &str) -> Option<&NamedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == key)
    }

    /// The same adapter with other values: `tensors` must hold every parameter of this one, under PEFT's keys or the
    /// base model's names.
    pub fn with_values(&self, tensors: &[NamedTensor]) -> Result<Self> {
        let mut next = self.clone();
        for mine in &mut next.tensors {
            let name = base_name(&mine.name);
            let new = tensors.iter().find(|t| base_name(&t.name) == name && t.shape == mine.shape);
            let new = new.ok_or_else(|| Error::failed(format!("no values of shape {:?} for {name:?}", mine.shape)))?;
            mine.data.clone_from(&new.data);
        }
        Ok(next)
    }

    /// Reads PEFT's folder for a base model of `config`. What this project does not compute is refused by name.
    pub fn read(dir: &Path, config: &ModelConfig) -> Result<Self> {
        let path = dir.join(CONFIG);
        let text = std::fs::read(&path).map_err(|e| {
            Error::io("read", &path, e)
                .hint("name a folder with PEFT's adapter_config.json and adapter_model.safetensors")
        })?;
        let json: Value = serde_json::from_slice(&text)
            .map_err(|e| Error::input(format!("{} is not valid JSON", path.display())).caused_by(e))?;
        let mut adapter = Self::settings(&json).map_err(|e| e.within(path.display()))?;
        let path = dir.join(WEIGHTS);
        if !path.exists() {
            return Err(Error::missing(format!("{} has no {WEIGHTS}", dir.display()))
                .hint("adapters saved as pickled .bin files are not read: save it as safetensors"));
        }
        let file = TensorFile::open(&path)?;
        let mut known = std::collections::HashSet::new();
        for (key, shape) in keys(config, adapter.rank, &adapter.targets, adapter.norms) {
            // PEFT strips `modules_to_save.default.` when it saves; some tools leave it in.
            let wrapped = key.strip_suffix(".weight").map(|stem| format!("{stem}.modules_to_save.default.weight"));
            let name = if file.entry(&key).is_some() { key.clone() } else { wrapped.unwrap_or_default() };
            let view = file.find(&name).ok_or_else(|| {
                Error::missing(format!("{} has no tensor {key:?}", path.display()))
                    .hint("the adapter is incomplete, or belongs to another base model")
            })?;
            let view = view.shaped(&shape).map_err(|e| e.hint("the adapter belongs to another base model"))?;
            let data = view.to_f32()?;
            if let Some(bad) = data.iter().find(|x| !x.is_finite()) {
                return Err(view.wrong(format!("holds {bad}")));
            }
            known.insert(name);
            adapter.tensors.push(NamedTensor { name: key, shape, data });
        }
        if let Some(extra) = file.names().find(|name| !known.contains(*name)) {
            return Err(Error::input(format!("{}: tensor {extra:?} is not one that qerl applies", path.display()))
                .hint("supported are LoRA on the seven projections and trained block norms"));
        }
        Ok(adapter)
    }

    fn settings(json: &Value) -> Result<Self> {
        let refuse =
            |what: String| Err(Error::input(format!("{what} is not supported")).hint("supported is plain LoRA"));
        if json["peft_type"] != "LORA" {
            return refuse(format!("peft_type {}", json["peft_type"]));
        }
        for key in ["use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"] {
            if json[key] == true {
                return refuse(key.to_owned());
            }
        }
        for key in ["rank_pattern", "alpha_pattern"] {
            if json[key].as_object().is_some_and(|pattern| !pattern.is_empty()) {
                return refuse(key.to_owned());
            }
        }
        for key in [
            "layers_to_transform",
            "layer_replication",
            "target_parameters",
            "trainable_token_indices",
            "exclude_modules",
        ] {
            if !json[key].is_null() {
                return refuse(key.to_owned());
            }
        }
        if json["bias"].as_str().is_some_and(|bias| bias != "none") {
            return refuse(format!("bias {}", json["bias"]));
        }
        let rank = json["r"].as_u64().filter(|rank| (1..=65536).contains(rank));
        let alpha = json["lora_alpha"].as_f64().filter(|alpha| alpha.is_finite());
        let (Some(rank), Some(alpha)) = (rank, alpha) else {
            return Err(Error::input(format!("r {} or lora_alpha {} is no number", json["r"], json["lora_alpha"])));
        };
        let targets = match &json["target_modules"] {
            Value::String(all) if all == "all-linear" => Projection::ALL.to_vec(),
            Value::Array(list) => {
                let mut targets = Vec::new();
                for name in list {
                    let found = Projection::ALL.into_iter().find(|p| name.as_str() == Some(p.name()));
                    let Some(target) = found else { return refuse(format!("target module {name}")) };
                    targets.push(target);
                }
                targets.sort_unstable();
                targets.dedup();
                targets
            }
            other => return refuse(format!("target_modules {other}")),
        };
        let saved: Vec<&str> =
            json["modules_to_save"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let block = Norm::BLOCK.map(Norm::name);
        let norms = !saved.is_empty();
        if norms && (block.iter().any(|name| !saved.contains(name)) || saved.iter().any(|name| !block.contains(name))) {
            return refuse(format!("modules_to_save {saved:?} (other than both of {block:?})"));
        }
        Ok(Self {
            rank: rank as usize,
            alpha,
            targets,
            norms,
            rank_stabilized: json["use_rslora"] == true,
            base: json["base_model_name_or_path"].as_str().map(str::to_owned),
            tensors: Vec::new(),
        })
    }

    /// Writes both files into `dir`; gives their names.
    pub fn write(&self, dir: &Path) -> Result<Vec<String>> {
        let targets: Vec<&str> = self.targets.iter().map(|p| p.name()).collect();
        let saved = if self.norms { json!(Norm::BLOCK.map(Norm::name)) } else { Value::Null };
        // Whole alphas as integers, as PEFT writes them.
        let alpha =
            if self.alpha.fract() == 0.0 && self.alpha < 1e15 { json!(self.alpha as i64) } else { json!(self.alpha) };
        let config = json!({
            "alpha_pattern": {},
            "auto_mapping": null,
            "base_model_name_or_path": self.base,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "layers_pattern": null,
            "layers_to_transform": null,
            "lora_alpha": alpha,
            "lora_dropout": 0.0,
            "modules_to_save": saved,
            "peft_type": "LORA",
            "r": self.rank,
            "rank_pattern": {},
            "revision": null,
            "target_modules": targets,
            "task_type": "CAUSAL_LM",
            "use_dora": false,
            "use_rslora": self.rank_stabilized,
        });
        let tensors: Vec<(Spec, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|tensor| {
                let bytes = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
                (Spec::new(tensor.name.clone(), DType::F32, tensor.shape.clone()), bytes)
            })
            .collect();
        write_file(&dir.join(WEIGHTS), &tensors)?;
        let path = dir.join(CONFIG);
        std::fs::write(&path, format!("{config:#}\n")).map_err(|e| Error::io("write", &path, e))?;
        Ok(vec![CONFIG.to_owned(), WEIGHTS.to_owned()])
    }
}

/// U(-1/sqrt(fan_in), 1/sqrt(fan_in)) from blake3's output stream over seed and name.
fn kaiming_uniform(seed: u64, name: &str, count: usize, fan_in: usize) -> Vec<f32> {
    let mut hasher = blake3::Hasher::new_derive_key("qerl 2026 lora init, uniform f32 from 24 bits");
    hasher.update(&seed.to_le_bytes());
    hasher.update(name.as_bytes());
    let mut bytes = vec![0; count * 4];
    hasher.finalize_xof().fill(&mut bytes);
    let bound = 1.0 / (fan_in as f64).sqrt();
    let uniform = |word: &[u8; 4]| f64::from(u32::from_le_bytes(*word) >> 8) / f64::from(1 << 24);
    bytes.as_chunks::<4>().0.iter().map(|word| ((2.0 * uniform(word) - 1.0) * bound) as f32).collect()
}
