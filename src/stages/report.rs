//! `report`: one self-contained HTML file and one Markdown file that compare variants.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::report_gather::gather;
use super::{Context, Output, StageRef};
use crate::store::Handle;
use crate::{Error, Result, report};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Stages whose instances are gathered over all points (failed ones are shown).
    pub gather: Vec<StageRef>,
    /// The axis whose values are the rows.
    #[serde(default = "variant")]
    pub rows: String,
    /// The axis averaged over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The row that the others are compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Published figures to print beside ours: `table1.3B`, `table1.7B`, `table2.7B`, `table2.14B`, `table2.32B`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

fn variant() -> String {
    "variant".to_owned()
}

/// Gathers, renders, and copies the two files to `reports/out/<pipeline>/` beside the working directory.
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    let data = gather(context, config, &context.pipeline)?;
    for failure in &data.failures {
        context.progress.say(&format!("the report shows {} as failed: {}", failure.instance, failure.reason));
    }
    let files = [("html", "report.html", report::html(&data)?), ("md", "report.md", report::markdown(&data)?)];
    let public = Path::new("reports/out").join(&context.pipeline);
    std::fs::create_dir_all(&public).map_err(|e| Error::io("create", &public, e))?;
    for (_, name, text) in &files {
        for folder in [context.output.as_path(), &public] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
        }
    }
    context.progress.say(&format!("report: {}", public.join("report.html").display()));
    let rows: BTreeMap<&str, _> = data.rows.iter().map(|r| (r.label.as_str(), &r.cells)).collect();
    Ok(Output {
        declared: files.iter().map(|f| f.1.to_owned()).collect(),
        handle: Handle::Report { files: files.iter().map(|f| (f.0.to_owned(), f.1.to_owned())).collect() },
        summary: serde_json::json!({ "rows": rows, "public": public }),
    })
}
