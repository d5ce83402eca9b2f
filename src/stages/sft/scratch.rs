//! A Qwen2 model made from nothing: config.json and seeded weights.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Architecture;
use super::tokenizer::Vocabulary;
use crate::engine::NamedTensor;
use crate::model::{ModelConfig, names, write_dense};
use crate::rl::random::normal;
use crate::tensors::DType;
use crate::{Error, Result};

/// The model's config.json.
pub fn config_json(architecture: &Architecture, vocabulary: Vocabulary) -> Map<String, Value> {
    let value = json!({
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocabulary.size,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.intermediate,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "max_position_embeddings": architecture.max_position,
        "rms_norm_eps": 1e-6,
        "rope_theta": architecture.rope_theta,
        "hidden_act": "silu",
        "initializer_range": architecture.init_std,
        "tie_word_embeddings": architecture.tie_embeddings,
        "use_sliding_window": false,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.pad,
        "torch_dtype": "bfloat16",
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Every parameter: norms 1, biases 0, matrices from N(0, init_std^2), those that write into the residual stream
/// scaled by 1 / sqrt(2 * layers) (GPT-2). Each entry depends on the seed and its tensor's place only.
pub fn parameters(config: &ModelConfig, init_std: f64, seed: u64) -> Vec<NamedTensor> {
    let residual = 1.0 / (2.0 * config.num_layers as f64).sqrt();
    names::parameters(config)
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<usize>() as u64;
            let data = if name.ends_with("norm.weight") {
                vec![1.0; count as usize]
            } else if name.ends_with("bias") {
                vec![0.0; count as usize]
            } else {
                let into_residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
                let std = if into_residual { init_std * residual } else { init_std };
                (0..count).map(|k| (std * normal(seed, &name, 0, k)) as f32).collect()
            };
            NamedTensor { name, shape, data }
        })
        .collect()
}

/// Writes config.json and f32 weights into `dir`.
pub fn write(dir: &Path, architecture: &Architecture, vocabulary: Vocabulary, seed: u64) -> Result<()> {
    let json = config_json(architecture, vocabulary);
    let config = ModelConfig::parse(&json).map_err(|e| e.within("architecture"))?;
    let parameters = parameters(&config, architecture.init_std, seed);
    if parameters.iter().map(|p| p.data.len()).sum::<usize>() == 0 {
        return Err(Error::usage("architecture: the model has no parameters"));
    }
    write_dense(dir, &json, &parameters, DType::F32)?;
    Ok(())
}
