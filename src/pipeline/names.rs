//! Names in a pipeline file: which are allowed, those of the stage kinds, and how much of one is shown.

use crate::stages::Kind;

/// Whether `text` may be the id of a stage, the name of a data set, a variable or an axis.
pub fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 100 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The stage kind of this name.
pub fn kind(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// The names of the stage kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name)
}

/// At most 60 characters of a name that a user wrote.
pub fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}
