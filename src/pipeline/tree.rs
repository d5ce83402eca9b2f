//! The spanned tree that everything works on until values are decoded.

use super::source::Span;

/// A YAML value with its place in a text.
#[derive(Clone, Debug)]
pub struct Node {
    pub value: Value,
    pub span: Span,
    /// Where an interpolated value stands, or the value that this one overrides.
    pub via: Vec<(Span, String)>,
}

#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    /// `text` is what was written: where a string is wanted, `61e9540` stays what it was.
    Number {
        text: String,
        number: serde_json::Number,
    },
    Text(String),
    Seq(Vec<Node>),
    Map(Vec<Entry>),
    /// Could not be made out; that has been reported, so nothing more is said about it.
    Bad,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    pub key_span: Span,
    pub value: Node,
}

impl Node {
    pub fn new(value: Value, span: Span) -> Self {
        Self { value, span, via: Vec::new() }
    }

    pub fn map(entries: Vec<Entry>, span: Span) -> Self {
        Self::new(Value::Map(entries), span)
    }

    pub fn entries(&self) -> Option<&[Entry]> {
        if let Value::Map(entries) = &self.value { Some(entries) } else { None }
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries()?.iter().find(|entry| entry.key == key)
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        Some(&self.entry(key)?.value)
    }

    pub fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The text of a string, number or boolean: labels, stage ids, values inside larger strings.
    pub fn scalar_text(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) | Value::Number { text, .. } => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::Seq(_) | Value::Map(_) | Value::Bad => None,
        }
    }

    /// Nodes in this tree, itself included.
    pub fn size(&self) -> usize {
        1 + match &self.value {
            Value::Seq(items) => items.iter().map(Self::size).sum::<usize>(),
            Value::Map(entries) => entries.iter().map(|e| e.value.size()).sum(),
            Value::Text(text) => text.len() / 64,
            _ => 0,
        }
    }

    /// For messages: ``the number `3` ``, `a list`.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null | Value::Bad => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Number { text, .. } => format!("the number `{}`", shorten(text)),
            Value::Text(text) => format!("the string `{}`", shorten(text)),
            Value::Seq(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null | Value::Bad => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Number { number, .. } => serde_json::Value::Number(number.clone()),
            Value::Text(text) => text.as_str().into(),
            Value::Seq(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect(),
        }
    }

    /// Lays `over` on top: maps merge key by key, everything else is replaced.
    pub fn merge(&mut self, over: Node) {
        match (&mut self.value, over.value) {
            (Value::Map(mine), Value::Map(theirs)) => {
                self.span = over.span;
                for entry in theirs {
                    match mine.iter_mut().find(|e| e.key == entry.key) {
                        Some(old) => {
                            old.key_span = entry.key_span;
                            old.value.merge(entry.value);
                        }
                        None => mine.push(entry),
                    }
                }
            }
            (_, value) => *self = Node { value, span: over.span, via: over.via },
        }
    }
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 60 {
        return text.to_owned();
    }
    let head: String = text.chars().take(57).collect();
    format!("{head}...")
}
