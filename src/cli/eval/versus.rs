//! `qerl eval --compare A B`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::out::write as out;
use crate::eval::{Summary, compare, files, table};
use crate::store::{Handle, Store};
use crate::{Error, Result};

pub(super) fn run(a: &str, b: &str, seed: u64, as_json: bool) -> Result<()> {
    let (a, b) = (find(a)?, find(b)?);
    let sets = compare(&files::read(&a)?, &files::read(&b)?, seed)?;
    if let (Ok(a), Ok(b)) = (files::read_summary(&a), files::read_summary(&b)) {
        for line in differences(&a, &b) {
            eprintln!("warning: {line}");
        }
    }
    if as_json {
        return out(&format!("{}\n", json!({ "sets": sets })));
    }
    out(&table::comparison(&sets))
}

/// A path, or the folder of the evaluation at an address.
fn find(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    if path.exists() || !text.contains(':') {
        return Ok(path);
    }
    let artifact = Store::from_env()?.resolve(text)?;
    if artifact.meta.handle != Handle::Eval {
        return Err(Error::usage(format!("{text} is a `{}` stage, not an evaluation", artifact.meta.kind.name())));
    }
    Ok(artifact.dir)
}

/// Settings in which two evaluations of the same set differ: then a difference of accuracy is not the models' alone.
fn differences(a: &Summary, b: &Summary) -> Vec<String> {
    let mut out = Vec::new();
    for x in &a.sets {
        let Some(y) = b.sets.iter().find(|y| y.data == x.data) else { continue };
        let mut differ = |what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
            let (a, b) = (a.to_string(), b.to_string());
            if a != b {
                out.push(format!("{}: {what} is {a} in A and {b} in B", x.data));
            }
        };
        differ("samples", &x.samples, &y.samples);
        differ("temperature", &x.temperature, &y.temperature);
        differ("top_p", &x.top_p, &y.top_p);
        differ("top_k", &x.top_k, &y.top_k);
        differ("max_new_tokens", &x.max_new_tokens, &y.max_new_tokens);
    }
    out
}
