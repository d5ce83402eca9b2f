//! From problems to token ids and from completions to text: a model's tokenizer with a data set's prompt template.

use std::path::Path;

use super::chat::Message;
use super::template::Template;
use super::text::Text;
use super::{DataSpec, Problem};
use crate::{Error, Result};

/// Puts the problems of one data set to one model.
#[derive(Debug)]
pub struct Prompter {
    text: Text,
    template: Template,
}

impl Prompter {
    /// The tokenizer and chat template of a model folder with the prompt template of `spec`. `template_text` is the text
    /// of the file that `spec.template` names; `spec.template_text` where it is not given.
    pub fn open(model_dir: &Path, spec: &DataSpec, template_text: Option<&str>) -> Result<Self> {
        Ok(Self { template: Template::open(spec, template_text)?, text: Text::open(model_dir)? })
    }

    /// The rendered prompt, up to where the model speaks.
    pub fn render(&self, problem: &Problem) -> Result<String> {
        let put = self.template.put(problem)?;
        let mut messages = Vec::with_capacity(2);
        messages.extend(put.system.map(|system| Message::new("system", system)));
        messages.push(Message::new("user", put.user));
        self.text.render(&messages).map_err(|e: Error| e.within(format!("problem {:?}", problem.id)))
    }

    /// Its token ids, with exactly one BOS where the model has one.
    pub fn ids(&self, problem: &Problem) -> Result<Vec<u32>> {
        self.text.encode_prompt(&self.render(problem)?)
    }

    /// Ids of a completion's text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.text.encode(text)
    }

    /// The text of a completion's ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.text.decode(ids)
    }

    /// A completion that gives the gold answer in the form that the prompt asks for.
    pub fn ideal(&self, problem: &Problem) -> String {
        self.template.ideal(problem)
    }

    /// Every id that ends a completion.
    pub fn eos(&self) -> &[u32] {
        self.text.eos()
    }

    pub fn text(&self) -> &Text {
        &self.text
    }

    pub fn template(&self) -> &Template {
        &self.template
    }
}
