//! Problem sets: rows of parquet or jsonl (or generated) -> normalised [`Problem`]s, hold-outs, prompts.

pub mod chat;
mod files;
pub mod generate;
pub mod normalise;
pub mod parts;
pub mod prompt;
pub mod read;
pub mod template;
pub mod text;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One normalised problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable within its set (`unique_id` of the source, or its row number).
    pub id: String,
    /// The user's text, before any template.
    pub prompt: String,
    /// The gold answer that the grader compares with.
    pub answer: String,
    /// A full reference solution where the source has one (supervised steps, sanity checks).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solution: Option<String>,
    /// Level, subject, source and the like, for breakdowns.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub tags: std::collections::BTreeMap<String, String>,
}

/// Which columns hold what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solution: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// A seeded hold-out that training on the set never sees (de-duplicated by normalised problem text).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Holdout {
    pub n: usize,
    #[serde(default)]
    pub seed: u64,
}

/// How raw rows become problems and prompts: an entry under `data:` less where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// A built-in set's reader: `arith`, `sums`, `gsm8k`, `math500`, `aime24`, `aime25`, `amc23`, `bigmath`,
    /// `dapo_math`; columns named here override its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// The hub's configuration (a folder of parquet files).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The hub's split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    #[serde(default)]
    pub columns: Columns,
    /// Prompt template: `qerl_think` (think/answer tags), `boxed`, `plain`, or a file of the pipeline's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The text of the file that `template` names: read and filled in by `split`, so that those who use its problems
    /// need no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_text: Option<String>,
    /// System prompt; each template has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Problems whose rendered prompt is longer are left out of training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<usize>,
    /// For generated sets: how many problems, and from which seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// An entry under `data:`: where the rows come from and how they are read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataEntry {
    /// `owner/name` on the hub or `file:PATH`; a built-in knows its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holdout: Option<Holdout>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    #[serde(default)]
    pub columns: Columns,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// A data set that qerl knows by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    pub name: &'static str,
    /// None: generated here.
    pub repo: Option<&'static str>,
    pub config: Option<&'static str>,
    /// Which split evaluation reads and which training reads (equal where the hub has only one).
    pub eval_split: &'static str,
    pub train_split: &'static str,
}

/// All of them, in the order of the documentation.
pub const BUILTINS: &[Builtin] = &[
    Builtin { name: "arith", repo: None, config: None, eval_split: "holdout", train_split: "train" },
    Builtin { name: "sums", repo: None, config: None, eval_split: "holdout", train_split: "train" },
    Builtin {
        name: "gsm8k",
        repo: Some("openai/gsm8k"),
        config: Some("main"),
        eval_split: "test",
        train_split: "train",
    },
    Builtin {
        name: "math500",
        repo: Some("HuggingFaceH4/MATH-500"),
        config: None,
        eval_split: "test",
        train_split: "test",
    },
    Builtin {
        name: "aime24",
        repo: Some("HuggingFaceH4/aime_2024"),
        config: None,
        eval_split: "train",
        train_split: "train",
    },
    Builtin { name: "aime25", repo: Some("math-ai/aime25"), config: None, eval_split: "test", train_split: "test" },
    Builtin { name: "amc23", repo: Some("math-ai/amc23"), config: None, eval_split: "test", train_split: "test" },
    Builtin {
        name: "bigmath",
        repo: Some("open-r1/Big-Math-RL-Verified-Processed"),
        config: Some("all"),
        eval_split: "train",
        train_split: "train",
    },
    Builtin {
        name: "dapo_math",
        repo: Some("open-r1/DAPO-Math-17k-Processed"),
        config: Some("all"),
        eval_split: "train",
        train_split: "train",
    },
];

/// The data set of this name.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|set| set.name == name)
}
