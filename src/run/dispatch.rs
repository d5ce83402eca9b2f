//! From a kind and its resolved configuration to the stage that does it.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::stages::{self, Context, Kind, Output};
use crate::{Error, Result};

/// Whoever carries out stages: qerl's own, or a test's.
pub trait Stages: Sync {
    fn run(&self, kind: Kind, config: &Value, context: &Context<'_>) -> Result<Output>;
}

/// The stages of this crate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builtin;

impl Stages for Builtin {
    fn run(&self, kind: Kind, config: &Value, context: &Context<'_>) -> Result<Output> {
        // One arm per kind: `Kind::X => stages::x::run(context, &decode(kind, config)?)`.
        match kind {
            Kind::Download => stages::download::run(context, &decode(kind, config)?),
            Kind::Split | Kind::Quantize | Kind::Lora | Kind::Sft | Kind::Train | Kind::Eval | Kind::Report => {
                let _ = (config, context);
                Err(Error::failed(format!("this build of qerl has no `{}` stage", kind.name())))
            }
        }
    }
}

/// The typed configuration of a stage.
pub fn decode<T: DeserializeOwned>(kind: Kind, config: &Value) -> Result<T> {
    serde_json::from_value(config.clone()).map_err(|e| {
        Error::usage(format!("the configuration of a `{}` stage is wrong", kind.name()))
            .hint("`qerl validate FILE` shows where in the pipeline file")
            .caused_by(e)
    })
}
