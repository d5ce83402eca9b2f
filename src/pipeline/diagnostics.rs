//! Everything that is wrong with a pipeline, collected, and how it is shown.

use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::source::{Sources, Span};
use crate::Error;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, as a lower-case fragment.
    pub message: String,
    /// Where; none for trouble with a whole file (it cannot be read).
    pub span: Option<Span>,
    /// What was expected, written under the caret.
    pub label: String,
    /// Other places that matter: the first of two equal keys, the value that was overridden.
    pub related: Vec<(Span, String)>,
    /// What to do next.
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { message: message.into(), span: Some(span), label: String::new(), related: Vec::new(), help: None }
    }

    pub fn whole(message: impl Into<String>) -> Self {
        Self { message: message.into(), span: None, label: String::new(), related: Vec::new(), help: None }
    }

    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    #[must_use]
    pub fn related(mut self, span: Span, text: impl Into<String>) -> Self {
        self.related.push((span, text.into()));
        self
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds `did you mean ...` where a known name is near, otherwise the list of them.
    #[must_use]
    pub fn nearest<'a>(self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match suggest(name, known) {
            Some(help) => self.help(help),
            None => self,
        }
    }
}

/// The known name most like `name`, if any is like it.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(name.len()).min(9) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean X?`, or the list of what there is.
pub fn suggest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // A hostile name must not cost quadratic time.
    let short: String = name.chars().take(64).collect();
    let known: Vec<&str> = known.into_iter().collect();
    if let Some(near) = nearest(&short, known.iter().copied()) {
        return Some(format!("did you mean `{near}`?"));
    }
    match known.len() {
        0 => None,
        1..=24 => Some(format!("known here: {}", known.join(", "))),
        n => Some(format!("known here: {}, and {} more", known[..24].join(", "), n - 24)),
    }
}

/// A list of diagnostics with the texts they point into.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    pub sources: Sources,
    list: Vec<Diagnostic>,
}

/// More than this helps nobody (and bounds the output of a hostile file).
const MOST: usize = 50;

impl Diagnostics {
    /// Adds one, unless the same was said about the same place before: a value that is wrong at every point of an
    /// axis is shown for a few of them only.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let here = self.list.iter().filter(|other| other.span.is_some() && other.span == diagnostic.span);
        let (same, near) = here.fold((false, 0), |(same, n), o| (same || o.message == diagnostic.message, n + 1));
        if !same && near < 3 && self.list.len() < 1000 {
            self.list.push(diagnostic);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// In the order of the texts.
    pub fn sort(&mut self) {
        self.list.sort_by_key(|d| d.span.map(|s| (s.file, s.start)));
    }

    /// All of them with source lines and carets; `colour` adds escape codes.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for diagnostic in self.list.iter().take(MOST) {
            if !out.is_empty() {
                out.push_str("\n\n");
            }
            out.push_str(&self.render_one(diagnostic, &renderer));
        }
        if self.list.len() > MOST {
            out.push_str(&format!("\n\nand {} more errors", self.list.len() - MOST));
        }
        out
    }

    fn render_one(&self, diagnostic: &Diagnostic, renderer: &Renderer) -> String {
        let mut group = Group::with_title(Level::ERROR.primary_title(diagnostic.message.as_str()));
        if let Some(span) = diagnostic.span {
            let (same, other): (Vec<_>, Vec<_>) =
                diagnostic.related.iter().partition(|(place, _)| place.file == span.file);
            group = self.snippet(group, span.file, Some((span, &diagnostic.label)), &same);
            for related in other {
                group = self.snippet(group, related.0.file, None, &[related]);
            }
        }
        if let Some(help) = &diagnostic.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        renderer.render(&[group])
    }

    fn snippet<'a>(
        &'a self,
        group: Group<'a>,
        file: usize,
        primary: Option<(Span, &'a str)>,
        related: &[&'a (Span, String)],
    ) -> Group<'a> {
        let Some(source) = self.sources.get(file) else { return group };
        let text: &str = &source.text;
        let mut snippet = Snippet::source(text).path(source.name.as_ref());
        if let Some((span, label)) = primary {
            let annotation = AnnotationKind::Primary.span(clamp(text, span));
            snippet = snippet.annotation(if label.is_empty() { annotation } else { annotation.label(label) });
        }
        for (span, label) in related.iter().map(|r| (r.0, r.1.as_str())) {
            let kind = if primary.is_some() { AnnotationKind::Context } else { AnnotationKind::Primary };
            snippet = snippet.annotation(kind.span(clamp(text, span)).label(label));
        }
        group.element(snippet)
    }

    /// For `--json`: one object per diagnostic.
    pub fn to_json(&self) -> serde_json::Value {
        self.list
            .iter()
            .map(|d| {
                let (line, column) = d.span.map_or((0, 0), |span| self.sources.line_column(span));
                serde_json::json!({
                    "file": d.span.and_then(|s| self.sources.get(s.file)).map(|s| s.name.to_string()),
                    "line": line,
                    "column": column,
                    "bytes": d.span.map(|s| [s.start, s.end]),
                    "message": d.message,
                    "expected": d.label,
                    "help": d.help,
                })
            })
            .collect()
    }
}

/// A span cut to its first line and to character boundaries, so that a caret stays a caret.
fn clamp(text: &str, span: Span) -> std::ops::Range<usize> {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = span.end.clamp(start, text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text[start..end].find('\n') {
        Some(line) => start..start + line,
        None => start..end,
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

impl From<Diagnostics> for Error {
    /// One usage error (exit code 2) that holds the plain rendering; a terminal's caller renders in colour itself.
    fn from(diagnostics: Diagnostics) -> Self {
        let n = diagnostics.len();
        let what = if n == 1 { "1 error".to_owned() } else { format!("{n} errors") };
        Error::usage(format!("the pipeline is not valid ({what})\n{}", diagnostics.render(false)))
    }
}
