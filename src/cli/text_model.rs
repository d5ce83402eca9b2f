//! An engine with its tokenizer, for commands that talk to a model.

use std::sync::Arc;

use crate::Result;
use crate::data::chat::Message;
use crate::data::text::Text;
use crate::engine::{Engine, Load, Trainable, load};
use crate::stages::PolicyFiles;

pub(super) struct TextModel {
    pub engine: Box<dyn Engine>,
    pub text: Text,
}

impl TextModel {
    /// `threads`: 0 is all.
    pub fn open(files: &PolicyFiles, threads: usize) -> Result<Self> {
        // The tokenizer first: it is the quicker one to find missing.
        let text = Text::open(&files.model)?;
        let adapter = files.adapter.as_deref();
        let engine = load(&Load { model: &files.model, adapter, trainable: Trainable::None, threads })?;
        Ok(Self { engine, text })
    }

    /// Ids of a conversation, up to where the model speaks.
    pub fn ids(&self, messages: &[Message]) -> Result<Arc<[u32]>> {
        Ok(self.text.encode_prompt(&self.text.render(messages)?)?.into())
    }
}

/// `1 token`, `12 tokens`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `12.3 tokens/s`.
pub(super) fn speed(tokens: usize, seconds: f64) -> String {
    format!("{:.1} tokens/s", tokens as f64 / seconds.max(1e-9))
}
