//! The architecture of a dense decoder, read from config.json.

/// Families whose block this project computes; they differ in biases and qk-norm only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
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
