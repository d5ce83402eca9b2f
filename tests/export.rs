//! What `qerl export` writes computes what the policy computes.

use std::path::Path;

use qerl::control::{Cancel, Quiet};
use qerl::engine::{Batch, Load, NamedTensor, Pass, Row, Trainable, load};
use qerl::model::{
    Adapter, Checkpoint, Layout, ModelConfig, Projection, compress, merge, names, with_norms, write_dense,
};
use qerl::quant::Format;
use qerl::tensors::DType;
use serde_json::json;
use tempfile::TempDir;

/// Values in [-0.5, 0.5) that bf16 holds exactly.
fn fill(name: &str, count: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(7u64, |state, byte| state.wrapping_mul(131).wrapping_add(u64::from(byte)));
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as f32 / 256.0 - 0.5
    };
    (0..count).map(next).collect()
}

fn dense_model() -> TempDir {
    let json = json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 20, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": 2, "dtype": "bfloat16"});
    let json = json.as_object().unwrap();
    let config = ModelConfig::parse(json).unwrap();
    let all = names::parameters(&config).into_iter();
    let tensors: Vec<NamedTensor> =
        all.map(|(name, shape)| NamedTensor { data: fill(&name, shape.iter().product()), name, shape }).collect();
    let dir = tempfile::tempdir().unwrap();
    write_dense(dir.path(), json, &tensors, DType::BF16).unwrap();
    dir
}

fn nvfp4_model() -> TempDir {
    let (source, out) = (dense_model(), tempfile::tempdir().unwrap());
    compress(source.path(), out.path(), Format::Nvfp4, true, &Quiet, &Cancel::new()).unwrap();
    out
}

/// An adapter with trained norms in which no tensor is as it was initialized.
fn adapter(base: &Path) -> Adapter {
    let base = Checkpoint::open(base).unwrap();
    let mut adapter = Adapter::init(&base, 4, 8.0, &[Projection::Q, Projection::Down], true, 1).unwrap();
    for tensor in &mut adapter.tensors {
        tensor.data = fill(&tensor.name, tensor.data.len());
        if tensor.name.contains("lora_") {
            tensor.data.iter_mut().for_each(|x| *x *= 0.25);
        }
    }
    adapter
}

fn log_probs(model: &Path, adapter: Option<&Adapter>) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    if let Some(adapter) = adapter {
        adapter.write(dir.path()).unwrap();
    }
    let adapter = adapter.map(|_| dir.path());
    let mut engine = load(&Load { model, adapter, trainable: Trainable::None, threads: 1 }).unwrap();
    let row = Row { prompt: vec![3u32].into(), completion: vec![5, 1, 19, 7, 0, 4, 4, 12] };
    engine.forward(&Batch { rows: vec![row], temperature: 1.0 }, Pass::Score).unwrap().log_probs.remove(0)
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_merged_model_holds_w_plus_scaled_b_a_and_computes_the_policy() {
    let (base, out) = (nvfp4_model(), tempfile::tempdir().unwrap());
    let adapter = adapter(base.path());
    merge(base.path(), Some(&adapter), out.path(), &Quiet, &Cancel::new()).unwrap();
    let (before, after) = (Checkpoint::open(base.path()).unwrap(), Checkpoint::open(out.path()).unwrap());
    assert_eq!((before.layout(), after.layout()), (Layout::Nvfp4, Layout::Dense));

    let prefix = Projection::Q.prefix(1);
    let key = |part: &str| adapter.tensor(&format!("base_model.model.{prefix}.{part}.weight")).unwrap();
    let (a, b) = (key("lora_A"), key("lora_B"));
    let (w, merged) = (before.linear(&prefix).unwrap().dequantize(), after.linear(&prefix).unwrap().dequantize());
    for (row, col) in [(0, 0), (3, 17), (63, 31)] {
        let delta: f64 = (0..4).map(|r| f64::from(b.data[row * 4 + r]) * f64::from(a.data[r * 32 + col])).sum();
        let want = f64::from(w[row * 32 + col]) + 2.0 * delta;
        let have = f64::from(merged[row * 32 + col]);
        assert!((have - want).abs() <= want.abs() / 256.0 + 1e-6, "[{row}, {col}]: {have}, not {want}");
    }
    // Without a LoRA on it, the weight is the dequantized one, rounded to bf16.
    let up = Projection::Up.prefix(0);
    let (w, merged) = (before.linear(&up).unwrap().dequantize(), after.linear(&up).unwrap().dequantize());
    assert!(w.iter().zip(&merged).all(|(w, m)| half::bf16::from_f32(*w).to_f32() == *m));

    let (policy, plain) = (log_probs(base.path(), Some(&adapter)), log_probs(base.path(), None));
    let merged = log_probs(out.path(), None);
    assert!(furthest(&policy, &plain) > 0.2, "the adapter changes too little for this test to mean anything");
    assert!(furthest(&policy, &merged) < 0.1, "{policy:?} became {merged:?}");
}

#[test]
fn trained_norms_in_the_base_and_a_plain_lora_compute_the_policy() {
    let (base, out) = (nvfp4_model(), tempfile::tempdir().unwrap());
    let adapter = adapter(base.path());
    with_norms(base.path(), &adapter, out.path(), &Quiet, &Cancel::new()).unwrap();
    let plain = adapter.without_norms();
    assert!(!plain.norms && plain.tensors.iter().all(|tensor| tensor.name.contains("lora_")));
    assert_eq!(plain.tensors.len(), 2 * 2 * 2);
    assert_eq!(Checkpoint::open(out.path()).unwrap().layout(), Layout::Nvfp4);
    let policy = log_probs(base.path(), Some(&adapter));
    assert!(furthest(&policy, &log_probs(base.path(), Some(&plain))) > 0.01, "the norms change nothing");
    // The norms here are exact in bf16, so nothing is lost.
    assert!(furthest(&policy, &log_probs(out.path(), Some(&plain))) < 1e-5);
}

#[test]
fn a_merge_that_is_no_number_is_refused_and_named() {
    let (base, out) = (nvfp4_model(), tempfile::tempdir().unwrap());
    let mut adapter = adapter(base.path());
    adapter.tensors.iter_mut().for_each(|tensor| tensor.data.iter_mut().for_each(|x| *x *= 1e30));
    let error = merge(base.path(), Some(&adapter), out.path(), &Quiet, &Cancel::new()).unwrap_err().to_string();
    assert!(error.contains("model.layers.0."), "{error}");
    assert!(!out.path().join("model.safetensors").exists());
}
