//! Public models' shapes.

use crate::model::{Architecture, ModelConfig};
use crate::{Error, Result};

/// Name; vocabulary, hidden, intermediate, layers, heads, key-value heads, head size; tied embeddings.
const SHAPES: [(&str, [usize; 7], bool); 6] = [
    ("qwen2.5-0.5b", [151_936, 896, 4864, 24, 14, 2, 64], true),
    ("qwen2.5-1.5b", [151_936, 1536, 8960, 28, 12, 2, 128], true),
    ("qwen2.5-3b", [151_936, 2048, 11_008, 36, 16, 2, 128], true),
    ("qwen2.5-7b", [152_064, 3584, 18_944, 28, 28, 4, 128], false),
    ("qwen2.5-14b", [152_064, 5120, 13_824, 48, 40, 8, 128], false),
    ("qwen2.5-32b", [152_064, 5120, 27_648, 64, 40, 8, 128], false),
];

/// # Errors
/// Where no shape has this name.
pub fn shape(name: &str) -> Result<ModelConfig> {
    let found = SHAPES.iter().find(|(known, ..)| *known == name);
    let &(_, [vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim], tied) = found
        .ok_or_else(|| {
            let names: Vec<&str> = SHAPES.iter().map(|(name, ..)| *name).collect();
            Error::usage(format!("`{name}` is no known shape")).hint(format!("one of {}", names.join(", ")))
        })?;
    Ok(ModelConfig {
        architecture: Architecture::Qwen2,
        vocab_size,
        hidden_size,
        intermediate_size,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        max_position: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        rope_scaling: None,
        tie_word_embeddings: tied,
        qkv_bias: true,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
    })
}
