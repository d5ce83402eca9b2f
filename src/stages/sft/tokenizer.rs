//! A word-level tokenizer made from a data set: every word of its texts, every digit and every ASCII character is a
//! token, and so are the think/answer tags. Written as `tokenizers` reads it; transformers 5 reads it with
//! `PreTrainedTokenizerFast` (its `AutoTokenizer` ignores the class for model_type qwen2 and cuts words to letters).

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::rl::rewards::text::TAGS;
use crate::{Error, Result};

/// Ends a turn, and so a completion.
pub const EOS: &str = "<|im_end|>";
const START: &str = "<|im_start|>";
const PAD: &str = "<|endoftext|>";
const UNKNOWN: &str = "<unk>";

/// A word with the blank before it, one digit, one white space, one other character.
const PATTERN: &str = r" ?[A-Za-z]+|\d|\s|[^\sA-Za-z\d]";

/// ChatML, as Qwen's models use it.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
     message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ \
     '<|im_start|>assistant\n' }}{% endif %}";

/// What the model must know of its tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    pub size: usize,
    pub eos: u32,
    pub pad: u32,
}

/// Cuts a text as [`PATTERN`] does.
pub fn words(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = usize::from(first == ' ');
        let letters = rest[blank..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let length = if letters > 0 { blank + letters } else { first.len_utf8() };
        out.push(&rest[..length]);
        rest = &rest[length..];
    }
    out
}

/// Writes tokenizer.json, tokenizer_config.json and generation_config.json for the words of `texts`; the vocabulary
/// is filled up to a multiple of `multiple`.
pub fn write<'a>(dir: &Path, texts: impl Iterator<Item = &'a str>, multiple: usize) -> Result<Vocabulary> {
    let special = [PAD, START, EOS];
    let mut added: Vec<&str> = special.to_vec();
    added.extend(TAGS);
    let mut pieces: BTreeSet<String> = (0u8..128)
        .map(char::from)
        .filter(|c| matches!(c, '\t' | '\n' | '\r') || !c.is_control())
        .map(String::from)
        .collect();
    // The roles of the chat template.
    pieces.extend(["system", "user", "assistant"].map(str::to_owned));
    for text in texts {
        // The added tokens are cut out first, as the tokenizer does.
        let mut text = text.to_owned();
        for token in &added {
            text = text.replace(token, "\u{0}");
        }
        // Each word with and without a blank before it: where it stood may not be where it will be said.
        for word in text.split('\u{0}').flat_map(words) {
            let bare = word.strip_prefix(' ').filter(|w| !w.is_empty()).unwrap_or(word);
            if bare.starts_with(|c: char| c.is_ascii_alphabetic()) {
                pieces.insert(format!(" {bare}"));
            }
            pieces.insert(bare.to_owned());
        }
    }
    let mut vocabulary: Vec<String> = added.iter().map(|t| (*t).to_owned()).collect();
    vocabulary.push(UNKNOWN.to_owned());
    vocabulary.extend(pieces);
    let used = vocabulary.len();
    let size = used.next_multiple_of(multiple.max(1));
    vocabulary.extend((used..size).map(|i| format!("<|unused_{i}|>")));

    let map: serde_json::Map<String, Value> =
        vocabulary.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let token = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": id < special.len(),
        })
    };
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.iter().enumerate().map(token).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false,
        },
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": map, "unk_token": UNKNOWN},
    });
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": null,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "add_bos_token": false,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    // PAD and EOS stand at the places of `special`.
    let found = Vocabulary { size, eos: 2, pad: 0 };
    let generation = json!({"do_sample": true, "eos_token_id": [found.eos, found.pad], "pad_token_id": found.pad});
    for (name, value) in
        [("tokenizer.json", tokenizer), ("tokenizer_config.json", config), ("generation_config.json", generation)]
    {
        let path = dir.join(name);
        std::fs::write(&path, format!("{value:#}\n")).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_encoding_and_decoding() {
        let dir = tempfile::tempdir().unwrap();
        let text = "Tom has 12 apples.\nHe buys 7 more: how many?";
        let answer = "<think>\n12 + 7 = 19\n</think>\n<answer>\n19\n</answer><|im_end|>";
        let vocabulary = write(dir.path(), [text, answer].into_iter(), 64).unwrap();
        assert_eq!(vocabulary.size % 64, 0);
        let tokenizer = tokenizers::Tokenizer::from_file(dir.path().join("tokenizer.json")).unwrap();
        assert_eq!(tokenizer.get_vocab_size(true), vocabulary.size);
        for text in [text, answer, "many apples buys\n\n0987"] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(ids.get_ids(), false).unwrap(), text);
            assert!(!ids.get_tokens().iter().any(|t| t == UNKNOWN), "{text}");
        }
        let ids = tokenizer.encode("12<think>", false).unwrap();
        assert_eq!(ids.get_tokens(), ["1", "2", "<think>"]);
        assert_eq!(tokenizer.token_to_id(EOS), Some(vocabulary.eos));
    }

    #[test]
    fn words_keep_their_blank_and_every_character() {
        assert_eq!(words("a bc  12é."), ["a", " bc", " ", " ", "1", "2", "é", "."]);
    }
}
