//! `quantize`: projections of a model to a 4-bit format, layer by layer.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Context, Output, StageRef};
use crate::model::{Checkpoint, Layout, compress};
use crate::quant::Format;
use crate::store::{Handle, Location};
use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub model: StageRef,
    pub format: Format,
    /// q, k, v and gate, up share a global scale, as fused kernels elsewhere assume (NVFP4 only).
    #[serde(default = "yes")]
    pub fuse: bool,
}

fn yes() -> bool {
    true
}

/// Writes the quantized model, or points at the source where the format is `bf16`.
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    let slot = &config.model.0;
    let policy = context.policy(slot)?;
    if policy.adapter.is_some() {
        return Err(
            Error::usage("quantize takes a model, not an adapter").hint("name the stage that gives the base model")
        );
    }
    if config.format == Format::Bf16 {
        return reference(context, slot, &policy.model);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(context.threads).build();
    let pool = pool.map_err(|e| Error::failed("cannot start threads").caused_by(e))?;
    let (progress, cancel) = (context.progress, context.cancel);
    let done =
        pool.install(|| compress(&policy.model, &context.output, config.format, config.fuse, progress, cancel))?;
    Ok(Output {
        summary: summary(config.format, done.bytes_before, done.bytes_after, done.errors.relative_frobenius),
        declared: done.files,
        handle: Handle::Model { at: Location::Own { path: ".".to_owned() } },
    })
}

fn reference(context: &Context<'_>, slot: &str, model: &Path) -> Result<Output> {
    let checkpoint = Checkpoint::open(model)?;
    if checkpoint.layout() != Layout::Dense {
        let have = checkpoint.layout().format().name();
        return Err(Error::input(format!(
            "{} is quantized already ({have}), so it cannot serve as bf16",
            model.display()
        )));
    }
    let bytes = checkpoint.tensors().bytes();
    Ok(Output {
        declared: Vec::new(),
        handle: Handle::Model { at: context.model_location(slot)? },
        summary: summary(Format::Bf16, bytes, bytes, 0.0),
    })
}

/// The figures of a quantization.
pub fn summary(format: Format, before: u64, after: u64, error: f64) -> serde_json::Value {
    serde_json::json!({
        "format": format.name(),
        "bytes_before": before,
        "bytes_after": after,
        "ratio": if after > 0 { before as f64 / after as f64 } else { 1.0 },
        "relative_frobenius": error,
    })
}
