//! The engine on small random models: gradients against the f64 reference, and results that depend on nothing but
//! their own row.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Budget, CpuEngine};
use crate::control::Cancel;
use crate::engine::reference::{Reference, by_base_name};
use crate::engine::{
    AdamW, Batch, Completion, Engine, Moments, NamedTensor, NormNoise, Pass, Request, Row, Sampling, Trainable,
};
use crate::model::{Adapter, Checkpoint, ModelConfig, Projection, names, write_dense};
use crate::rl::random::{key, normal};
use crate::selftest::{Tolerance, reference};
use crate::tensors::DType;

const VOCAB: u64 = 61;
const PLENTY: Budget = Budget { kv_cache: 1 << 30, activations: 1 << 30 };

fn config(architecture: &str, tied: bool) -> Map<String, Value> {
    let kind = architecture.to_lowercase();
    let json = json!({
        "architectures": [format!("{architecture}ForCausalLM")], "model_type": kind, "vocab_size": VOCAB,
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": tied, "torch_dtype": "float32", "hidden_act": "silu",
    });
    json.as_object().unwrap().clone()
}

/// A random model; weights are large enough that every part of it matters.
fn model(architecture: &str, tied: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let json = config(architecture, tied);
    let mut tensors = Vec::new();
    for (name, shape) in names::parameters(&ModelConfig::parse(&json).unwrap()) {
        let (mean, std) = if name.ends_with("norm.weight") { (1.0, 0.2) } else { (0.0, 0.15) };
        let len: usize = shape.iter().product();
        let data = (0..len as u64).map(|i| (mean + std * normal(3, &name, 0, i)) as f32).collect();
        tensors.push(NamedTensor { name, shape, data });
    }
    write_dense(dir.path(), &json, &tensors, DType::F32).unwrap();
    dir
}

fn adapter(model: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut adapter = Adapter::init(&Checkpoint::open(model).unwrap(), 4, 8.0, &Projection::ALL, true, 5).unwrap();
    for tensor in adapter.tensors.iter_mut().filter(|t| t.name.ends_with("lora_B.weight")) {
        for (i, x) in tensor.data.iter_mut().enumerate() {
            *x = (0.1 * normal(9, &tensor.name, 0, i as u64)) as f32;
        }
    }
    adapter.write(dir.path()).unwrap();
    dir
}

fn engine(model: &Path, adapter: Option<&Path>, trainable: Trainable, threads: usize, budget: Budget) -> CpuEngine {
    CpuEngine::load(model, adapter, trainable, threads, budget).unwrap()
}

fn ids(purpose: &str, count: u64) -> Vec<u32> {
    (0..count).map(|i| (key(1, purpose, 0, i) % VOCAB) as u32).collect()
}

/// Three rows, of which two share a prompt, and slopes for their scores.
fn batch() -> (Batch, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let shared: Arc<[u32]> = ids("shared", 6).into();
    let rows = vec![
        Row { prompt: shared.clone(), completion: ids("a", 9) },
        Row { prompt: ids("own", 1).into(), completion: ids("b", 14) },
        Row { prompt: shared, completion: ids("c", 4) },
    ];
    let slopes = |purpose: &str| -> Vec<Vec<f32>> {
        let row = |(r, row): (usize, &Row)| {
            (0..row.completion.len() as u64).map(|i| normal(7, purpose, r as u64, i) as f32).collect()
        };
        rows.iter().enumerate().map(row).collect()
    };
    let (log_probs, entropies) = (slopes("log-probs"), slopes("entropies"));
    (Batch { rows, temperature: 0.7 }, log_probs, entropies)
}

fn gradients(engine: &mut CpuEngine) -> Vec<NamedTensor> {
    let (batch, d_log_probs, d_entropies) = batch();
    engine.forward(&batch, Pass::Train).unwrap();
    engine.backward(&d_log_probs, &d_entropies).unwrap();
    engine.gradients().unwrap()
}

#[test]
fn every_architecture_agrees_with_the_reference() {
    for (architecture, tied) in [("Llama", true), ("Qwen2", false), ("Qwen3", true)] {
        let model = model(architecture, tied);
        let load = |model: &Path, adapter: Option<&Path>, trainable| {
            Ok(Box::new(engine(model, adapter, trainable, 2, PLENTY)) as Box<dyn Engine>)
        };
        let checks = reference(model.path(), &load, &Tolerance::F32).unwrap();
        let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
        assert!(failed.is_empty() && checks.len() > 30, "{architecture}: {failed:?}");
    }
}

#[test]
fn all_parameters_have_the_references_gradients() {
    for (architecture, tied) in [("Llama", true), ("Qwen2", false), ("Qwen3", true), ("Qwen3", false)] {
        let model = model(architecture, tied);
        let ours = gradients(&mut engine(model.path(), None, Trainable::All, 2, PLENTY));
        let (batch, d_log_probs, d_entropies) = batch();
        let reference = Reference::load(model.path(), None).unwrap();
        let golden = by_base_name(reference.gradients(&batch, &d_log_probs, &d_entropies).unwrap());
        assert_eq!(ours.len(), golden.len(), "{architecture}");
        for tensor in &ours {
            let golden = &golden[&tensor.name].data;
            let top = golden.iter().fold(0f32, |top, x| top.max(x.abs()));
            let error = tensor.data.iter().zip(golden).fold(0f32, |e, (a, b)| e.max((a - b).abs()));
            assert!(top > 0.0 && error <= 1e-4 * top, "{architecture} {}: {error} of {top}", tensor.name);
        }
    }
}

#[test]
fn what_is_computed_again_gives_the_same_bits() {
    let model = model("Qwen3", true);
    let adapter = adapter(model.path());
    let make = |activations, threads| {
        let trainable = Trainable::Adapter { norms: true };
        engine(model.path(), Some(adapter.path()), trainable, threads, Budget { activations, ..PLENTY })
    };
    let kept = gradients(&mut make(1 << 30, 2));
    assert_eq!(kept, gradients(&mut make(0, 2)), "nothing kept");
    assert_eq!(kept, gradients(&mut make(40_000, 1)), "something kept, one thread");
}

fn requests() -> Vec<Request> {
    let prompts: [Arc<[u32]>; 2] = [ids("p", 11).into(), ids("q", 5).into()];
    let request = |i: usize| Request {
        prompt: prompts[usize::from(i.is_multiple_of(3))].clone(),
        max_new_tokens: 20 + i,
        sampling: Sampling { temperature: if i == 4 { 0.0 } else { 0.9 }, ..Sampling::default() },
        seed: i as u64,
    };
    (0..9).map(request).collect()
}

fn generate(engine: &mut CpuEngine, requests: &[Request]) -> Vec<Completion> {
    engine.generate(requests, &[60], &Cancel::default(), &mut |_, _| {}).unwrap()
}

#[test]
fn a_completion_depends_on_nothing_else_in_its_batch() {
    let model = model("Llama", false);
    let adapter = adapter(model.path());
    let make = |threads, kv_cache| {
        engine(model.path(), Some(adapter.path()), Trainable::None, threads, Budget { kv_cache, ..PLENTY })
    };
    let requests = requests();
    let together = generate(&mut make(2, 1 << 30), &requests);
    assert!(together.iter().any(|c| c.tokens.len() > 10));
    assert_eq!(together, generate(&mut make(3, 1 << 30), &requests), "threads");
    // Room for about two sequences: the others wait, or give their memory back and are computed again.
    assert_eq!(together, generate(&mut make(2, 60_000), &requests), "a small cache");
    let mut alone = make(1, 1 << 30);
    for (request, golden) in requests.iter().zip(&together) {
        assert_eq!(generate(&mut alone, std::slice::from_ref(request)), std::slice::from_ref(golden), "alone");
    }
    let row = |(request, done): (&Request, &Completion)| Row {
        prompt: request.prompt.clone(),
        completion: done.tokens.clone(),
    };
    let rows: Vec<Row> = requests.iter().zip(&together).map(row).collect();
    let scores = make(2, 1 << 30).forward(&Batch { rows, temperature: 0.9 }, Pass::Score).unwrap();
    for (i, (done, scored)) in together.iter().zip(&scores.log_probs).enumerate().filter(|(i, _)| *i != 4) {
        for (sampled, scored) in done.log_probs.iter().zip(scored) {
            assert!((sampled - scored).abs() < 1e-5, "request {i}: {sampled} sampled, {scored} scored");
        }
    }
}

#[test]
fn a_stream_hands_over_every_token_once_as_it_comes() {
    let model = model("Qwen3", true);
    let mut engine = engine(model.path(), None, Trainable::None, 2, PLENTY);
    for request in &requests() {
        let whole = generate(&mut engine, std::slice::from_ref(request)).remove(0);
        let mut come = Vec::new();
        let streamed = engine.stream(request, &[60], &Cancel::default(), &mut |id| {
            come.push(id);
            Ok(())
        });
        assert_eq!((streamed.unwrap(), come), (whole.clone(), whole.tokens));
    }
    // What the caller refuses is the last one computed: the rest was not there yet.
    let (mut given, cancel) = (0, Cancel::default());
    let stopped = engine.stream(&requests()[1], &[], &cancel, &mut |_| {
        given += 1;
        if given == 3 { Err(crate::Error::failed("enough")) } else { Ok(()) }
    });
    assert_eq!((stopped.unwrap_err().message(), given), ("enough", 3));
    let mut after = 0;
    let cancelled = engine.stream(&requests()[1], &[], &cancel, &mut |_| {
        after += 1;
        cancel.cancel();
        Ok(())
    });
    assert_eq!((cancelled.unwrap_err().kind(), after), (crate::error::Kind::Cancelled, 1), "told before the end");
}

#[test]
fn noise_is_fresh_never_adds_up_and_can_be_taken_off() {
    let model = model("Qwen2", true);
    let adapter = adapter(model.path());
    let mut engine = engine(model.path(), Some(adapter.path()), Trainable::None, 2, PLENTY);
    let rows = [ids("row", 12)];
    let clean = engine.logits(&rows).unwrap();
    engine.set_adapter_enabled(false);
    let base = engine.logits(&rows).unwrap();
    assert_ne!(clean, base);
    engine.set_adapter_enabled(true);
    let noise = |seed| Some(NormNoise { sigma: 0.05, seed });
    let report = engine.set_norm_noise(noise(1)).unwrap();
    assert!((report.measured_std - 0.05).abs() < 0.01, "{report:?}");
    let first = engine.logits(&rows).unwrap();
    engine.set_adapter_enabled(false);
    assert_eq!(engine.logits(&rows).unwrap(), base, "the reference policy is clean");
    engine.set_adapter_enabled(true);
    engine.set_norm_noise(noise(2)).unwrap();
    assert_ne!(engine.logits(&rows).unwrap(), first);
    engine.set_norm_noise(noise(1)).unwrap();
    assert_eq!(engine.logits(&rows).unwrap(), first, "the second noise left nothing behind");
    engine.set_norm_noise(Some(NormNoise { sigma: 0.0, seed: 1 })).unwrap();
    assert_eq!(engine.logits(&rows).unwrap(), clean, "sigma 0 is off");
}

#[test]
fn a_resumed_engine_steps_to_the_same_bits() {
    let model = model("Qwen2", true);
    let adapter = adapter(model.path());
    let make = || engine(model.path(), Some(adapter.path()), Trainable::Adapter { norms: true }, 2, PLENTY);
    let step =
        AdamW { lr: 1e-2, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1, max_grad_norm: 1.0, moments: Moments::F32 };
    let mut whole = make();
    let mut resumed = make();
    for i in 0..4 {
        gradients(&mut whole);
        assert!(whole.apply(&step).unwrap() > 0.0);
        if i == 1 {
            resumed.set_parameters(&whole.parameters().unwrap()).unwrap();
            resumed.set_optimizer_state(&whole.optimizer_state().unwrap()).unwrap();
        } else if i > 1 {
            gradients(&mut resumed);
            resumed.apply(&step).unwrap();
        }
    }
    assert_eq!(whole.parameters().unwrap(), resumed.parameters().unwrap());
    assert_eq!(whole.optimizer_state().unwrap(), resumed.optimizer_state().unwrap());
    assert_ne!(whole.parameters().unwrap(), make().parameters().unwrap());
}
