//! `qerl export`: a policy for other tools.

use std::path::{Path, PathBuf};

use super::bar::Bar;
use super::model_arg::{ModelArg, absolute};
use super::out::write as out;
use crate::control::Cancel;
use crate::engine::{Batch, Load, Pass, Request, Row, Sampling, Trainable, load};
use crate::model::gguf::{self, Storage};
use crate::model::{Adapter, ModelConfig, compress, copy_companions, eos_ids, merge, with_norms};
use crate::quant::Format;
use crate::stages::PolicyFiles;
use crate::{Error, Result, run};

/// Write a trained policy as other tools load it
///
/// bf16: one plain model, the adapter merged into the dequantized weights. peft: the adapter alone, for transformers and
/// peft. vllm: a plain LoRA in `adapter/`; vLLM takes no trained norms beside one, so where there are any, `base/` is the
/// base model (as it is quantized) with these norms in it. nvfp4: the merged model quantized again, which loses some of
/// what was trained; how much is printed. gguf: one file for llama.cpp and Ollama, tokenizer and chat template inside.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[arg(long, value_name = "FORM")]
    to: Form,
    /// The folder to write, for gguf the file; it must not exist, or be an empty folder
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// How gguf stores matrices
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    gguf_type: Matrices,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Matrices {
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Form {
    Bf16,
    Peft,
    Vllm,
    Nvfp4,
    Gguf,
}

pub fn run(args: &Args) -> Result<()> {
    if args.gguf_type != Matrices::Bf16 && args.to != Form::Gguf {
        return Err(Error::usage("--gguf-type goes with --to gguf"));
    }
    let files = args.model.files()?;
    let config = ModelConfig::read(&files.model)?;
    let adapter = files.adapter.as_deref().map(|dir| Adapter::read(dir, &config)).transpose()?;
    if args.out.is_file() || (args.out.is_dir() && args.to == Form::Gguf) {
        return Err(Error::usage(format!("{} exists", args.out.display())).hint("name a new file or folder"));
    }
    if std::fs::read_dir(&args.out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::usage(format!("{} is not empty", args.out.display())).hint("name a new folder"));
    }
    // Written beside and renamed: an interrupted run leaves no half model under the name asked for.
    let parent = match args.out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
    let work = tempfile::Builder::new().prefix(".qerl-export-").tempdir_in(parent);
    let work = work.map_err(|e| Error::io("write into", parent, e))?;
    let folder = work.path().join("export");
    if args.to != Form::Gguf {
        create(&folder)?;
    }
    let cancel = Cancel::new();
    run::stop_on_interrupt(&cancel, || eprintln!("\nstopping"))?;
    match args.to {
        Form::Bf16 => {
            merge(&files.model, adapter.as_ref(), &folder, &Bar::new(), &cancel)?;
        }
        Form::Peft => {
            based(adapter, &files)?.write(&folder)?;
            copy_companions(&files.model, &folder)?;
        }
        Form::Nvfp4 => {
            let merged = create(&work.path().join("merged"))?;
            merge(&files.model, adapter.as_ref(), &merged, &Bar::new(), &cancel)?;
            compress(&merged, &folder, Format::Nvfp4, true, &Bar::new(), &cancel)?;
            eprintln!("merging into 4 bits is lossy: the adapter's part of a weight may be less than a rounding step");
            eprintln!("{}", loss(&files, &folder, &config, &cancel)?);
        }
        Form::Gguf => {
            let merged = create(&work.path().join("merged"))?;
            merge(&files.model, adapter.as_ref(), &merged, &Bar::new(), &cancel)?;
            let storage = match args.gguf_type {
                Matrices::Bf16 => Storage::Bf16,
                Matrices::Q8_0 => Storage::Q8_0,
            };
            gguf::export(&merged, &folder, storage, &Bar::new(), &cancel)?;
        }
        Form::Vllm => {
            let mut adapter = based(adapter, &files)?;
            if adapter.norms {
                let base = create(&folder.join("base"))?;
                with_norms(&files.model, &adapter, &base, &Bar::new(), &cancel)?;
                adapter = adapter.without_norms();
                adapter.base = Some(absolute(&args.out)?.join("base").display().to_string());
                eprintln!("the trained norms are in base/: serve that model, not the original one, with adapter/");
            }
            adapter.write(&create(&folder.join("adapter"))?)?;
        }
    }
    if args.out.exists() {
        std::fs::remove_dir(&args.out).map_err(|e| Error::io("replace", &args.out, e))?;
    }
    std::fs::rename(&folder, &args.out).map_err(|e| Error::io("write", &args.out, e))?;
    out(&format!("{}\n", args.out.display()))
}

fn create(dir: &Path) -> Result<PathBuf> {
    std::fs::create_dir(dir).map_err(|e| Error::io("create", dir, e))?;
    Ok(dir.to_owned())
}

/// The adapter with its base named, which peft looks up.
fn based(adapter: Option<Adapter>, files: &PolicyFiles) -> Result<Adapter> {
    let mut adapter = adapter.ok_or_else(|| {
        Error::usage("this model has no adapter")
            .hint("write it with --to bf16, or name a stage that trains an adapter")
    })?;
    if adapter.base.is_none() {
        adapter.base = Some(files.model.display().to_string());
    }
    Ok(adapter)
}

/// Sequences that the policy draws to be compared on, and tokens of each at most.
const DRAWS: u64 = 16;
const DRAWN: usize = 64;

/// How far the model in `written` is from the policy in `files`, on text that the policy itself draws at temperature 1:
/// KL(policy || written) per token as the mean of r - 1 - ln r, r the ratio of probabilities (Schulman 2020, k3: unbiased
/// and never below 0), and the mean NLL under both.
fn loss(files: &PolicyFiles, written: &Path, config: &ModelConfig, cancel: &Cancel) -> Result<String> {
    let open =
        |model: &Path, adapter: Option<&Path>| load(&Load { model, adapter, trainable: Trainable::None, threads: 0 });
    let eos = eos_ids(&files.model)?;
    let first = eos.first().copied().filter(|id| (*id as usize) < config.vocab_size).unwrap_or(0);
    let prompt: std::sync::Arc<[u32]> = vec![first].into();
    let max_new_tokens = DRAWN.min(config.max_position.saturating_sub(1));
    let draw = |seed| Request { prompt: prompt.clone(), max_new_tokens, sampling: Sampling::default(), seed };
    let requests: Vec<Request> = (0..DRAWS).map(draw).collect();
    let mut policy = open(&files.model, files.adapter.as_deref())?;
    let drawn = policy.generate(&requests, &eos, cancel, &mut |_, _| {})?;
    let rows = drawn.into_iter().filter(|drawn| !drawn.tokens.is_empty());
    let rows: Vec<Row> = rows.map(|drawn| Row { prompt: prompt.clone(), completion: drawn.tokens }).collect();
    let batch = Batch { rows, temperature: 1.0 };
    let before: Vec<f32> = policy.forward(&batch, Pass::Score)?.log_probs.concat();
    drop(policy);
    let after: Vec<f32> = open(written, None)?.forward(&batch, Pass::Score)?.log_probs.concat();
    let count = before.len().max(1) as f64;
    let mean = |value: &dyn Fn(f64, f64) -> f64| {
        before.iter().zip(&after).map(|(p, q)| value(f64::from(*p), f64::from(*q))).sum::<f64>() / count
    };
    let kl = mean(&|p, q| (q - p).exp() - 1.0 - (q - p));
    let (policy, written) = (mean(&|p, _| -p), mean(&|_, q| -q));
    Ok(format!(
        "on {} tokens that the policy drew: KL {kl:.4} nats per token; NLL {policy:.4} of the policy, {written:.4} of this model",
        before.len()
    ))
}
