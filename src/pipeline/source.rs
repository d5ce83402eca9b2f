//! Texts that diagnostics point into: files of the pipeline and pieces of the command line.

use std::sync::Arc;

/// A byte range of one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    pub file: usize,
    pub start: usize,
    pub end: usize,
}

/// One text with the name that the user knows it by (a path as given, or `--set`).
#[derive(Clone, Debug)]
pub struct Source {
    pub name: Arc<str>,
    pub text: Arc<str>,
}

/// Every text read so far; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Sources(Vec<Source>);

impl Sources {
    pub fn add(&mut self, name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> usize {
        self.0.push(Source { name: name.into(), text: text.into() });
        self.0.len() - 1
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, file: usize) -> Option<&Source> {
        self.0.get(file)
    }

    /// 1-based line and column (in characters) of a byte offset.
    pub fn line_column(&self, span: Span) -> (usize, usize) {
        let Some(source) = self.get(span.file) else { return (1, 1) };
        let mut end = span.start.min(source.text.len());
        while !source.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &source.text[..end];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line, column)
    }

    /// `file:line:col`.
    pub fn place(&self, span: Span) -> String {
        let (line, column) = self.line_column(span);
        let name = self.get(span.file).map_or("?", |source| &source.name);
        format!("{name}:{line}:{column}")
    }
}
