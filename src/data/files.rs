//! Small files, read with a limit.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Bytes of a JSON description (tokenizer_config.json and the like).
const MAX_JSON: u64 = 64 << 20;

/// A text file of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    let file = std::fs::File::open(path).map_err(|e| Error::io("read", path, e))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::input(format!("{} is longer than {limit} bytes", path.display())));
    }
    String::from_utf8(bytes).map_err(|e| Error::input(format!("{} is not UTF-8", path.display())).caused_by(e))
}

/// A file that holds one JSON object.
pub fn read_json(path: &Path) -> Result<Map<String, Value>> {
    let text = read_text(path, MAX_JSON)?;
    serde_json::from_str(&text)
        .map_err(|e| Error::input(format!("{} is not a JSON object", path.display())).caused_by(e))
}
