//! Decode and LoRA training tokens/s of the CPU engine on a model that is quantized to NVFP4 first.
//!
//! `cargo bench --bench cpu -- MODEL_DIR [--json]`. The peers on the same machine: `benches/peers.py`, same work.
//! Best of two counted runs after a warm-up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use qerl::control::{Cancel, Quiet};
use qerl::engine::{AdamW, Batch, Engine, Load, Moments, Pass, Request, Row, Sampling, Trainable, load};
use qerl::model::{Adapter, Checkpoint, Projection, compress};
use qerl::quant::Format;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PROMPT: usize = 64;
const NEW: usize = 64;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let json = arguments.iter().any(|a| a == "--json");
    let Some(model) = arguments.iter().find(|a| !a.starts_with("--")).map(PathBuf::from) else {
        eprintln!("skipped: name a model folder (cargo bench --bench cpu -- MODEL_DIR)");
        return Ok(());
    };
    let made = tempfile::tempdir()?;
    let (quantized, adapter) = (made.path().join("nvfp4"), made.path().join("adapter"));
    std::fs::create_dir(&quantized)?;
    std::fs::create_dir(&adapter)?;
    compress(&model, &quantized, Format::Nvfp4, true, &Quiet, &Cancel::default())?;
    Adapter::init(&Checkpoint::open(&quantized)?, 16, 16.0, &Projection::ALL, false, 1)?.write(&adapter)?;
    let print = |work: &str, batch: usize, rate: f64, more: String| {
        if json {
            println!(r#"{{"engine": "qerl nvfp4", "work": "{work}", "batch": {batch}, "tok_s": {rate:.1}}}"#);
        } else {
            println!("{work:<28} batch {batch:>3}  {rate:>8.1} tok/s  {more}");
        }
    };
    for (label, with) in [("decode", None), ("decode, LoRA r16", Some(adapter.as_path()))] {
        let mut engine = load(&Load { model: &quantized, adapter: with, trainable: Trainable::None, threads: 0 })?;
        for batch in [1, 8, 32] {
            let seconds = best(&mut || decode(engine.as_mut(), batch))?;
            let weights = format!("weights {:.0} MB", engine.memory().weights as f64 / 1e6);
            print(label, batch, (batch * NEW) as f64 / seconds, weights);
        }
    }
    let trainable = Trainable::Adapter { norms: false };
    let mut engine = load(&Load { model: &quantized, adapter: Some(&adapter), trainable, threads: 0 })?;
    let seconds = best(&mut || train(engine.as_mut()))?;
    print("LoRA forward+backward", 8, 1024.0 / seconds, format!("peak {:.2} GiB of this process", peak_gib()));
    Ok(())
}

fn best(work: &mut dyn FnMut() -> Outcome) -> Result<f64, Box<dyn std::error::Error>> {
    work()?;
    let mut least = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        work()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Token ids that look like text's: spread over the vocabulary, different for each row.
fn ids(row: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| 100 + ((row * 7919 + i * 104_729) % 39_000) as u32).collect()
}

fn decode(engine: &mut dyn Engine, batch: usize) -> Outcome {
    let request = |row: usize| Request {
        prompt: Arc::from(ids(row, PROMPT)),
        max_new_tokens: NEW,
        sampling: Sampling::default(),
        seed: row as u64,
    };
    let requests: Vec<Request> = (0..batch).map(request).collect();
    engine.generate(&requests, &[], &Cancel::default(), &mut |_, _| {})?;
    Ok(())
}

fn train(engine: &mut dyn Engine) -> Outcome {
    let row = |row: usize| {
        let ids = ids(row, 128);
        Row { prompt: Arc::from(&ids[..1]), completion: ids[1..].to_vec() }
    };
    let batch = Batch { rows: (0..8).map(row).collect(), temperature: 1.0 };
    let scores = engine.forward(&batch, Pass::Train)?;
    let slopes: Vec<Vec<f32>> = scores.log_probs.iter().map(|row| vec![-1.0 / 1016.0; row.len()]).collect();
    engine.backward(&slopes, &[])?;
    engine.apply(&AdamW {
        lr: 1e-5,
        betas: (0.9, 0.99),
        eps: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        moments: Moments::F32,
    })?;
    Ok(())
}

/// The largest resident set of this process so far.
fn peak_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(0.0) / f64::from(1 << 20)
}
