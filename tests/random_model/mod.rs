//! A small Qwen2 of random weights for tests of the engine.

use std::path::Path;

use qerl::engine::{Engine, Load, NamedTensor, Trainable, load};
use qerl::model::{Adapter, Checkpoint, ModelConfig, Projection, names, write_dense};
use qerl::rl::random::normal;
use qerl::tensors::DType;

pub const VOCAB: u64 = 61;

/// A model of random weights in `DIR/model`, with an adapter that does something in `DIR/adapter`.
pub fn model(dir: &Path) {
    let config = serde_json::json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCAB,
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "tie_word_embeddings": true, "torch_dtype": "float32", "hidden_act": "silu"});
    let config = config.as_object().unwrap();
    let random = |name: &str, len: usize, std: f64, mean: f64| -> Vec<f32> {
        (0..len as u64).map(|i| (mean + std * normal(3, name, 0, i)) as f32).collect()
    };
    let tensors = names::parameters(&ModelConfig::parse(config).unwrap()).into_iter().map(|(name, shape)| {
        let (mean, std) = if name.ends_with("norm.weight") { (1.0, 0.2) } else { (0.0, 0.15) };
        NamedTensor { data: random(&name, shape.iter().product(), std, mean), name, shape }
    });
    std::fs::create_dir_all(dir.join("model")).unwrap();
    std::fs::create_dir_all(dir.join("adapter")).unwrap();
    write_dense(&dir.join("model"), config, &tensors.collect::<Vec<_>>(), DType::F32).unwrap();
    let base = Checkpoint::open(&dir.join("model")).unwrap();
    let mut adapter = Adapter::init(&base, 4, 8.0, &Projection::ALL, true, 5).unwrap();
    for tensor in adapter.tensors.iter_mut().filter(|t| t.name.ends_with("lora_B.weight")) {
        tensor.data = random(&tensor.name, tensor.data.len(), 0.1, 0.0);
    }
    adapter.write(&dir.join("adapter")).unwrap();
}

/// The CPU engine on both, which trains the adapter and the norms.
pub fn engine(dir: &Path) -> Box<dyn Engine> {
    let (model, adapter) = (dir.join("model"), dir.join("adapter"));
    let trainable = Trainable::Adapter { norms: true };
    load(&Load { model: &model, adapter: Some(&adapter), trainable, threads: 1 }).unwrap()
}
