//! What training needs of a data set's language: prompts as token ids, completions as text.

use crate::Result;
use crate::data::Problem;
use crate::data::prompt::Prompter;

/// A tokenizer with a data set's prompt template.
pub trait Language {
    /// The rendered prompt's ids, up to where the model speaks (exactly one BOS where the model has one).
    fn prompt(&self, problem: &Problem) -> Result<Vec<u32>>;

    /// The rendered prompt as text.
    fn render(&self, problem: &Problem) -> Result<String>;

    /// Ids of a completion's text, without special tokens of the tokenizer's own.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The text of a completion's ids; special tokens are left out, tags are text.
    fn decode(&self, ids: &[u32]) -> Result<String>;

    /// A completion that gives the gold answer in the form that the prompt asks for: the reference solution where it
    /// is in that form, a bare answer else.
    fn ideal(&self, problem: &Problem) -> String;
}

impl Language for Prompter {
    fn prompt(&self, problem: &Problem) -> Result<Vec<u32>> {
        self.ids(problem)
    }

    fn render(&self, problem: &Problem) -> Result<String> {
        Prompter::render(self, problem)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Prompter::encode(self, text)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Prompter::decode(self, ids)
    }

    fn ideal(&self, problem: &Problem) -> String {
        Prompter::ideal(self, problem)
    }
}
