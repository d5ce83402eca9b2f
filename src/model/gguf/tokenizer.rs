//! tokenizer.json and its companions from a GGUF file's byte-level BPE.

use serde_json::{Map, Value, json};

use super::GgufFile;
use super::file::Value as Setting;
use crate::{Error, Result};

/// Token types of llama.cpp.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// How Llama 3 and Qwen2 cut text before merging; they differ in the length of digit runs.
const WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// File name and contents: tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json.
pub fn files(file: &GgufFile) -> Result<Vec<(&'static str, Value)>> {
    match file.text("tokenizer.ggml.model") {
        Some("gpt2") => {}
        other => {
            return Err(Error::input(format!("tokenizer {:?} is not imported", other.unwrap_or("(none)")))
                .hint("imported is byte-level BPE (gpt2): fetch the model as safetensors instead"));
        }
    }
    let tokens = strings(file, "tokenizer.ggml.tokens")?;
    let merges = strings(file, "tokenizer.ggml.merges")?;
    let types: Vec<u64> = match file.array("tokenizer.ggml.token_type") {
        Some(types) => types.iter().map(whole).collect(),
        None => vec![1; tokens.len()],
    };
    if types.len() != tokens.len() {
        return Err(Error::input(format!("{} tokens have {} types", tokens.len(), types.len())));
    }
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if vocabulary.insert((*token).to_owned(), json!(id)).is_some() {
            return Err(Error::input(format!("token {token:?} stands twice in the vocabulary")));
        }
    }
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges {
        let pair = merge.split_once(' ').ok_or_else(|| Error::input(format!("merge {merge:?} is no pair")))?;
        pairs.push(json!([pair.0, pair.1]));
    }
    let added = |id: usize, kind: u64| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": kind == CONTROL})
    };
    let special = types.iter().enumerate().filter(|(_, kind)| [CONTROL, USER_DEFINED].contains(kind));
    let special: Vec<(usize, Value)> = special.map(|(id, kind)| (id, added(id, *kind))).collect();
    let pre = file.text("tokenizer.ggml.pre").unwrap_or("default");
    let (normalizer, pre_tokenizer, ignore_merges) = pre_tokenizer(pre)?;
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": special.iter().map(|(_, token)| token.clone()).collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
            "vocab": vocabulary, "merges": pairs},
    });
    let mut named = Map::new();
    let mut generation = Map::new();
    for (role, key) in [("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")] {
        let Some(id) = file.number(&format!("tokenizer.ggml.{key}_token_id")) else { continue };
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        let token = token.ok_or_else(|| Error::input(format!("{key}_token_id {id} is not in the vocabulary")))?;
        named.insert(format!("{role}_token"), json!(token));
        if role != "unk" {
            generation.insert(format!("{role}_token_id"), json!(id));
        }
    }
    let mut config = named.clone();
    config.insert("add_prefix_space".to_owned(), json!(false));
    config.insert(
        "add_bos_token".to_owned(),
        json!(file.get("tokenizer.ggml.add_bos_token") == Some(&Setting::Bool(true))),
    );
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    let context = file.text("general.architecture").map(|name| format!("{name}.context_length"));
    if let Some(length) = context.and_then(|key| file.number(&key)) {
        config.insert("model_max_length".to_owned(), json!(length));
    }
    let decoder: Map<String, Value> = special
        .into_iter()
        .map(|(id, mut token)| {
            if let Value::Object(token) = &mut token {
                token.remove("id");
            }
            (id.to_string(), token)
        })
        .collect();
    config.insert("added_tokens_decoder".to_owned(), Value::Object(decoder));
    if let Some(template) = file.text("tokenizer.chat_template") {
        config.insert("chat_template".to_owned(), json!(template));
    }
    Ok(vec![
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", Value::Object(config)),
        ("special_tokens_map.json", Value::Object(named)),
        ("generation_config.json", Value::Object(generation)),
    ])
}

/// Normalizer, pre-tokenizer, and whether whole words in the vocabulary skip the merges, by llama.cpp's name.
fn pre_tokenizer(name: &str) -> Result<(Value, Value, bool)> {
    let bytes = |regex: bool, trim: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim, "use_regex": regex});
    let split = |digits: &str| json!({"type": "Split", "pattern": {"Regex": WORDS.replace("DIGITS", digits)}, "behavior": "Isolated", "invert": false});
    let sequence = |first: Value, second: Value| json!({"type": "Sequence", "pretokenizers": [first, second]});
    Ok(match name {
        "smollm" => {
            (Value::Null, sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true, true)), false)
        }
        "qwen2" => (json!({"type": "NFC"}), sequence(split(r"\p{N}"), bytes(false, false)), false),
        "llama-bpe" | "llama3" => (Value::Null, sequence(split(r"\p{N}{1,3}"), bytes(false, true)), true),
        "gpt-2" => (Value::Null, bytes(true, true), false),
        other => {
            return Err(Error::input(format!("pre-tokenizer {other:?} is not imported"))
                .hint("imported are smollm, qwen2, llama-bpe and gpt-2: fetch the model as safetensors instead"));
        }
    })
}

fn strings<'a>(file: &'a GgufFile, key: &str) -> Result<Vec<&'a str>> {
    let list = file.array(key).ok_or_else(|| Error::input(format!("there is no setting {key:?}")))?;
    let texts = list.iter().map(|item| match item {
        Setting::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Option<_>>().ok_or_else(|| Error::input(format!("{key:?} holds other things than texts")))
}

fn whole(value: &Setting) -> u64 {
    match value {
        Setting::Unsigned(n) => *n,
        Setting::Signed(n) => u64::try_from(*n).unwrap_or(0),
        _ => 0,
    }
}

/// What GGUF says of a tokenizer.
pub struct Parts {
    /// llama.cpp's name of the way text is cut.
    pub pre: &'static str,
    /// By id.
    pub tokens: Vec<String>,
    /// llama.cpp's types of them: 1 normal, 3 control, 4 user-defined, 5 unused.
    pub types: Vec<i32>,
    /// `left right`, the first one first.
    pub merges: Vec<String>,
}

/// The parts of a tokenizer.json of byte-level BPE for a model of `vocabulary` ids; ids without a token get one that no
/// text has, as llama.cpp's converter does it.
pub fn parts(tokenizer: &Map<String, Value>, vocabulary: usize) -> Result<Parts> {
    let tokenizer = Value::Object(tokenizer.clone());
    let model = &tokenizer["model"];
    let refuse = |what: &str| {
        Err(Error::input(format!("{what} is not written as GGUF"))
            .hint("written is byte-level BPE that cuts text as smollm, qwen2, llama-bpe or gpt-2 do"))
    };
    if model["type"] != "BPE" {
        return refuse(&format!("a tokenizer of type {}", model["type"]));
    }
    let same = |name: &&str| {
        pre_tokenizer(name).is_ok_and(|(normalizer, cuts, _)| {
            normalizer == tokenizer["normalizer"] && bare(&cuts) == bare(&tokenizer["pre_tokenizer"])
        })
    };
    let Some(pre) = ["smollm", "qwen2", "llama-bpe", "gpt-2"].into_iter().find(same) else {
        return refuse(&format!(
            "pre-tokenizer {} with normalizer {}",
            tokenizer["pre_tokenizer"], tokenizer["normalizer"]
        ));
    };
    let mut tokens: Vec<Option<String>> = vec![None; vocabulary];
    let mut types = vec![5i32; vocabulary];
    let mut put = |token: &str, id: Option<u64>, kind: i32| {
        let id = id.and_then(|id| usize::try_from(id).ok()).filter(|id| *id < vocabulary);
        let id = id.ok_or_else(|| Error::input(format!("token {token:?} has no id below {vocabulary}")))?;
        match &tokens[id] {
            Some(other) if other != token => {
                return Err(Error::input(format!("tokens {other:?} and {token:?} have the same id {id}")));
            }
            _ => {}
        }
        tokens[id] = Some(token.to_owned());
        types[id] = kind;
        Ok(())
    };
    for (token, id) in model["vocab"].as_object().into_iter().flatten() {
        put(token, id.as_u64(), 1)?;
    }
    for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let token = added["content"].as_str().unwrap_or_default();
        put(token, added["id"].as_u64(), if added["special"] == true { CONTROL as i32 } else { USER_DEFINED as i32 })?;
    }
    let mut merges = Vec::new();
    for merge in model["merges"].as_array().into_iter().flatten() {
        let text = match merge {
            Value::String(text) => Some(text.clone()),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some(format!("{left} {right}")),
                _ => None,
            },
            _ => None,
        };
        merges.push(text.ok_or_else(|| Error::input(format!("merge {merge} is no pair")))?);
    }
    let name = |(id, token): (usize, Option<String>)| token.unwrap_or_else(|| format!("[PAD{id}]"));
    Ok(Parts { pre, tokens: tokens.into_iter().enumerate().map(name).collect(), types, merges })
}

/// Without what changes offsets only, not ids.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| *key != "trim_offsets");
            Value::Object(kept.map(|(key, value)| (key.clone(), bare(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(bare).collect()),
        other => other.clone(),
    }
}
