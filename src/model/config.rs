//! The architecture of a dense decoder, read from config.json.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Families whose block this project computes; they differ in biases and qk-norm only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

impl Architecture {
    const ALL: [(Self, &str, &str); 3] = [
        (Self::Llama, "LlamaForCausalLM", "llama"),
        (Self::Qwen2, "Qwen2ForCausalLM", "qwen2"),
        (Self::Qwen3, "Qwen3ForCausalLM", "qwen3"),
    ];

    /// The class name under `architectures`.
    pub fn class(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The value of `model_type`.
    pub fn model_type(self) -> &'static str {
        Self::ALL[self as usize].2
    }
}

/// Llama 3's frequency-dependent rope scaling, or linear scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position: usize },
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    /// heads * head_dim may differ from hidden_size (Qwen3).
    pub head_dim: usize,
    pub max_position: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
    pub tie_word_embeddings: bool,
    /// q, k and v have biases (Qwen2; Llama with attention_bias).
    pub qkv_bias: bool,
    /// o_proj has a bias (Llama with attention_bias).
    pub o_bias: bool,
    /// gate, up and down have biases (Llama with mlp_bias).
    pub mlp_bias: bool,
    /// RMSNorm on each head of q and k (Qwen3).
    pub qk_norm: bool,
}

impl ModelConfig {
    /// Reads `config.json` in `dir`, as transformers 4 or 5 writes it.
    pub fn read(dir: &Path) -> Result<Self> {
        let (path, json) = read_json(dir)?;
        Self::parse(&json).map_err(|e| e.within(path.display()))
    }

    /// From the parsed config.json. Whatever this project does not compute is refused by its name.
    pub fn parse(json: &Map<String, Value>) -> Result<Self> {
        let fields = Fields(json);
        let architecture = fields.architecture()?;
        fields.refuse_unsupported(architecture)?;
        let hidden_size = fields.size("hidden_size")?;
        let num_heads = fields.size("num_attention_heads")?;
        let num_kv_heads = fields.optional_size("num_key_value_heads")?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            return Err(Error::input(format!(
                "{num_heads} attention heads cannot share {num_kv_heads} key-value heads"
            )));
        }
        let head_dim = match fields.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            // transformers' own default for Qwen3.
            None if architecture == Architecture::Qwen3 => 128,
            None if hidden_size % num_heads == 0 => hidden_size / num_heads,
            None => {
                return Err(Error::input(format!("hidden_size {hidden_size} is no multiple of {num_heads} heads"))
                    .hint("config.json must give head_dim"));
            }
        };
        if num_heads * head_dim > MAX_SIZE as usize {
            return Err(Error::input(format!("{num_heads} heads of {head_dim} are more than any real model has")));
        }
        if head_dim % 2 != 0 {
            return Err(Error::input(format!("head_dim {head_dim} is odd: rotary embeddings need pairs")));
        }
        let attention_bias = fields.flag("attention_bias")?;
        let qkv_bias = match architecture {
            Architecture::Qwen2 => true,
            Architecture::Llama | Architecture::Qwen3 => attention_bias.unwrap_or(false),
        };
        let max_position = fields.size("max_position_embeddings")?;
        let (rope_theta, rope_scaling) = fields.rope(max_position)?;
        Ok(Self {
            architecture,
            vocab_size: fields.size("vocab_size")?,
            hidden_size,
            intermediate_size: fields.size("intermediate_size")?,
            num_layers: fields.size("num_hidden_layers")?,
            num_heads,
            num_kv_heads,
            head_dim,
            max_position,
            rms_norm_eps: fields.positive("rms_norm_eps", 1e-6)?,
            rope_theta,
            rope_scaling,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias,
            o_bias: architecture != Architecture::Qwen2 && qkv_bias,
            mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: architecture == Architecture::Qwen3,
        })
    }
}

/// config.json in `dir` as an object, and its path.
pub fn read_json(dir: &Path) -> Result<(std::path::PathBuf, Map<String, Value>)> {
    let path = dir.join("config.json");
    let text = std::fs::read(&path).map_err(|e| {
        Error::io("read", &path, e).hint("name a folder in Hugging Face's layout (config.json, safetensors, tokenizer)")
    })?;
    match serde_json::from_slice(&text) {
        Ok(Value::Object(json)) => Ok((path, json)),
        Ok(_) => Err(Error::input(format!("{} is not a JSON object", path.display()))),
        Err(e) => Err(Error::input(format!("{} is not valid JSON", path.display())).caused_by(e)),
    }
}

/// Typed access to the keys; `null` counts as absent.
struct Fields<'a>(&'a Map<String, Value>);

/// Larger numbers in a config.json are lies that would end in huge allocations.
const MAX_SIZE: u64 = 1 << 26;

impl Fields<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, key: &str, want: &str) -> Result<T> {
        match self.get(key) {
            Some(value) => Err(Error::input(format!("{key} is {value}, but must be {want}"))),
            None => Err(Error::input(format!("{key} is missing"))),
        }
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(size @ 1..=MAX_SIZE) => Ok(Some(size as usize)),
            _ => self.wrong(key, "a positive number of a sensible size"),
        }
    }

    fn size(&self, key: &str) -> Result<usize> {
        match self.optional_size(key)? {
            Some(size) => Ok(size),
            None => self.wrong(key, "a number"),
        }
    }

    fn positive(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_f64() {
            Some(x) if x > 0.0 && x.is_finite() => Ok(x),
            _ => self.wrong(key, "a number above zero"),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => self.wrong(key, "true or false"),
        }
    }

    fn architecture(&self) -> Result<Architecture> {
        let class = self.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let model_type = self.get("model_type").and_then(Value::as_str);
        let known = Architecture::ALL.iter().find(|(_, name, kind)| match class {
            Some(class) => class == *name,
            None => model_type == Some(*kind),
        });
        known.map(|(architecture, ..)| *architecture).ok_or_else(|| {
            let name = class.or(model_type).unwrap_or("(not named)");
            let have: Vec<&str> = Architecture::ALL.iter().map(|(_, name, _)| *name).collect();
            Error::input(format!("architecture {name} is not supported"))
                .hint(format!("supported are dense decoders: {}", have.join(", ")))
        })
    }

    fn refuse_unsupported(&self, architecture: Architecture) -> Result<()> {
        let refuse =
            |what: String, have: &str| Err(Error::input(format!("{what} is not supported")).hint(have.to_owned()));
        for key in ["hidden_act", "hidden_activation"] {
            match self.get(key).and_then(Value::as_str) {
                None | Some("silu" | "swish") => {}
                Some(other) => return refuse(format!("{key} {other:?}"), "supported is \"silu\""),
            }
        }
        for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
            if self.get(key).and_then(Value::as_u64).is_some_and(|n| n > 0) {
                return refuse(format!("a mixture of experts ({key})"), "supported are dense decoders");
            }
        }
        // Llama has no windows; Qwen uses them only where the flag says so, from layer max_window_layers on.
        let layers = self.size("num_hidden_layers")? as u64;
        let windowed = self
            .get("layer_types")
            .and_then(Value::as_array)
            .is_some_and(|types| types.iter().any(|kind| kind.as_str() != Some("full_attention")));
        let by_flag = architecture != Architecture::Llama
            && self.flag("use_sliding_window")?.unwrap_or(false)
            && self.get("sliding_window").is_some()
            && self.get("max_window_layers").and_then(Value::as_u64).is_none_or(|from| from < layers);
        if windowed || by_flag {
            return refuse("sliding-window attention".to_owned(), "supported is full attention in every layer");
        }
        if self.get("partial_rotary_factor").and_then(Value::as_f64).is_some_and(|f| f != 1.0) {
            return refuse("partial_rotary_factor".to_owned(), "supported are rotary embeddings on the whole head");
        }
        Ok(())
    }

    /// Base and scaling: `rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5.
    fn rope(&self, max_position: usize) -> Result<(f64, Option<RopeScaling>)> {
        let key = if self.get("rope_parameters").is_some() { "rope_parameters" } else { "rope_scaling" };
        let Some(value) = self.get(key) else { return Ok((self.positive("rope_theta", 10_000.0)?, None)) };
        let Some(map) = value.as_object() else { return self.wrong(key, "an object") };
        let inner = Fields(map);
        let theta = inner.positive("rope_theta", self.positive("rope_theta", 10_000.0)?)?;
        let kind = inner.get("rope_type").or_else(|| inner.get("type")).and_then(Value::as_str).unwrap_or("default");
        let scaling = match kind {
            "default" => None,
            "linear" => Some(RopeScaling::Linear { factor: inner.factor("factor")? }),
            "llama3" => {
                let (low, high) = (inner.factor("low_freq_factor")?, inner.factor("high_freq_factor")?);
                if low >= high {
                    return Err(Error::input(format!(
                        "{key}: low_freq_factor {low} must be below high_freq_factor {high}"
                    )));
                }
                Some(RopeScaling::Llama3 {
                    factor: inner.factor("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position: inner
                        .optional_size("original_max_position_embeddings")?
                        .unwrap_or(max_position),
                })
            }
            other => {
                return Err(Error::input(format!("rope scaling {other:?} is not supported"))
                    .hint("supported are \"default\", \"linear\" and \"llama3\""));
            }
        };
        Ok((theta, scaling))
    }

    /// A factor that must be there.
    fn factor(&self, key: &str) -> Result<f64> {
        if self.get(key).is_none() {
            return self.wrong(key, "a number");
        }
        self.positive(key, 1.0)
    }
}
