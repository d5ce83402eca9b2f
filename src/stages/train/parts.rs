//! What training stages are put together from: an engine for a policy, a language for a model and data set.

use std::path::Path;

use crate::Result;
use crate::data::DataSpec;
use crate::data::prompt::Prompter;
use crate::engine::{Engine, Load, Trainable, load};
use crate::rl::language::Language;
use crate::stages::inputs::PolicyFiles;

/// Makes the parts; the stage itself decides which it needs.
pub trait Parts {
    /// Loads a policy with `threads` CPU threads.
    fn engine(&self, policy: &PolicyFiles, trainable: Trainable, threads: usize) -> Result<Box<dyn Engine>>;

    /// The tokenizer and chat template of a model folder with a data set's prompt template.
    fn language(&self, model: &Path, spec: &DataSpec) -> Result<Box<dyn Language>>;
}

/// The parts of this crate: its engine for the device of this process, the model's own tokenizer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builtin;

impl Parts for Builtin {
    fn engine(&self, policy: &PolicyFiles, trainable: Trainable, threads: usize) -> Result<Box<dyn Engine>> {
        load(&Load { model: &policy.model, adapter: policy.adapter.as_deref(), trainable, threads })
    }

    fn language(&self, model: &Path, spec: &DataSpec) -> Result<Box<dyn Language>> {
        Ok(Box::new(Prompter::open(model, spec, None)?))
    }
}
