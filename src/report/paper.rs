//! Published figures of QeRL (arXiv 2510.11696 v1, tables 1 and 2), to print beside ours.

use serde::Serialize;
use serde_json::Value;

use crate::{Error, Result};

const NUMBERS: &str = include_str!("paper_numbers.json");

/// What `report.paper` may name.
pub const TABLES: [&str; 5] = ["table1.3B", "table1.7B", "table2.7B", "table2.14B", "table2.32B"];

/// One table of the paper for one model size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Paper {
    pub name: String,
    pub source: String,
    pub columns: Vec<String>,
    /// (method, percent per column).
    pub rows: Vec<(String, Vec<f64>)>,
}

impl Paper {
    /// The table `name` (one of [`TABLES`]).
    pub fn table(name: &str) -> Result<Self> {
        let unknown = || {
            Error::usage(format!("unknown paper table {name:?}")).hint(format!("known tables: {}", TABLES.join(", ")))
        };
        let broken = || Error::failed(format!("the built-in figures of {name} cannot be read"));
        if !TABLES.contains(&name) {
            return Err(unknown());
        }
        let (table, size) = name.split_once('.').ok_or_else(unknown)?;
        let numbers: Value = serde_json::from_str(NUMBERS).map_err(|e| broken().caused_by(e))?;
        let (key, columns) = if table == "table1" {
            ("table1_gsm8k_pass1_GRPO", vec!["GSM8K".to_owned()])
        } else {
            let columns: Option<Vec<String>> =
                serde_json::from_value(numbers["table2_bigmath_DAPO_cols"].clone()).unwrap_or(None);
            ("table2_bigmath_DAPO", columns.ok_or_else(broken)?)
        };
        let methods = numbers[key][size].as_object().ok_or_else(broken)?;
        let row = |(method, value): (&String, &Value)| {
            let figures = match value {
                Value::Array(list) => list.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?,
                value => vec![value.as_f64()?],
            };
            (figures.len() == columns.len()).then(|| (method.clone(), figures))
        };
        let rows = methods.iter().map(row).collect::<Option<Vec<_>>>().ok_or_else(broken)?;
        let what = if table == "table1" { "GSM8K, GRPO, pass@1" } else { "BigMath, DAPO" };
        let source = numbers["source"].as_str().ok_or_else(broken)?.to_owned();
        Ok(Self { name: format!("{size}: {what}"), source, columns, rows })
    }
}

/// The paper's name for a policy: its weight format, how it was trained (`None`: not at all) and with noise or not.
pub fn method(format: &str, trained: Option<Trained>, noise: bool) -> String {
    let format = format.to_uppercase();
    let how = match trained {
        None => "",
        Some(Trained::Full) => " Full",
        Some(Trained::Adapter) => " LoRA",
    };
    format!("{format}{how}{}", if noise { "+AQN" } else { "" })
}

/// What a training changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trained {
    Adapter,
    Full,
}

/// The column of a data set of ours: the same name but for case and punctuation. A hold-out is another set.
pub fn is_column(column: &str, dataset: &str) -> bool {
    let plain = |text: &str| text.chars().filter(|c| *c != '-' && *c != '_').collect::<String>().to_lowercase();
    plain(column) == plain(dataset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_table_can_be_read_and_holds_the_published_figures() {
        for name in TABLES {
            assert!(!Paper::table(name).unwrap().rows.is_empty(), "{name}");
        }
        let seven = Paper::table("table1.7B").unwrap();
        assert!(seven.rows.contains(&("NVFP4 LoRA+AQN".to_owned(), vec![90.8])));
        let big = Paper::table("table2.32B").unwrap();
        assert_eq!(big.columns[0], "MATH500");
        assert!(big.rows.contains(&("NVFP4 LoRA".to_owned(), vec![81.6, 16.7, 15.0, 52.5, 41.4])));
        assert!(Paper::table("table9.1B").is_err());
    }

    #[test]
    fn our_policies_find_their_rows_and_columns() {
        let paper = Paper::table("table2.7B").unwrap();
        let known = |name: String| paper.rows.iter().any(|r| r.0 == name);
        for trained in [None, Some(Trained::Full), Some(Trained::Adapter)] {
            assert!(known(method("bf16", trained, false)));
        }
        assert_eq!(method("nvfp4", Some(Trained::Adapter), true), "NVFP4 LoRA+AQN");
        assert!(!known(method("bf16", Some(Trained::Adapter), true)), "a control that the paper lacks");
        assert!(is_column("MATH500", "math500") && is_column("GSM8K", "gsm8k") && is_column("AIME24", "aime-24"));
        assert!(!is_column("GSM8K", "gsm8k.holdout"));
    }
}
