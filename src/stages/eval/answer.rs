//! Completions of an evaluation, by an engine.

use std::sync::Arc;

use crate::Result;
use crate::control::Cancel;
use crate::engine::{Engine, Request, Sampling};
use crate::eval::Generated;
use crate::eval::session::{Answerer, Ask};
use crate::rl::language::Language;
use crate::rl::select::completion_length;

/// One policy on one data set.
pub struct Speaker<'a> {
    pub engine: &'a mut dyn Engine,
    pub language: &'a dyn Language,
    /// Rendered prompts of the set, by row.
    pub prompts: &'a [Arc<[u32]>],
    /// Every id that ends a completion.
    pub eos: &'a [u32],
    pub sampling: Sampling,
    pub max_new_tokens: usize,
}

impl Answerer for Speaker<'_> {
    fn answer(&mut self, asks: &[Ask<'_>], cancel: &Cancel, finished: &mut dyn FnMut(usize)) -> Result<Vec<Generated>> {
        let room = self.engine.config().max_position;
        // A prompt that fills the context leaves no room for an answer: a truncated completion without a token.
        let fits = |ask: &Ask<'_>| self.prompts[ask.row].len() < room;
        let requests: Vec<Request> = asks
            .iter()
            .filter(|ask| fits(ask))
            .map(|ask| Request {
                prompt: Arc::clone(&self.prompts[ask.row]),
                max_new_tokens: self.max_new_tokens,
                sampling: self.sampling,
                seed: ask.seed,
            })
            .collect();
        let mut shown = 0;
        let completions = self.engine.generate(&requests, self.eos, cancel, &mut |count, _| {
            if count > shown {
                shown = count;
                finished(count);
            }
        })?;
        // An engine that was stopped may give what it has so far.
        cancel.check()?;
        let mut completions = completions.into_iter();
        let mut out = Vec::with_capacity(asks.len());
        for ask in asks {
            if !fits(ask) {
                out.push(Generated { text: String::new(), tokens: 0, truncated: true });
                continue;
            }
            // Too few are noticed by the caller, who counts.
            let Some(completion) = completions.next() else { break };
            let (length, truncated) = completion_length(&completion.tokens, self.eos);
            let spoken = &completion.tokens[..length - usize::from(!truncated)];
            out.push(Generated { text: self.language.decode(spoken)?, tokens: length, truncated });
        }
        Ok(out)
    }
}
