//! `report`: one self-contained HTML file and one Markdown file that compare variants.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StageRef;

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
