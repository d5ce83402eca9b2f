//! Pipeline files and what they include -> one merged map.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::diagnostics::{Diagnostic, Diagnostics};
use super::source::Span;
use super::tree::{Entry, Node, Value};
use super::yaml;

/// Larger files are refused before they are read.
const MAX_BYTES: u64 = 1 << 20;
/// Files of one pipeline.
const MAX_FILES: usize = 64;

/// Reads `file` with its includes. None where there is nothing to go on with.
pub fn load(file: &Path, diagnostics: &mut Diagnostics) -> Option<Node> {
    Loader { diagnostics, open: Vec::new(), files: 0 }.file(file, None)
}

struct Loader<'a> {
    diagnostics: &'a mut Diagnostics,
    /// The chain of files that include each other, as the file system knows them.
    open: Vec<PathBuf>,
    files: usize,
}

impl Loader<'_> {
    fn file(&mut self, path: &Path, from: Option<Span>) -> Option<Node> {
        let fail = |message: String| match from {
            Some(span) => Diagnostic::new(span, message),
            None => Diagnostic::whole(message),
        };
        self.files += 1;
        if self.files > MAX_FILES {
            self.diagnostics.push(fail(format!("more than {MAX_FILES} files are included")));
            return None;
        }
        let text = match read(path) {
            Ok(text) => text,
            Err(why) => {
                self.diagnostics.push(fail(format!("cannot read {}: {why}", path.display())));
                return None;
            }
        };
        let known = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if self.open.contains(&known) {
            self.diagnostics.push(fail(format!("{} includes itself", path.display())));
            return None;
        }
        let source = self.diagnostics.sources.add(path.display().to_string(), text.as_str());
        let mut node = yaml::parse(&text, source, 0, self.diagnostics)?;
        if !matches!(node.value, Value::Map(_)) {
            let diagnostic = Diagnostic::new(node.span, "a pipeline file is a map")
                .label(format!("expected keys such as `name` and `stages`, got {}", node.describe()));
            self.diagnostics.push(diagnostic);
            return None;
        }
        self.open.push(known);
        let merged = self.includes(&mut node, path);
        self.open.pop();
        Some(match merged {
            Some(mut base) => {
                join(&mut base, node);
                base
            }
            None => node,
        })
    }

    /// Takes `include` out of the map and gives what it includes, later files over earlier ones.
    fn includes(&mut self, node: &mut Node, path: &Path) -> Option<Node> {
        let Value::Map(entries) = &mut node.value else { return None };
        let at = entries.iter().position(|e| e.key == "include")?;
        let include = entries.remove(at).value;
        let list = match include.value {
            Value::Seq(items) => items,
            Value::Null | Value::Bad => Vec::new(),
            _ => vec![include],
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut merged: Option<Node> = None;
        for item in list {
            let Some(name) = item.text() else {
                self.diagnostics.push(
                    Diagnostic::new(item.span, "an include is a path")
                        .label(format!("expected a path relative to this file, got {}", item.describe())),
                );
                continue;
            };
            let relative = Path::new(name);
            if name.is_empty() || relative.components().any(|c| matches!(c, Component::RootDir | Component::Prefix(_)))
            {
                self.diagnostics.push(
                    Diagnostic::new(item.span, "an include must be relative")
                        .label("expected a path relative to this file"),
                );
                continue;
            }
            if let Some(more) = self.file(&folder.join(relative), Some(item.span)) {
                match &mut merged {
                    Some(base) => join(base, more),
                    None => merged = Some(more),
                }
            }
        }
        merged
    }
}

/// Lays a file over what it includes. Stages are put together; everything else merges as maps do.
fn join(base: &mut Node, over: Node) {
    let (Value::Map(mine), Value::Map(theirs)) = (&mut base.value, over.value) else { return };
    base.span = over.span;
    for entry in theirs {
        let Some(old) = mine.iter_mut().find(|e| e.key == entry.key) else {
            mine.push(entry);
            continue;
        };
        match (old.key.as_str(), &mut old.value.value, entry.value) {
            ("stages", Value::Seq(stages), Node { value: Value::Seq(more), .. }) => stages.extend(more),
            (_, _, value) => {
                let Entry { key_span, value: mine, .. } = old;
                *key_span = entry.key_span;
                mine.merge(value);
            }
        }
    }
}

/// The text of a regular file of bounded size.
fn read(path: &Path) -> Result<String, String> {
    let describe = |e: std::io::Error| e.to_string();
    let meta = std::fs::metadata(path).map_err(describe)?;
    if !meta.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(describe)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(describe)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it is larger than {} MiB, which no pipeline is", MAX_BYTES >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}
