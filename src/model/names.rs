//! Tensor names and shapes of a dense decoder in Hugging Face's layout.

use super::ModelConfig;

pub const EMBEDDING: &str = "model.embed_tokens.weight";
pub const FINAL_NORM: &str = "model.norm.weight";
pub const HEAD: &str = "lm_head.weight";

/// The seven linear maps of a layer: what is quantized and what adapters sit on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Projection {
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// Those whose weights fused kernels put under one another, so that they share NVFP4's global scale.
    pub const FUSED: [&[Self]; 4] = [&[Self::Q, Self::K, Self::V], &[Self::O], &[Self::Gate, Self::Up], &[Self::Down]];

    /// `q_proj` and so on.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q => "q_proj",
            Self::K => "k_proj",
            Self::V => "v_proj",
            Self::O => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// `self_attn` or `mlp`.
    pub fn block(self) -> &'static str {
        match self {
            Self::Q | Self::K | Self::V | Self::O => "self_attn",
            Self::Gate | Self::Up | Self::Down => "mlp",
        }
    }

    /// `model.layers.3.self_attn.q_proj`: the prefix of its tensors.
    pub fn prefix(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}.{}", self.block(), self.name())
    }

    /// The projection whose prefix this is, and its layer.
    pub fn parse(prefix: &str) -> Option<(Self, usize)> {
        let rest = prefix.strip_prefix("model.layers.")?;
        let (layer, rest) = rest.split_once('.')?;
        let (block, name) = rest.split_once('.')?;
        let found = Self::ALL.into_iter().find(|p| p.name() == name && p.block() == block)?;
        Some((found, layer.parse().ok()?))
    }

    /// `[outputs, inputs]`. The attention width is heads * head_dim, which may differ from hidden_size.
    pub fn shape(self, config: &ModelConfig) -> [usize; 2] {
        let attention = config.num_heads * config.head_dim;
        match self {
            Self::Q => [attention, config.hidden_size],
            Self::K | Self::V => [config.num_kv_heads * config.head_dim, config.hidden_size],
            Self::O => [config.hidden_size, attention],
            Self::Gate | Self::Up => [config.intermediate_size, config.hidden_size],
            Self::Down => [config.hidden_size, config.intermediate_size],
        }
    }

    pub fn has_bias(self, config: &ModelConfig) -> bool {
        match self {
            Self::Q | Self::K | Self::V => config.qkv_bias,
            Self::O => config.o_bias,
            Self::Gate | Self::Up | Self::Down => config.mlp_bias,
        }
    }
}

/// The RMSNorms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Before attention.
    Input,
    /// Before the MLP.
    PostAttention,
    /// On each head of q (Qwen3).
    Q,
    /// On each head of k (Qwen3).
    K,
}

impl Norm {
    /// The two block norms: they take noise and can be trained beside an adapter.
    pub const BLOCK: [Self; 2] = [Self::Input, Self::PostAttention];

    /// The module's own name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input_layernorm",
            Self::PostAttention => "post_attention_layernorm",
            Self::Q => "q_norm",
            Self::K => "k_norm",
        }
    }

    /// The weight's name.
    pub fn weight(self, layer: usize) -> String {
        match self {
            Self::Input | Self::PostAttention => format!("model.layers.{layer}.{}.weight", self.name()),
            Self::Q | Self::K => format!("model.layers.{layer}.self_attn.{}.weight", self.name()),
        }
    }

    pub fn len(self, config: &ModelConfig) -> usize {
        match self {
            Self::Input | Self::PostAttention => config.hidden_size,
            Self::Q | Self::K => config.head_dim,
        }
    }

    /// Those that a layer of this model has.
    pub fn of(config: &ModelConfig) -> &'static [Self] {
        const ALL: [Norm; 4] = [Norm::Input, Norm::PostAttention, Norm::Q, Norm::K];
        if config.qk_norm { &ALL } else { &ALL[..2] }
    }
}

/// Name and shape of every parameter of the unquantized model, layer by layer. A tied head is not listed.
pub fn parameters(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let mut all = vec![(EMBEDDING.to_owned(), vec![config.vocab_size, config.hidden_size])];
    for layer in 0..config.num_layers {
        for norm in Norm::of(config) {
            all.push((norm.weight(layer), vec![norm.len(config)]));
        }
        for projection in Projection::ALL {
            let shape = projection.shape(config);
            let prefix = projection.prefix(layer);
            all.push((format!("{prefix}.weight"), shape.to_vec()));
            if projection.has_bias(config) {
                all.push((format!("{prefix}.bias"), vec![shape[0]]));
            }
        }
    }
    all.push((FINAL_NORM.to_owned(), vec![config.hidden_size]));
    if !config.tie_word_embeddings {
        all.push((HEAD.to_owned(), vec![config.vocab_size, config.hidden_size]));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_reads_back_as_its_projection() {
        for projection in Projection::ALL {
            assert_eq!(Projection::parse(&projection.prefix(31)), Some((projection, 31)));
        }
        assert_eq!(Projection::parse("model.layers.0.mlp.q_proj"), None);
        assert_eq!(Projection::parse("lm_head"), None);
    }
}
