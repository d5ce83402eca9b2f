//! `qerl inspect`: what a file or folder is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::out::write as out;
use crate::model::gguf::{GgufFile, is_gguf};
use crate::model::{Checkpoint, ModelConfig, read_json};
use crate::store::{Artifact, Handle, Meta, Store};
use crate::tensors::{TensorFile, View};
use crate::{Error, Result};

/// Say what a model, adapter, artifact or file of weights is: shapes, formats, sizes, provenance
///
/// Reads headers and configurations only, and computes nothing. Tensors that differ in their layer only share a line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder, a .safetensors or .gguf file, or the ADDRESS of a pipeline's stage
    #[arg(value_name = "PATH|ADDRESS")]
    path: String,
    /// Print everything, every tensor with its name, as one JSON object
    #[arg(long)]
    json: bool,
}

/// What was found at one path.
#[derive(Debug, Serialize)]
struct Found {
    what: &'static str,
    path: PathBuf,
    facts: Map<String, Value>,
    /// Bytes of all tensors.
    bytes: u64,
    tensors: Vec<Tensor>,
    /// What an artifact holds.
    parts: Vec<Found>,
}

#[derive(Debug, Serialize)]
struct Tensor {
    name: String,
    dtype: String,
    /// Outermost first.
    shape: Vec<usize>,
    bytes: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let path = Path::new(&args.path);
    let found = if !path.exists() && args.path.contains(':') {
        let artifact = Store::from_env()?.resolve(&args.path)?;
        look_at_artifact(&artifact)?
    } else {
        look(path)?
    };
    if args.json {
        let text = serde_json::to_string_pretty(&found)
            .map_err(|e| Error::failed("cannot write the findings as JSON").caused_by(e))?;
        return out(&(text + "\n"));
    }
    out(&found.text(0))
}

fn look(path: &Path) -> Result<Found> {
    let holds = |name: &str| path.join(name).is_file();
    if !path.exists() {
        return Err(Error::missing(format!("{} does not exist", path.display()))
            .hint("name a folder, a file of weights, or an address such as tiny:train@seed=1"));
    }
    if path.is_file() {
        return look_at_file(path);
    }
    if holds("artifact.json") {
        return look_at_artifact(&Artifact { dir: path.to_owned(), meta: read::<Meta>(&path.join("artifact.json"))? });
    }
    if holds("adapter_config.json") {
        return look_at_adapter(path);
    }
    if holds("config.json") {
        return look_at_model(path);
    }
    Err(Error::input(format!("{} is neither a model nor an adapter nor an artifact", path.display()))
        .hint("these have a config.json, an adapter_config.json or an artifact.json"))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::input(format!("{} is not what its name says", path.display())).caused_by(e))
}

fn look_at_file(path: &Path) -> Result<Found> {
    if is_gguf(path) {
        return look_at_gguf(path);
    }
    let pickled = path.extension().is_some_and(|end| ["bin", "pt", "pth", "ckpt", "pkl"].iter().any(|p| end == *p));
    if pickled {
        return Err(Error::input(format!("{} is a pickle, and opening one runs code that is in it", path.display()))
            .hint("save the model as safetensors with the program that wrote it"));
    }
    let file = TensorFile::open(path)?;
    let facts = file.metadata().iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    Ok(Found::new("safetensors file", path, facts, file.views().map(Tensor::from).collect()))
}

fn look_at_gguf(path: &Path) -> Result<Found> {
    let file = GgufFile::open(path)?;
    let mut facts = Map::new();
    let texts = ["general.architecture", "general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre"];
    for key in texts {
        if let Some(text) = file.text(key) {
            facts.insert(key.to_owned(), json!(text));
        }
    }
    let architecture = file.text("general.architecture").unwrap_or_default();
    for key in ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"] {
        if let Some(number) = file.number(&format!("{architecture}.{key}")) {
            facts.insert(key.to_owned(), json!(number));
        }
    }
    if let Some(tokens) = file.array("tokenizer.ggml.tokens") {
        facts.insert("vocabulary".to_owned(), json!(tokens.len()));
    }
    facts.insert("chat template".to_owned(), json!(file.text("tokenizer.chat_template").is_some()));
    let entries = file.names().filter_map(|name| Some((name, file.entry(name)?)));
    let tensors = entries.map(|(name, entry)| Tensor {
        name: name.to_owned(),
        dtype: format!("{:?}", entry.kind).to_uppercase(),
        shape: entry.shape.clone(),
        bytes: entry.bytes(),
    });
    Ok(Found::new("GGUF file", path, facts, tensors.collect()))
}

fn look_at_model(dir: &Path) -> Result<Found> {
    let model = Checkpoint::open(dir)?;
    let (_, json) = read_json(dir)?;
    let config: &ModelConfig = &model.config;
    let mut facts = Map::new();
    let mut fact = |key: &str, value: Value| {
        facts.insert(key.to_owned(), value);
    };
    fact("architecture", json!(config.architecture.class()));
    fact("format", json!(model.layout().format().name()));
    if let Some(scheme) = json.get("quantization_config").and_then(|scheme| scheme.get("quant_method")) {
        fact("quantized by", scheme.clone());
    }
    fact("layers", json!(config.num_layers));
    fact("hidden size", json!(config.hidden_size));
    fact("intermediate size", json!(config.intermediate_size));
    fact("heads", json!(config.num_heads));
    fact("key and value heads", json!(config.num_kv_heads));
    fact("head size", json!(config.head_dim));
    fact("vocabulary", json!(config.vocab_size));
    fact("context", json!(config.max_position));
    fact("tied head", json!(config.tie_word_embeddings));
    let parameters = crate::model::names::parameters(config);
    let count: u64 = parameters.iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum();
    fact("parameters", json!(count));
    fact("tokenizer", json!(dir.join("tokenizer.json").is_file()));
    let tensors = model.tensors();
    let all = tensors.names().filter_map(|name| tensors.find(name)).map(Tensor::from).collect();
    Ok(Found::new("model", dir, facts, all))
}

fn look_at_adapter(dir: &Path) -> Result<Found> {
    let config: Map<String, Value> = read(&dir.join("adapter_config.json"))?;
    let told = [
        "peft_type",
        "base_model_name_or_path",
        "r",
        "lora_alpha",
        "use_rslora",
        "target_modules",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
    ];
    let said = |value: &Value| !value.is_null() && value.as_object().is_none_or(|object| !object.is_empty());
    let facts = told.into_iter().filter_map(|key| Some((key.to_owned(), config.get(key)?.clone())));
    let facts = facts.filter(|(_, value)| said(value)).collect();
    let weights = dir.join("adapter_model.safetensors");
    if !weights.is_file() {
        return Err(Error::missing(format!("{} has no adapter_model.safetensors", dir.display()))
            .hint("adapters saved as pickled .bin files are not read: save it as safetensors"));
    }
    let file = TensorFile::open(&weights)?;
    Ok(Found::new("adapter", dir, facts, file.views().map(Tensor::from).collect()))
}

fn look_at_artifact(artifact: &Artifact) -> Result<Found> {
    let meta = &artifact.meta;
    let as_json = |value: Result<Value, serde_json::Error>| {
        value.map_err(|e| Error::failed("cannot show the artifact").caused_by(e))
    };
    let mut facts = Map::new();
    facts.insert("kind".to_owned(), as_json(serde_json::to_value(meta.kind))?);
    facts.insert("fingerprint".to_owned(), json!(meta.fingerprint));
    facts.insert("digest".to_owned(), json!(meta.digest));
    facts.insert("files".to_owned(), json!(meta.files.len()));
    facts.insert("file bytes".to_owned(), json!(meta.files.values().map(|file| file.size).sum::<u64>()));
    facts.insert("inputs".to_owned(), json!(meta.inputs));
    facts.insert("configuration".to_owned(), meta.config.clone());
    facts.insert("summary".to_owned(), meta.summary.clone());
    facts.insert("provenance".to_owned(), as_json(serde_json::to_value(&meta.provenance))?);
    facts.insert("holds".to_owned(), as_json(serde_json::to_value(&meta.handle))?);
    let mut found = Found::new("artifact", &artifact.dir, facts, Vec::new());
    // Checkpoints may share a folder (`last` and a step): each is shown once. Paths are the store's to check.
    let store = Store::from_env()?;
    let own = |path: &String| {
        store.locate(artifact, &crate::store::Location::Own { path: path.clone() }).map(|path| (path.clone(), path))
    };
    let places: BTreeMap<PathBuf, PathBuf> = match &meta.handle {
        Handle::Model { at } => store.locate(artifact, at).map(|path| (path.clone(), path)).into_iter().collect(),
        Handle::Adapter { adapters, .. } => adapters.values().map(own).collect::<Result<_>>()?,
        Handle::Models { checkpoints } => checkpoints.values().map(own).collect::<Result<_>>()?,
        _ => BTreeMap::new(),
    };
    for place in places.into_values() {
        // A model's folder is not looked at as an artifact again, even where it is the artifact's own.
        found.parts.push(match place.join("adapter_config.json").is_file() {
            true => look_at_adapter(&place)?,
            false => look_at_model(&place)?,
        });
    }
    Ok(found)
}

impl From<View<'_>> for Tensor {
    fn from(view: View<'_>) -> Self {
        Self {
            name: view.name.to_owned(),
            dtype: view.dtype.name().to_owned(),
            shape: view.shape.to_vec(),
            bytes: view.data.len() as u64,
        }
    }
}

impl Found {
    fn new(what: &'static str, path: &Path, facts: Map<String, Value>, tensors: Vec<Tensor>) -> Self {
        let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        Self { what, path: path.to_owned(), facts, bytes, tensors, parts: Vec::new() }
    }

    fn text(&self, indent: usize) -> String {
        let pad = " ".repeat(indent);
        let mut text = format!("{pad}{} {}\n", self.what, self.path.display());
        for (key, value) in &self.facts {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text += &format!("{pad}  {key:<20} {value}\n");
        }
        if !self.tensors.is_empty() {
            text += &format!("{pad}  {} tensors, {} bytes\n", self.tensors.len(), self.bytes);
        }
        for ((name, dtype, shape), (count, bytes)) in alike(&self.tensors) {
            text += &format!("{pad}    {count:>4} x {name}  {dtype} {shape:?}  {bytes} bytes\n");
        }
        self.parts.iter().for_each(|part| text += &part.text(indent + 2));
        text
    }
}

/// Name with `*` for a layer's number, type and shape -> how many, and the bytes of all.
fn alike(tensors: &[Tensor]) -> BTreeMap<(String, &str, &[usize]), (usize, u64)> {
    let mut all = BTreeMap::new();
    for tensor in tensors {
        let numbers = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let parts = tensor.name.split('.').map(|part| if numbers(part) { "*" } else { part });
        let name = parts.collect::<Vec<_>>().join(".");
        let (count, bytes) = all.entry((name, tensor.dtype.as_str(), tensor.shape.as_slice())).or_insert((0, 0));
        *count += 1;
        *bytes += tensor.bytes;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{DType, Spec, write_file};

    #[test]
    fn tensors_of_different_layers_share_a_line_and_a_pickle_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let tensor = |name: &str| (Spec::new(name, DType::F32, [2, 3]), vec![0; 24]);
        write_file(&path, &[tensor("l.0.w"), tensor("l.1.w"), tensor("head")]).unwrap();
        let found = look(&path).unwrap();
        assert_eq!((found.what, found.bytes, found.tensors.len()), ("safetensors file", 72, 3));
        let text = found.text(0);
        assert!(text.contains("2 x l.*.w  F32 [2, 3]  48 bytes"), "{text}");
        assert!(text.contains("1 x head  F32 [2, 3]  24 bytes"), "{text}");
        let pickle = dir.path().join("pytorch_model.bin");
        std::fs::write(&pickle, b"\x80\x02}").unwrap();
        assert!(look(&pickle).unwrap_err().to_string().contains("pickle"));
        assert!(look(dir.path()).unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn a_models_format_and_parameters_are_told() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden/models");
        if !dir.exists() {
            eprintln!("skipped: ../shared/golden/models is absent");
            return;
        }
        let found = look(&dir.join("tiny_llama_nvfp4")).unwrap();
        assert_eq!(found.what, "model");
        assert_eq!(found.facts["format"], "nvfp4");
        assert_eq!(found.facts["architecture"], "LlamaForCausalLM");
        let scales = found.tensors.iter().filter(|tensor| tensor.name.ends_with(".weight_scale")).count() as u64;
        assert_eq!(Some(scales), found.facts["layers"].as_u64().map(|layers| layers * 7));
        let adapter = look(&dir.join("tiny_llama_lora")).unwrap();
        assert_eq!((adapter.what, &adapter.facts["peft_type"]), ("adapter", &json!("LORA")));
    }
}
