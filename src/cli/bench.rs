//! `qerl bench`: speed and memory of this machine's GPU on random weights.

mod load;
mod shape;

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::out::write as out;
use crate::control::Cancel;
use crate::engine::cuda::{CudaEngine, Options, device};
use crate::engine::{AdamW, Batch, Engine, Moments, Pass, Request, Row, Sampling, Trainable};
use crate::error::Kind;
use crate::model::{ModelConfig, Projection};
use crate::quant::Format;
use crate::rl::random::key;
use crate::{Error, Result, run};

/// Measure the GPU on random weights of a public model's shape; prints JSON
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Generation: tokens a second, milliseconds a step, time to the first token, peak memory
    Rollout(Rollout),
    /// A training step: forward, backward and AdamW
    Train(Train),
}

#[derive(Debug, clap::Args)]
struct Weights {
    /// qwen2.5-0.5b, -1.5b, -3b, -7b, -14b or -32b
    #[arg(long, default_value = "qwen2.5-7b")]
    shape: String,
    /// What the base weights are stored in
    #[arg(long, value_enum, default_value_t = Base::Nvfp4)]
    format: Base,
    /// Rank of the adapter on all seven projections; 0 is none
    #[arg(long, default_value_t = 16)]
    rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Base {
    Nvfp4,
    Mxfp4,
    Nf4,
    Bf16,
}

#[derive(Debug, clap::Args)]
struct Rollout {
    #[command(flatten)]
    weights: Weights,
    /// Sequences side by side, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,64,128")]
    batch: Vec<usize>,
    /// Tokens of a prompt; every sequence has its own
    #[arg(long, default_value_t = 256)]
    prompt: usize,
    /// Tokens that each sequence gets
    #[arg(long, default_value_t = 512)]
    new: usize,
    /// Instead of batches: `rl32x8`, the lengths of a training step's 32 x 8 completions
    #[arg(long, value_name = "LOAD")]
    load: Option<String>,
    /// Counted runs; the best is reported
    #[arg(long, default_value_t = 2)]
    runs: usize,
}

#[derive(Debug, clap::Args)]
struct Train {
    #[command(flatten)]
    weights: Weights,
    #[arg(long, default_value_t = 8)]
    rows: usize,
    /// Tokens of a row
    #[arg(long, default_value_t = 1024)]
    seq: usize,
    /// Counted steps; the best is reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Most bytes for activations that could be computed again, in MiB; by default a share of the free memory
    #[arg(long, value_name = "MIB")]
    keep: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    let ordinal = device::chosen()?.resolve()?.ok_or_else(|| {
        Error::new(Kind::Device, "there is no GPU to measure").hint("`qerl doctor` says what is missing")
    })?;
    let report = match &args.what {
        What::Rollout(args) => rollout(args, ordinal)?,
        What::Train(args) => train(args, ordinal)?,
    };
    let text = serde_json::to_string_pretty(&report).map_err(|e| Error::failed("cannot write JSON").caused_by(e))?;
    out(&format!("{text}\n"))
}

impl Weights {
    fn engine(&self, trainable: Trainable, ordinal: usize, options: Options) -> Result<(ModelConfig, CudaEngine)> {
        let config = shape::shape(&self.shape)?;
        let format = match self.format {
            Base::Nvfp4 => Format::Nvfp4,
            Base::Mxfp4 => Format::Mxfp4,
            Base::Nf4 => Format::Nf4,
            Base::Bf16 => Format::Bf16,
        };
        let engine = CudaEngine::random(&config, format, self.rank, trainable, ordinal, options)?;
        Ok((config, engine))
    }

    /// Bytes that a decode step reads of the weights: every projection and the head, once.
    fn step_bytes(&self, config: &ModelConfig) -> f64 {
        let per_weight = match self.format {
            Base::Nvfp4 => 0.5 + 1.0 / 16.0,
            Base::Mxfp4 => 0.5 + 1.0 / 32.0,
            Base::Nf4 => 0.5 + 4.0 / 64.0,
            Base::Bf16 => 2.0,
        };
        let layer: usize = Projection::ALL.iter().map(|p| p.shape(config).iter().product::<usize>()).sum();
        let lora: usize = Projection::ALL.iter().map(|p| p.shape(config).iter().sum::<usize>() * self.rank).sum();
        let head = 2.0 * (config.vocab_size * config.hidden_size) as f64;
        config.num_layers as f64 * (per_weight * layer as f64 + 2.0 * lora as f64) + head
    }
}

/// Bytes of keys and values that a position takes, in bf16.
fn position_bytes(config: &ModelConfig) -> f64 {
    (config.num_layers * config.num_kv_heads * config.head_dim * 4) as f64
}

fn ids(purpose: &str, row: usize, count: usize, vocab: usize) -> Vec<u32> {
    (0..count as u64).map(|i| (key(1, purpose, row as u64, i) % vocab as u64) as u32).collect()
}

fn rollout(args: &Rollout, ordinal: usize) -> Result<Value> {
    let cancel = Cancel::new();
    run::stop_on_interrupt(&cancel, || {})?;
    let clock = Instant::now();
    let (config, mut engine) = args.weights.engine(Trainable::None, ordinal, Options::from_env())?;
    let loaded = clock.elapsed().as_secs_f64();
    let sampling = Sampling::default();
    let mut results = Vec::new();
    let mut first_token = None;
    let mut loads: Vec<(Value, Vec<Request>)> = Vec::new();
    match args.load.as_deref() {
        Some("rl32x8") => {
            let mut requests = Vec::new();
            for (i, &max_new_tokens) in load::RL32X8.iter().enumerate() {
                if i % load::RL32X8_GROUP == 0 {
                    let prompt: Arc<[u32]> = ids("group", i, load::RL32X8_PROMPT, config.vocab_size).into();
                    requests.push(Request { prompt, max_new_tokens, sampling, seed: i as u64 });
                } else {
                    let prompt = Arc::clone(&requests[i - 1].prompt);
                    requests.push(Request { prompt, max_new_tokens, sampling, seed: i as u64 });
                }
            }
            loads.push((json!({"load": "rl32x8"}), requests));
        }
        Some(other) => {
            return Err(Error::usage(format!("`{other}` is no known load")).hint("rl32x8 is the one there is"));
        }
        None => {
            for &batch in &args.batch {
                let request = |i: usize| Request {
                    prompt: ids("prompt", i, args.prompt, config.vocab_size).into(),
                    max_new_tokens: args.new,
                    sampling,
                    seed: i as u64,
                };
                let about = json!({"batch": batch, "prompt": args.prompt, "new": args.new});
                loads.push((about, (0..batch).map(request).collect()));
            }
        }
    }
    for (about, requests) in loads {
        let outcome = measure(args, &config, &mut engine, &requests, &cancel, &clock, &mut first_token);
        let mut entry = about;
        match outcome {
            Ok(Value::Object(figures)) => {
                if let Value::Object(entry) = &mut entry {
                    entry.extend(figures);
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Device => entry["error"] = json!(error.to_string()),
            Err(error) => return Err(error),
        }
        results.push(entry);
    }
    Ok(json!({
        "bench": "rollout", "device": engine.device_name()?, "shape": args.weights.shape,
        "format": format!("{:?}", args.weights.format).to_lowercase(), "rank": args.weights.rank,
        "seconds_to_load": loaded, "seconds_to_first_token": first_token, "results": results,
    }))
}

/// One load, the best of the counted runs.
fn measure(
    args: &Rollout,
    config: &ModelConfig,
    engine: &mut CudaEngine,
    requests: &[Request],
    cancel: &Cancel,
    start: &Instant,
    first_token: &mut Option<f64>,
) -> Result<Value> {
    let mut best: Option<(f64, f64, usize, f64)> = None;
    engine.take_peak();
    for _ in 0..args.runs.max(1) {
        let clock = Instant::now();
        let (mut first, mut steps) = (None, 0usize);
        let done = engine.generate(requests, &[], cancel, &mut |_, new| {
            if new > 0 {
                first.get_or_insert_with(|| clock.elapsed().as_secs_f64());
                first_token.get_or_insert_with(|| start.elapsed().as_secs_f64());
                steps += 1;
            }
        })?;
        let seconds = clock.elapsed().as_secs_f64();
        let tokens: usize = done.iter().map(|c| c.tokens.len()).sum();
        let asked: usize = requests.iter().map(|r| r.max_new_tokens).sum();
        if tokens != asked {
            return Err(Error::failed(format!("{tokens} of {asked} tokens were generated")));
        }
        if best.is_none_or(|(least, ..)| seconds < least) {
            best = Some((seconds, first.unwrap_or(0.0), steps, tokens as f64));
        }
    }
    let Some((seconds, first, steps, tokens)) = best else { return Ok(Value::Null) };
    let decode = (seconds - first).max(1e-9);
    // A sequence of n tokens reads its prompt and what it has, n times.
    let positions: f64 = requests
        .iter()
        .map(|r| r.max_new_tokens as f64 * (r.prompt.len() as f64 + r.max_new_tokens as f64 / 2.0))
        .sum();
    let bytes = args.weights.step_bytes(config) * steps as f64 + positions * position_bytes(config);
    Ok(json!({
        "seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds,
        "decode_tokens_per_second": (tokens - requests.len() as f64) / decode,
        "ms_per_step": 1e3 * decode / steps.max(1) as f64, "steps": steps, "ms_to_first_token": 1e3 * first,
        "needed_gb_per_second": bytes / decode / 1e9, "peak_bytes": engine.take_peak(),
    }))
}

fn train(args: &Train, ordinal: usize) -> Result<Value> {
    let options = Options { activations: args.keep.map(|mib| mib << 20), ..Options::from_env() };
    let trainable = Trainable::Adapter { norms: false };
    let (config, mut engine) = args.weights.engine(trainable, ordinal, options)?;
    let row = |i: usize| -> Row {
        let mut all = ids("row", i, args.seq.max(2), config.vocab_size);
        Row { completion: all.split_off(1), prompt: all.into() }
    };
    let rows: Vec<Row> = (0..args.rows).map(row).collect();
    let tokens: usize = rows.iter().map(|r| r.completion.len() + 1).sum();
    let slopes: Vec<Vec<f32>> = rows.iter().map(|r| vec![-1.0 / tokens as f32; r.completion.len()]).collect();
    let batch = Batch { rows, temperature: 1.0 };
    let moments = Moments::F32;
    let step = AdamW { lr: 1e-5, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, max_grad_norm: 1.0, moments };
    let mut best: Option<[f64; 4]> = None;
    let mut norm = 0.0;
    engine.take_peak();
    for _ in 0..=args.runs.max(1) {
        let clock = Instant::now();
        engine.forward(&batch, Pass::Train)?;
        let forward = clock.elapsed().as_secs_f64();
        engine.backward(&slopes, &[])?;
        let backward = clock.elapsed().as_secs_f64() - forward;
        norm = engine.apply(&step)?;
        let whole = clock.elapsed().as_secs_f64();
        if best.is_none_or(|[least, ..]| whole < least) {
            best = Some([whole, forward, backward, whole - forward - backward]);
        }
    }
    // Marks cost a little: a step of its own.
    engine.start_phases()?;
    engine.forward(&batch, Pass::Train)?;
    engine.backward(&slopes, &[])?;
    engine.apply(&step)?;
    let phases: serde_json::Map<String, Value> =
        engine.end_phases()?.into_iter().map(|(name, ms)| (name.to_owned(), json!(ms))).collect();
    let [whole, forward, backward, apply] = best.unwrap_or_default();
    Ok(json!({
        "bench": "train", "device": engine.device_name()?, "shape": args.weights.shape,
        "format": format!("{:?}", args.weights.format).to_lowercase(), "rank": args.weights.rank, "rows": args.rows,
        "seq": args.seq, "seconds": whole, "forward_seconds": forward, "backward_seconds": backward,
        "apply_seconds": apply, "tokens_per_second": tokens as f64 / whole, "gradient_norm": norm, "phases_ms": phases,
        "peak_bytes": engine.take_peak(),
    }))
}
