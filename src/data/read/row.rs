//! One row, whatever the file's format.

use std::fmt;

use serde_json::{Map, Value};

/// A row's cells by column name.
pub struct Row<'a> {
    pub cells: &'a Map<String, Value>,
}

/// What a row lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub column: String,
    pub state: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is {}", self.column, self.state)
    }
}

impl Row<'_> {
    pub fn names(&self) -> Vec<String> {
        self.cells.keys().cloned().collect()
    }

    /// The cell of a column, or of a field of one (`reward_model.ground_truth`).
    pub fn get(&self, column: &str) -> Option<&Value> {
        if let Some(value) = self.cells.get(column) {
            return Some(value);
        }
        let (first, rest) = column.split_once('.')?;
        rest.split('.').try_fold(self.cells.get(first)?, |value, field| value.get(field))
    }

    /// The cell as text.
    pub fn text(&self, column: &str) -> Result<String, Missing> {
        let missing = |state| Missing { column: column.to_owned(), state };
        let text = match self.get(column) {
            None => return Err(missing("absent")),
            Some(Value::Null) => return Err(missing("null")),
            Some(value) => text(value).ok_or_else(|| missing("no text"))?,
        };
        if text.trim().is_empty() { Err(missing("empty")) } else { Ok(text) }
    }
}

/// A value as text: numbers as people write them (27.0 is 27), a conversation by its last user turn, a list of one by
/// its item.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) => Some(match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
            _ => number.to_string(),
        }),
        Value::Array(items) => match items.as_slice() {
            turns if turns.iter().any(|turn| turn.get("role").is_some()) => {
                let user = turns.iter().rev().find(|turn| turn.get("role").and_then(Value::as_str) == Some("user"));
                user.and_then(|turn| turn.get("content")?.as_str()).map(str::to_owned)
            }
            [one] => text(one),
            _ => None,
        },
        Value::Null | Value::Object(_) => None,
    }
}
