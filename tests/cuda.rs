//! The CUDA engine against the f64 reference, golden data and the CPU engine. Skips where there is no GPU.

use std::path::Path;
use std::sync::Arc;

use qerl::control::{Cancel, Quiet};
use qerl::engine::cpu::{Budget, CpuEngine};
use qerl::engine::cuda::compile::Width;
use qerl::engine::cuda::device::gpus;
use qerl::engine::cuda::{CudaEngine, Options};
use qerl::engine::reference::{Reference, by_base_name};
use qerl::engine::{
    AdamW, Batch, Completion, Engine, Moments, NamedTensor, NormNoise, Pass, Request, Row, Sampling, Trainable,
};
use qerl::model::{Adapter, Checkpoint, ModelConfig, Projection, compress, names, write_dense};
use qerl::quant::Format;
use qerl::rl::random::{key, normal};
use qerl::selftest::{Check, Tolerance, folder, golden, reference};
use qerl::tensors::DType;
use serde_json::{Map, Value, json};

const VOCAB: u64 = 61;

/// Whether there is a GPU; says so where there is none.
fn gpu() -> bool {
    let found = gpus().is_ok_and(|all| !all.is_empty());
    if !found {
        eprintln!("skipped: no GPU on this machine");
    }
    found
}

fn config(architecture: &str, tied: bool, large: bool) -> Map<String, Value> {
    let kind = architecture.to_lowercase();
    let mut json = json!({
        "architectures": [format!("{architecture}ForCausalLM")], "model_type": kind, "vocab_size": VOCAB,
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": tied, "torch_dtype": "float32", "hidden_act": "silu",
    });
    if large {
        // Every product suits the matrix units.
        for (name, value) in
            [("hidden_size", 256), ("intermediate_size", 512), ("num_attention_heads", 4), ("head_dim", 64)]
        {
            json[name] = json!(value);
        }
        json["vocab_size"] = json!(1024);
    }
    json.as_object().unwrap().clone()
}

/// A random model; weights are large enough that every part of it matters.
fn model(architecture: &str, tied: bool, large: bool) -> tempfile::TempDir {
    write(&config(architecture, tied, large), if large { 0.06 } else { 0.15 })
}

fn write(json: &Map<String, Value>, std: f64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = Vec::new();
    for (name, shape) in names::parameters(&ModelConfig::parse(json).unwrap()) {
        let (mean, std) = if name.ends_with("norm.weight") { (1.0, 0.2) } else { (0.0, std) };
        let len: usize = shape.iter().product();
        let data = (0..len as u64).map(|i| (mean + std * normal(3, &name, 0, i)) as f32).collect();
        tensors.push(NamedTensor { name, shape, data });
    }
    write_dense(dir.path(), json, &tensors, DType::F32).unwrap();
    dir
}

fn adapter(model: &Path) -> tempfile::TempDir {
    adapter_of(model, 4)
}

fn adapter_of(model: &Path, rank: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut adapter = Adapter::init(&Checkpoint::open(model).unwrap(), rank, 8.0, &Projection::ALL, true, 5).unwrap();
    for tensor in adapter.tensors.iter_mut().filter(|t| t.name.ends_with("lora_B.weight")) {
        for (i, x) in tensor.data.iter_mut().enumerate() {
            *x = (0.1 * normal(9, &tensor.name, 0, i as u64)) as f32;
        }
    }
    adapter.write(dir.path()).unwrap();
    dir
}

fn options(width: Width) -> Options {
    Options { width, ..Options::default() }
}

fn engine(model: &Path, adapter: Option<&Path>, trainable: Trainable, options: Options) -> CudaEngine {
    CudaEngine::load(model, adapter, trainable, 0, options).unwrap()
}

fn ids(purpose: &str, count: u64) -> Vec<u32> {
    (0..count).map(|i| (key(1, purpose, 0, i) % VOCAB) as u32).collect()
}

/// Three rows, of which two share a prompt, and slopes for their scores.
fn batch() -> (Batch, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let shared: Arc<[u32]> = ids("shared", 6).into();
    let rows = vec![
        Row { prompt: shared.clone(), completion: ids("a", 39) },
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

fn gradients(engine: &mut CudaEngine) -> Vec<NamedTensor> {
    let (batch, d_log_probs, d_entropies) = batch();
    engine.forward(&batch, Pass::Train).unwrap();
    engine.backward(&d_log_probs, &d_entropies).unwrap();
    engine.gradients().unwrap()
}

fn tolerance(width: Width) -> Tolerance {
    if width == Width::F32 { Tolerance::F32 } else { Tolerance::BF16 }
}

fn all_passed(what: &str, checks: &[Check], least: usize) {
    let failed: Vec<String> = checks
        .iter()
        .filter(|check| !check.passed)
        .map(|check| format!("{}: {:.2} times the tolerance ({})", check.name, check.error, check.detail))
        .collect();
    let worst = checks.iter().max_by(|a, b| a.error.total_cmp(&b.error)).unwrap();
    println!("{what}: {} comparisons, the worst at {:.3} ({})", checks.len(), worst.error, worst.name);
    assert!(failed.is_empty(), "{what}: {} of {} failed:\n{}", failed.len(), checks.len(), failed.join("\n"));
    assert!(checks.len() >= least, "{what}: only {} comparisons", checks.len());
}

fn golden_data(width: Width) {
    let dir = folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden"));
    if !gpu() {
        return;
    }
    if !dir.is_dir() {
        eprintln!("skipped: no golden data at {} (set QERL_GOLDEN_DIR)", dir.display());
        return;
    }
    let load = |model: &Path, adapter: Option<&Path>, trainable| {
        Ok(Box::new(CudaEngine::load(model, adapter, trainable, 0, options(width))?) as Box<dyn Engine>)
    };
    let checks = golden(&dir, &load, &tolerance(width)).unwrap();
    all_passed(&format!("golden {width:?}"), &checks, 100);
}

#[test]
fn golden_values_hold_in_f32() {
    golden_data(Width::F32);
}

#[test]
fn golden_values_hold_in_bf16() {
    golden_data(Width::Bf16);
}

fn every_architecture(width: Width) {
    if !gpu() {
        return;
    }
    for (architecture, tied, large) in
        [("Llama", true, false), ("Qwen2", false, false), ("Qwen3", true, false), ("Qwen2", true, true)]
    {
        let model = model(architecture, tied, large);
        let load = |model: &Path, adapter: Option<&Path>, trainable| {
            Ok(Box::new(engine(model, adapter, trainable, options(width))) as Box<dyn Engine>)
        };
        let checks = reference(model.path(), &load, &tolerance(width)).unwrap();
        all_passed(&format!("{architecture} {width:?} large: {large}"), &checks, 30);
    }
}

#[test]
fn every_architecture_agrees_with_the_reference_in_f32() {
    every_architecture(Width::F32);
}

#[test]
fn every_architecture_agrees_with_the_reference_in_bf16() {
    every_architecture(Width::Bf16);
}

fn all_parameters(width: Width) {
    if !gpu() {
        return;
    }
    for (architecture, tied, large) in
        [("Llama", true, false), ("Qwen2", false, false), ("Qwen3", false, false), ("Qwen2", true, true)]
    {
        let model = model(architecture, tied, large);
        let ours = gradients(&mut engine(model.path(), None, Trainable::All, options(width)));
        let (batch, d_log_probs, d_entropies) = batch();
        let reference = Reference::load(model.path(), None).unwrap();
        let golden = by_base_name(reference.gradients(&batch, &d_log_probs, &d_entropies).unwrap());
        assert_eq!(ours.len(), golden.len(), "{architecture}");
        let (mut failed, mut dots) = (Vec::new(), [0f64; 3]);
        for tensor in &ours {
            let golden = &golden[&tensor.name].data;
            let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                tensor.data.iter().zip(golden).map(|(&a, &b)| f(f64::from(a), f64::from(b))).sum()
            };
            let cosine = sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
            dots[0] += sum(&|a, b| a * b);
            dots[1] += sum(&|a, _| a * a);
            dots[2] += sum(&|_, b| b * b);
            let error = (sum(&|a, b| (a - b) * (a - b)) / sum(&|_, b| b * b)).sqrt();
            let good = if width == Width::F32 { error < 1e-4 } else { cosine >= 0.995 };
            if !good {
                failed.push(format!("{architecture} {}: error {error}, cosine {cosine}", tensor.name));
            }
        }
        let together = dots[0] / (dots[1] * dots[2]).sqrt();
        println!("{architecture} {width:?} large: {large}: cosine of all gradients together {together:.6}");
        assert!(together >= 0.999, "{architecture}: {together}");
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }
}

#[test]
fn all_parameters_have_the_references_gradients_in_f32() {
    all_parameters(Width::F32);
}

#[test]
fn all_parameters_have_the_references_gradients_in_bf16() {
    all_parameters(Width::Bf16);
}

#[test]
fn what_is_computed_again_gives_the_same_bits() {
    if !gpu() {
        return;
    }
    let model = model("Qwen3", true, true);
    let adapter = adapter(model.path());
    let make = |activations| {
        let options = Options { activations: Some(activations), ..Options::default() };
        engine(model.path(), Some(adapter.path()), Trainable::Adapter { norms: true }, options)
    };
    let kept = gradients(&mut make(1 << 30));
    assert!(kept == gradients(&mut make(0)), "nothing kept");
    assert!(kept == gradients(&mut make(1 << 30)), "the same again");
}

/// Completions of several tiles of keys, alone and behind a shared prompt that ends inside a tile.
#[test]
fn long_rows_have_the_cpu_engines_scores_and_gradients() {
    if !gpu() {
        return;
    }
    for head_dim in [64, 128] {
        let mut json = config("Qwen2", true, true);
        json.insert("head_dim".into(), json!(head_dim));
        let model = write(&json, 0.06);
        let adapter = adapter(model.path());
        let shared: Arc<[u32]> = ids("shared", 150).into();
        let row =
            |prompt: &Arc<[u32]>, purpose: &str, count| Row { prompt: prompt.clone(), completion: ids(purpose, count) };
        let own: Arc<[u32]> = ids("own", 3).into();
        let rows = vec![row(&shared, "a", 203), row(&own, "b", 301), row(&shared, "c", 31), row(&shared, "d", 128)];
        let slopes: Vec<Vec<f32>> = rows
            .iter()
            .enumerate()
            .map(|(r, row)| (0..row.completion.len()).map(|i| normal(7, "long", r as u64, i as u64) as f32).collect())
            .collect();
        let batch = Batch { rows, temperature: 1.0 };
        let trainable = Trainable::Adapter { norms: true };
        let budget = Budget { kv_cache: 1 << 30, activations: 1 << 30 };
        let mut cpu = CpuEngine::load(model.path(), Some(adapter.path()), trainable, 2, budget).unwrap();
        let mut cuda = engine(model.path(), Some(adapter.path()), trainable, options(Width::Bf16));
        let golden = cpu.forward(&batch, Pass::Train).unwrap();
        let ours = cuda.forward(&batch, Pass::Train).unwrap();
        let pairs = golden.log_probs.iter().flatten().zip(ours.log_probs.iter().flatten());
        let errors: Vec<f32> = pairs.map(|(a, b)| (a - b).abs()).collect();
        let mean = errors.iter().sum::<f32>() / errors.len() as f32;
        assert!(mean < 0.03, "heads of {head_dim}: log-probs are {mean} apart");
        cpu.backward(&slopes, &[]).unwrap();
        cuda.backward(&slopes, &[]).unwrap();
        let mut dots = [0f64; 3];
        for (a, b) in cpu.gradients().unwrap().iter().zip(&cuda.gradients().unwrap()) {
            assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
            let mut own = [0f64; 3];
            for (&x, &y) in a.data.iter().zip(&b.data) {
                let (x, y) = (f64::from(x), f64::from(y));
                own = [own[0] + x * y, own[1] + x * x, own[2] + y * y];
            }
            let cosine = own[0] / (own[1] * own[2]).sqrt();
            assert!(cosine >= 0.995, "heads of {head_dim}, {}: cosine {cosine}", a.name);
            dots = [dots[0] + own[0], dots[1] + own[1], dots[2] + own[2]];
        }
        let together = dots[0] / (dots[1] * dots[2]).sqrt();
        println!("heads of {head_dim}: log-probs {mean:.5} apart, cosine of all gradients {together:.6}");
        assert!(together >= 0.999, "heads of {head_dim}: {together}");
    }
}

fn requests() -> Vec<Request> {
    let prompts: [Arc<[u32]>; 3] = [ids("p", 111).into(), ids("q", 5).into(), ids("r", 64).into()];
    let request = |i: usize| Request {
        prompt: prompts[i % 3].clone(),
        max_new_tokens: 70 + i,
        sampling: match i {
            4 => Sampling { temperature: 0.0, ..Sampling::default() },
            5 => Sampling { temperature: 0.8, top_p: 0.9, ..Sampling::default() },
            6 => Sampling { temperature: 0.8, top_k: 5, min_p: 0.05, ..Sampling::default() },
            _ => Sampling { temperature: 0.9, ..Sampling::default() },
        },
        seed: i as u64 + (1 << 40),
    };
    (0..9).map(request).collect()
}

fn generate(engine: &mut dyn Engine, requests: &[Request]) -> Vec<Completion> {
    engine.generate(requests, &[60], &Cancel::default(), &mut |_, _| {}).unwrap()
}

/// In f32 logits of different batches are equal but for rounding: tokens agree unless a draw is on the edge.
fn same_tokens(what: &str, a: &[Completion], b: &[Completion]) {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let place = a.tokens.iter().zip(&b.tokens).position(|(x, y)| x != y);
        assert!(a.tokens == b.tokens, "{what}: request {i} differs at {place:?} of {}", a.tokens.len());
        let error = a.log_probs.iter().zip(&b.log_probs).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
        assert!(error < 1e-3 && a.finish == b.finish, "{what}: request {i} has log-probs {error} apart");
    }
}

#[test]
fn tokens_are_the_cpu_engines_and_depend_on_nothing_else_in_the_batch() {
    if !gpu() {
        return;
    }
    let model = model("Llama", false, false);
    let adapter = adapter(model.path());
    let make = |kv_cache| {
        let options = Options { width: Width::F32, kv_cache, activations: None };
        engine(model.path(), Some(adapter.path()), Trainable::None, options)
    };
    let requests = requests();
    let together = generate(&mut make(None), &requests);
    assert!(together.iter().any(|c| c.tokens.len() > 10));
    let mut alone = make(None);
    for (i, (request, golden)) in requests.iter().zip(&together).enumerate() {
        let done = generate(&mut alone, std::slice::from_ref(request));
        same_tokens(&format!("alone {i}"), &done, std::slice::from_ref(golden));
    }
    // Room for about two sequences: the others wait, or give their pages back and are computed again.
    same_tokens("a small cache", &together, &generate(&mut make(Some(1)), &requests));
    let budget = Budget { kv_cache: 1 << 30, activations: 1 << 30 };
    let mut cpu = CpuEngine::load(model.path(), Some(adapter.path()), Trainable::None, 2, budget).unwrap();
    same_tokens("the CPU engine", &together, &generate(&mut cpu, &requests));
}

#[test]
fn sampled_log_probs_are_those_of_scoring() {
    if !gpu() {
        return;
    }
    for width in [Width::F32, Width::Bf16] {
        let model = model("Qwen2", false, true);
        let mut engine = engine(model.path(), None, Trainable::None, options(width));
        let prompt: Arc<[u32]> = ids("p", 40).into();
        let sampling = Sampling { temperature: 0.9, ..Sampling::default() };
        let request = |seed| Request { prompt: prompt.clone(), max_new_tokens: 100, sampling, seed };
        let done = generate(&mut engine, &(0..40).map(request).collect::<Vec<_>>());
        let rows = done.iter().map(|c| Row { prompt: prompt.clone(), completion: c.tokens.clone() }).collect();
        let scores = engine.forward(&Batch { rows, temperature: 0.9 }, Pass::Score).unwrap();
        let (mut sum, mut worst, mut count) = (0f64, 0f32, 0);
        for (done, scored) in done.iter().zip(&scores.log_probs) {
            assert_eq!(done.log_probs.len(), scored.len());
            for (a, b) in done.log_probs.iter().zip(scored) {
                sum += f64::from((a - b).abs());
                worst = worst.max((a - b).abs());
                count += 1;
            }
        }
        let mean = sum / f64::from(count);
        println!("{width:?}: mean |sampled - scored| {mean:.6}, worst {worst:.6} of {count}");
        assert!(mean < if width == Width::F32 { 1e-4 } else { 0.03 }, "{width:?}: {mean}");
    }
}

/// The decode step has products of its own for few rows, one or two launches of them, and the large ones beyond; scoring
/// always has the large ones.
#[test]
fn every_format_decodes_batches_of_every_size_as_it_scores_them() {
    if !gpu() {
        return;
    }
    for architecture in ["Qwen2", "Qwen3"] {
        let dense = model(architecture, false, true);
        for format in [Format::Bf16, Format::Nvfp4, Format::Mxfp4, Format::Nf4] {
            let packed = tempfile::tempdir().unwrap();
            let base = if format == Format::Bf16 { dense.path() } else { packed.path() };
            if format != Format::Bf16 {
                let cancel = Cancel::default();
                compress(dense.path(), base, format, true, &Quiet, &cancel).unwrap();
            }
            for rank in [16, 4] {
                let adapter = adapter_of(base, rank);
                let mut engine = engine(base, Some(adapter.path()), Trainable::None, options(Width::Bf16));
                for count in [1, 7, 9, 20, 40, 64, 100, 150] {
                    let what = format!("{architecture} {format:?} rank {rank}, {count} rows");
                    let (mean, worst) = sampled_against_scored(&mut engine, count);
                    println!("{what}: mean |sampled - scored| {mean:.5}, worst {worst:.5}");
                    assert!(mean < 0.03 && worst < 0.5, "{what}: {mean} {worst}");
                }
            }
        }
    }
}

/// Mean and largest difference of `count` completions' log-probs as they were sampled and as they are scored.
fn sampled_against_scored(engine: &mut CudaEngine, count: u64) -> (f64, f32) {
    let prompts: [Arc<[u32]>; 2] = [ids("p", 40).into(), ids("q", 3).into()];
    let sampling = Sampling { temperature: 0.9, ..Sampling::default() };
    let prompt = |i: u64| prompts[(i % 2) as usize].clone();
    let requests: Vec<Request> =
        (0..count).map(|i| Request { prompt: prompt(i), max_new_tokens: 90, sampling, seed: i }).collect();
    let done = generate(engine, &requests);
    let row = |(i, c): (usize, &Completion)| Row { prompt: prompt(i as u64), completion: c.tokens.clone() };
    let rows = done.iter().enumerate().map(row).collect();
    let scores = engine.forward(&Batch { rows, temperature: 0.9 }, Pass::Score).unwrap();
    let pairs = || done.iter().zip(&scores.log_probs).flat_map(|(a, b)| a.log_probs.iter().zip(b));
    let (sum, worst) =
        pairs().fold((0f64, 0f32), |(sum, worst), (a, b)| (sum + f64::from((a - b).abs()), worst.max((a - b).abs())));
    (sum / pairs().count() as f64, worst)
}

#[test]
fn noise_is_fresh_never_adds_up_and_can_be_taken_off() {
    if !gpu() {
        return;
    }
    let model = model("Qwen2", true, false);
    let adapter = adapter(model.path());
    let mut engine = engine(model.path(), Some(adapter.path()), Trainable::None, Options::default());
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
    if !gpu() {
        return;
    }
    let model = model("Qwen2", true, true);
    let adapter = adapter(model.path());
    let trainable = Trainable::Adapter { norms: true };
    let make = || engine(model.path(), Some(adapter.path()), trainable, Options::default());
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
    assert!(whole.parameters().unwrap() == resumed.parameters().unwrap());
    assert!(whole.optimizer_state().unwrap() == resumed.optimizer_state().unwrap());
    assert!(whole.parameters().unwrap() != make().parameters().unwrap());
}

#[test]
fn adamw_steps_as_the_cpu_engine_does() {
    if !gpu() {
        return;
    }
    for (moments, large) in [(Moments::F32, false), (Moments::Blockwise8, true)] {
        steps_agree(moments, large);
    }
}

fn steps_agree(moments: Moments, large: bool) {
    let model = model("Qwen2", true, large);
    let adapter = adapter(model.path());
    let trainable = Trainable::Adapter { norms: true };
    let step = AdamW { lr: 1e-2, betas: (0.9, 0.99), eps: 1e-6, weight_decay: 0.1, max_grad_norm: 1.0, moments };
    let budget = Budget { kv_cache: 1 << 30, activations: 1 << 30 };
    let mut cpu = CpuEngine::load(model.path(), Some(adapter.path()), trainable, 2, budget).unwrap();
    let mut cuda = engine(model.path(), Some(adapter.path()), trainable, options(Width::F32));
    for _ in 0..3 {
        let (batch, d_log_probs, d_entropies) = batch();
        for engine in [&mut cpu as &mut dyn Engine, &mut cuda] {
            engine.forward(&batch, Pass::Train).unwrap();
            engine.backward(&d_log_probs, &d_entropies).unwrap();
        }
        let (a, b) = (cpu.apply(&step).unwrap(), cuda.apply(&step).unwrap());
        assert!((a - b).abs() < 1e-3 * a, "norms {a} and {b}");
    }
    for (a, b) in cpu.parameters().unwrap().iter().zip(&cuda.parameters().unwrap()) {
        assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
        let error = a.data.iter().zip(&b.data).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
        let size = a.data.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let allowed = if moments == Moments::F32 { 2e-3 } else { 1e-2 };
        assert!(error < allowed * size, "{moments:?} {}: {error} of {size}", a.name);
    }
}
