//! Paths and overlays: the one grammar of `--set`, `variants` and `profiles`.
//!
//! `vars.X`, `data.N.K`, `sweep.X` or `STAGE.KEY...`; each with the value that it sets.

use super::diagnostics::{Diagnostic, Diagnostics};
use super::source::Span;
use super::tree::{Entry, Node, Value};
use super::yaml;

/// Segments of a path: no configuration is that deep.
const LONGEST: usize = 16;

/// One part of a path.
#[derive(Clone, Debug)]
pub struct Segment {
    pub text: String,
    pub span: Span,
}

/// A value and where it goes.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// At least two.
    pub path: Vec<Segment>,
    pub value: Node,
}

impl Overlay {
    /// The rest of the path where it begins with `prefix`.
    pub fn within(&self, prefix: &[&str]) -> Option<&[Segment]> {
        let fits = self.path.len() >= prefix.len() && self.path.iter().zip(prefix).all(|(s, p)| s.text == *p);
        fits.then(|| &self.path[prefix.len()..])
    }

    pub fn span(&self) -> Span {
        let (first, last) = (self.path[0].span, self.path[self.path.len() - 1].span);
        Span { end: last.end, ..first }
    }
}

/// A map of paths, as it stands under a variant or profile. `who` names it in messages.
pub fn overlays(node: &Node, who: &str, diagnostics: &mut Diagnostics) -> Vec<Overlay> {
    match &node.value {
        Value::Map(entries) => entries.iter().filter_map(|entry| overlay(entry, diagnostics)).collect(),
        Value::Null | Value::Bad => Vec::new(),
        _ => {
            diagnostics.push(
                Diagnostic::new(node.span, format!("{who} is a map of paths and values"))
                    .label(format!("expected {{STAGE.KEY: value, ...}}, got {}", node.describe())),
            );
            Vec::new()
        }
    }
}

fn overlay(entry: &Entry, diagnostics: &mut Diagnostics) -> Option<Overlay> {
    let path = parse(&entry.key, entry.key_span, diagnostics)?;
    Some(Overlay { path, value: entry.value.clone() })
}

/// Splits `text`, which stands at `span`, perhaps in quotes.
fn parse(text: &str, span: Span, diagnostics: &mut Diagnostics) -> Option<Vec<Segment>> {
    // In a quoted key the text begins one byte later; with escapes inside, spans are only near.
    let quoted = usize::from(span.end - span.start == text.len() + 2);
    let mut start = span.start + quoted;
    let mut path = Vec::new();
    for part in text.split('.') {
        path.push(Segment { text: part.to_owned(), span: Span { start, end: start + part.len(), ..span } });
        start += part.len() + 1;
    }
    let help = "a path is `vars.NAME`, `data.NAME.KEY`, `sweep.AXIS` or `STAGE.KEY...`";
    let shortest = if path[0].text == "data" { 3 } else { 2 };
    if path.iter().any(|s| s.text.is_empty()) || path.len() < shortest || path.len() > LONGEST {
        diagnostics.push(Diagnostic::new(span, format!("`{text}` is not a path")).help(help));
        return None;
    }
    Some(path)
}

/// `PATH=VALUE` of the command line; the value by YAML's rules.
pub fn set(argument: &str, diagnostics: &mut Diagnostics) -> Option<Overlay> {
    let file = diagnostics.sources.add("--set", argument);
    let whole = Span { file, start: 0, end: argument.len() };
    let Some((path, value)) = argument.split_once('=') else {
        diagnostics
            .push(Diagnostic::new(whole, "there is no `=`").help("write --set PATH=VALUE, such as train.steps=20"));
        return None;
    };
    let end = path.len();
    let path = parse(path.trim_end(), Span { file, start: 0, end: path.trim_end().len() }, diagnostics);
    let mut value = yaml::parse(value, file, end + 1, diagnostics)?;
    if value.span.start == value.span.end {
        value.span = Span { file, start: 0, end };
    }
    Some(Overlay { path: path?, value })
}
