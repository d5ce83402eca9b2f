//! `report`: one self-contained HTML file and one Markdown file that compare variants.

mod compare;
mod cost;
mod gather;
mod lineage;
mod provenance;
mod records;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Filled in by the plan: whose report it is; never written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub pipeline: Option<Origin>,
}

/// The pipeline that a report belongs to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    pub name: String,
    /// The file's name, without its folder.
    pub file: String,
    /// `--profile`, `--set` and `--only` with their values, as they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
}

fn variant() -> String {
    "variant".to_owned()
}

const HTML: &str = "report.html";
const MARKDOWN: &str = "report.md";

/// Gathers and renders into the stage's output folder; the executor publishes from there.
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    let data = gather::gather(context, config)?;
    for failure in &data.failures {
        context.progress.say(&format!("the report shows {} as failed: {}", failure.instance, failure.reason));
    }
    for (name, text) in [(HTML, report::html(&data)?), (MARKDOWN, report::markdown(&data)?)] {
        let path = context.output.join(name);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    let rows: BTreeMap<&str, _> = data.rows.iter().map(|r| (r.label.as_str(), &r.cells)).collect();
    Ok(Output {
        declared: vec![HTML.to_owned(), MARKDOWN.to_owned()],
        handle: Handle::Report {
            files: [("html", HTML), ("md", MARKDOWN)].map(|(k, f)| (k.to_owned(), f.to_owned())).into(),
        },
        summary: serde_json::json!({ "rows": rows }),
    })
}
