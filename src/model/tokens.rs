//! The small files beside the weights: end-of-sequence ids, tokenizer, templates.

use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// Files that travel with a model's weights, where they exist.
const COMPANIONS: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
];

/// Every id that ends a sequence: `eos_token_id` of generation_config.json (one or a list), else of config.json.
/// Empty where neither names one.
pub fn eos_ids(dir: &Path) -> Result<Vec<u32>> {
    for file in ["generation_config.json", "config.json"] {
        let path = dir.join(file);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        let json: Value = serde_json::from_slice(&bytes)
            .map_err(|e| Error::input(format!("{} is not valid JSON", path.display())).caused_by(e))?;
        let ids = match json.get("eos_token_id") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(list)) => list.iter().map(token_id).collect(),
            Some(one) => token_id(one).map(|id| vec![id]),
        };
        return ids.ok_or_else(|| {
            Error::input(format!("{}: eos_token_id is neither a token id nor a list of them", path.display()))
        });
    }
    Ok(Vec::new())
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Copies tokenizer, templates and generation settings; gives the names of what was there.
pub fn copy_companions(from: &Path, to: &Path) -> Result<Vec<String>> {
    let mut copied = Vec::new();
    for name in COMPANIONS {
        let source = from.join(name);
        if source.is_file() {
            let target = to.join(name);
            // Read and written rather than copied: the source's mode (read-only in a cache) is not wanted.
            let bytes = std::fs::read(&source).map_err(|e| Error::io("read", &source, e))?;
            std::fs::write(&target, bytes).map_err(|e| Error::io("write", &target, e))?;
            copied.push(name.to_owned());
        }
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eos_ids_come_from_generation_config_first_and_may_be_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(eos_ids(dir.path()).unwrap(), Vec::<u32>::new());
        put("config.json", r#"{"eos_token_id": 2}"#);
        assert_eq!(eos_ids(dir.path()).unwrap(), [2]);
        put("generation_config.json", r#"{"eos_token_id": [151645, 151643]}"#);
        assert_eq!(eos_ids(dir.path()).unwrap(), [151645, 151643]);
        put("generation_config.json", r#"{"eos_token_id": null}"#);
        assert_eq!(eos_ids(dir.path()).unwrap(), [2]);
        put("generation_config.json", r#"{"eos_token_id": "</s>"}"#);
        assert!(eos_ids(dir.path()).unwrap_err().to_string().contains("eos_token_id"));
    }
}
