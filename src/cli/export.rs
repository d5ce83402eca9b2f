//! `qerl export`: a policy for other tools.

use std::path::{Path, PathBuf};

use super::bar::Bar;
use super::model_arg::{ModelArg, absolute};
use super::out::write as out;
use crate::control::Cancel;
use crate::model::{Adapter, ModelConfig, copy_companions, merge, with_norms};
use crate::stages::PolicyFiles;
use crate::{Error, Result, run};

/// Write a trained policy as other tools load it
///
/// bf16: one plain model, the adapter merged into the dequantized weights. peft: the adapter alone, for transformers and
/// peft. vllm: a plain LoRA in `adapter/`; vLLM takes no trained norms beside one, so where there are any, `base/` is the
/// base model (as it is quantized) with these norms in it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[arg(long, value_name = "FORM")]
    to: Form,
    /// The folder to write; it must not exist, or be empty
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Form {
    Bf16,
    Peft,
    Vllm,
}

pub fn run(args: &Args) -> Result<()> {
    let files = args.model.files()?;
    let config = ModelConfig::read(&files.model)?;
    let adapter = files.adapter.as_deref().map(|dir| Adapter::read(dir, &config)).transpose()?;
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
    let folder = create(&work.path().join("export"))?;
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
