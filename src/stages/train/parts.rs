//! What training stages are put together from: an engine for a policy, a language for a model and data set.

use std::path::Path;

use crate::Result;
use crate::data::DataSpec;
use crate::engine::{Engine, Trainable};
use crate::rl::language::Language;
use crate::stages::inputs::PolicyFiles;

/// Makers of the parts; the stage itself decides which it needs.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// Loads a policy with `threads` CPU threads.
    pub engine: &'a dyn Fn(&PolicyFiles, Trainable, usize) -> Result<Box<dyn Engine>>,
    /// The tokenizer and chat template of a model folder with a data set's prompt template.
    pub language: &'a dyn Fn(&Path, &DataSpec) -> Result<Box<dyn Language>>,
}
