//! `qerl quantize`: one model folder to a 4-bit format.

use std::path::{Path, PathBuf};

use super::bar::Bar;
use super::model_arg::plain_model;
use crate::control::Cancel;
use crate::model::{compress, gguf};
use crate::quant::Format;
use crate::stages::quantize::summary;
use crate::{Error, Result};

/// Quantize a model's projections to a 4-bit format
///
/// Reads a folder in Hugging Face's layout (config.json, safetensors) or a GGUF file and writes a folder: nvfp4 and mxfp4 as
/// llm-compressor does, nf4 as bitsandbytes does. Embeddings, norms and the head stay as they are.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model's folder, a GGUF file, `bundled`, or the ADDRESS of a pipeline's stage
    model: String,
    #[arg(long)]
    format: Name,
    /// The folder to write; it must not exist, or be empty
    #[arg(short, long)]
    out: PathBuf,
    /// Give q, k, v and gate, up global scales of their own (nvfp4); engines that fuse them need shared ones
    #[arg(long)]
    no_fuse: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Name {
    Nvfp4,
    Mxfp4,
    Nf4,
}

pub fn run(args: &Args) -> Result<()> {
    let format = match args.format {
        Name::Nvfp4 => Format::Nvfp4,
        Name::Mxfp4 => Format::Mxfp4,
        Name::Nf4 => Format::Nf4,
    };
    let file = Path::new(&args.model);
    let is_gguf = file.is_file() && gguf::is_gguf(file);
    if file.is_file() && !is_gguf {
        return Err(Error::missing(format!("{} is neither a folder nor a GGUF file", args.model))
            .hint("name a folder with config.json and model.safetensors"));
    }
    let model = if is_gguf { file.to_owned() } else { plain_model(&args.model)? };
    if std::fs::read_dir(&args.out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::usage(format!("{} is not empty", args.out.display())).hint("name a new folder"));
    }
    // Written beside and renamed: an interrupted run leaves no half model under the name asked for.
    let parent = match args.out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
    let work = tempfile::Builder::new().prefix(".qerl-quantize-").tempdir_in(parent);
    let work = work.map_err(|e| Error::io("write into", parent, e))?;
    let out = work.path().join("model");
    std::fs::create_dir(&out).map_err(|e| Error::io("create", &out, e))?;
    let cancel = Cancel::new();
    let on_signal = cancel.clone();
    ctrlc::set_handler(move || on_signal.cancel()).map_err(|e| Error::failed("cannot catch Ctrl-C").caused_by(e))?;
    let imported = work.path().join("imported");
    let source = if is_gguf {
        std::fs::create_dir(&imported).map_err(|e| Error::io("create", &imported, e))?;
        gguf::import(&model, &imported, &Bar::new(), &cancel)?;
        &imported
    } else {
        &model
    };
    let done = compress(source, &out, format, !args.no_fuse, &Bar::new(), &cancel)?;
    if args.out.exists() {
        std::fs::remove_dir(&args.out).map_err(|e| Error::io("replace", &args.out, e))?;
    }
    std::fs::rename(&out, &args.out).map_err(|e| Error::io("write", &args.out, e))?;
    let error = done.errors.relative_frobenius;
    if args.json {
        println!("{}", summary(format, done.bytes_before, done.bytes_after, error));
    } else {
        let (before, after) = (done.bytes_before as f64 / 1e6, done.bytes_after as f64 / 1e6);
        println!("{}: {before:.1} MB -> {after:.1} MB, relative error {error:.4}", args.out.display());
    }
    Ok(())
}
