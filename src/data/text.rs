//! A model's tokenizer with its chat template: text to token ids and back.

mod guard;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::chat::{self, Chat, Message};
use super::files::read_json;
use crate::model::eos_ids;
use crate::{Error, Result};

/// The four tags of the think/answer form, in order; text, even where a tokenizer holds them for special tokens.
pub const TAGS: [&str; 4] = ["<think>", "</think>", "<answer>", "</answer>"];

/// The special tokens that chat templates may name.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The tokenizer of a model folder.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    /// Left out when decoding.
    special: BTreeSet<u32>,
    /// The id that every prompt starts with, where the model has one.
    bos: Option<u32>,
    /// What counts as a doubled start: set where a start token is known, whether the model wants it or not.
    start: Option<u32>,
    eos: Vec<u32>,
    chat: Option<Chat>,
}

impl Text {
    /// Reads tokenizer.json, tokenizer_config.json and the chat template of a model folder (of a GGUF import too).
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        if !path.is_file() {
            return Err(Error::missing(format!("{} has no tokenizer.json", dir.display()))
                .hint("save it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"));
        }
        let damaged =
            || Error::input(format!("{} cannot be read", path.display())).hint("fetch or save the model again");
        // The library panics on some damaged files.
        let read = guard::quietly(|| Tokenizer::from_file(&path)).ok_or_else(damaged)?;
        let mut tokenizer = read.map_err(|e| damaged().caused_by(e))?;
        // Such settings are of the program that saved the file; a prompt is never cut or filled up.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|e| Error::input(format!("{} cannot be used", path.display())).caused_by(e))?;
        let config = optional(&dir.join("tokenizer_config.json"))?;
        let map = optional(&dir.join("special_tokens_map.json"))?;
        let tokens = named_tokens(&config, &map);
        let start = tokens.get("bos_token").and_then(Value::as_str).and_then(|t| tokenizer.token_to_id(t));
        let adds_bos = match config.get("add_bos_token") {
            Some(Value::Bool(adds)) => *adds,
            _ => first_id(&tokenizer, true)?.is_some_and(|id| Some(id) == start && first_id_is_added(&tokenizer, id)),
        };
        let special = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special && !TAGS.contains(&token.content.as_str()))
            .map(|(id, _)| id)
            .collect();
        let chat = chat::find(dir, &config)?.map(|source| Chat::new(&source, tokens)).transpose()?;
        Ok(Self { tokenizer, special, bos: start.filter(|_| adds_bos), start, eos: eos_ids(dir)?, chat })
    }

    /// Ids of a text; special tokens written in it are found, none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|e| Error::input("the tokenizer cannot encode a text").caused_by(e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of a whole prompt: like [`Text::encode`], with exactly one BOS in front where the model has one.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text)?;
        if let Some(start) = self.start {
            let doubled = ids.iter().take_while(|id| **id == start).count();
            ids.drain(..doubled.saturating_sub(1));
        }
        if let Some(bos) = self.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let kept: Vec<u32> = ids.iter().copied().filter(|id| !self.special.contains(id)).collect();
        self.tokenizer
            .decode(&kept, false)
            .map_err(|e| Error::input("the tokenizer cannot decode a completion").caused_by(e))
    }

    /// Every id that ends a completion.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// The id that every prompt starts with, where the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Number of ids.
    pub fn vocabulary(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The model's chat template; base models have none.
    pub fn chat(&self) -> Option<&Chat> {
        self.chat.as_ref()
    }

    /// A conversation as the model wants it, up to where it speaks. Without a chat template: the contents one behind
    /// the other, a blank line between them and behind the last.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        match &self.chat {
            Some(chat) => chat.render(messages, true),
            None => Ok(messages.iter().map(|m| format!("{}\n\n", m.content)).collect()),
        }
    }
}

fn first_id(tokenizer: &Tokenizer, special: bool) -> Result<Option<u32>> {
    let encoding = tokenizer.encode_fast("a", special);
    let encoding = encoding.map_err(|e| Error::input("the tokenizer cannot encode a text").caused_by(e))?;
    Ok(encoding.get_ids().first().copied())
}

/// Whether `id` stands in front only with special tokens.
fn first_id_is_added(tokenizer: &Tokenizer, id: u32) -> bool {
    first_id(tokenizer, false).is_ok_and(|plain| plain != Some(id))
}

fn optional(path: &Path) -> Result<Map<String, Value>> {
    if path.is_file() { read_json(path) } else { Ok(Map::new()) }
}

/// Texts of the special tokens, from tokenizer_config.json first; those that are not set are left out.
fn named_tokens(config: &Map<String, Value>, map: &Map<String, Value>) -> Map<String, Value> {
    let mut found = Map::new();
    for name in NAMED {
        let text = [config, map].into_iter().find_map(|json| match json.get(name)? {
            Value::String(text) => Some(text.as_str()),
            Value::Object(token) => token.get("content")?.as_str(),
            _ => None,
        });
        if let Some(text) = text {
            found.insert(name.to_owned(), text.into());
        }
    }
    found
}

#[cfg(test)]
mod tests;
