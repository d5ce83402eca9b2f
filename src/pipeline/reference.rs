//! The options of every stage as Markdown, from the schemas that also check them.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::check::Checker;
use super::diagnostics::Diagnostics;
use super::source::Span;
use crate::stages::Kind;

/// One table per stage kind, then `resources`: key, what it takes, default, meaning.
pub fn reference() -> String {
    let mut out = String::new();
    for kind in Kind::ALL {
        table(&mut out, kind.name(), &kind.schema().to_value());
    }
    table(&mut out, "resources", &schemars::schema_for!(super::Resources).to_value());
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn table(out: &mut String, name: &str, schema: &Json) {
    let mut nowhere = Diagnostics::default();
    let checker = Checker::new(schema, name, Span { file: 0, start: 0, end: 0 }, &mut nowhere);
    // Writing into a String cannot fail.
    let _ = writeln!(out, "### `{name}`\n\n| key | takes | default | meaning |\n|---|---|---|---|");
    let required: Vec<&str> =
        schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str).collect();
    for (key, field) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
        let default = match field.get("default") {
            None | Some(Json::Null) if required.contains(&key.as_str()) => "**needed**".to_owned(),
            None | Some(Json::Null) => String::new(),
            Some(value) => format!("`{}`", crate::store::canonical(value)),
        };
        let text = field.get("description").and_then(Json::as_str).unwrap_or_default();
        let _ = writeln!(out, "| `{key}` | {} | {} | {} |", cell(&checker.describe(field)), cell(&default), cell(text));
    }
    out.push('\n');
}

/// One line, and no bar that would end the cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
