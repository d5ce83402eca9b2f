//! Values at one point: overlays laid on, `${...}` replaced by typed values, and which axes that took.

use std::collections::BTreeSet;

use super::diagnostics::{Diagnostic, Diagnostics, suggest};
use super::paths::{Overlay, Segment};
use super::source::Span;
use super::spec::{Spec, shown};
use super::template::{Piece, split};
use super::tree::{Entry, Node, Value};

/// Values that one stage may grow to: stops variables that multiply each other.
const MAX_VALUES: usize = 100_000;
/// Variables inside variables.
const MAX_NESTING: usize = 32;

/// Resolves values at one point.
pub struct Resolver<'a> {
    pub spec: &'a Spec,
    pub point: &'a [usize],
    /// Per axis: whether the value depends on it.
    pub touched: Vec<bool>,
    pub used_vars: &'a mut BTreeSet<String>,
    pub diagnostics: &'a mut Diagnostics,
    /// Variables and axes that are being resolved.
    open: Vec<String>,
    left: usize,
}

impl<'a> Resolver<'a> {
    pub fn new(
        spec: &'a Spec,
        point: &'a [usize],
        used_vars: &'a mut BTreeSet<String>,
        diagnostics: &'a mut Diagnostics,
    ) -> Self {
        let touched = vec![false; spec.axes.len()];
        Self { spec, point, touched, used_vars, diagnostics, open: Vec::new(), left: MAX_VALUES }
    }

    /// `base` with what profile, variant and `--set` say about `prefix`; paths that begin with one of `others` are
    /// not for it.
    pub fn layered(&mut self, mut base: Node, prefix: &[&str], others: &[&str]) -> Node {
        let spec = self.spec;
        let fits = |overlay: &'a Overlay| {
            let rest = overlay.within(prefix)?;
            let own = rest.first().is_none_or(|s| !others.contains(&s.text.as_str()));
            own.then_some((rest, overlay))
        };
        let mut chosen: Vec<(&[Segment], &Overlay)> = spec.profile.iter().filter_map(fits).collect();
        if let Some(axis) = spec.variant_axis {
            if spec.variants.iter().flatten().any(|o| fits(o).is_some()) {
                self.touched[axis] = true;
            }
            if let Some(overlays) = spec.variants.get(self.point[axis]) {
                chosen.extend(overlays.iter().filter_map(fits));
            }
        }
        chosen.extend(spec.sets.iter().filter_map(fits));
        for (rest, overlay) in chosen {
            self.put(&mut base, rest, overlay);
        }
        base
    }

    /// Sets the value at `rest` inside `node`.
    fn put(&mut self, node: &mut Node, rest: &[Segment], overlay: &Overlay) {
        let Some((segment, rest)) = rest.split_first() else {
            let mut value = overlay.value.clone();
            if !matches!(node.value, Value::Null) {
                value.via.push((node.span, "overrides this".to_owned()));
            }
            *node = value;
            return;
        };
        if node.text().is_some_and(|text| text.contains("${")) {
            let whole = std::mem::replace(node, Node::new(Value::Bad, segment.span));
            *node = self.interpolate(whole);
        }
        match &mut node.value {
            Value::Map(entries) => {
                if let Some(entry) = entries.iter_mut().find(|e| e.key == segment.text) {
                    self.put(&mut entry.value, rest, overlay);
                } else {
                    entries.push(fresh(segment, rest, overlay));
                }
            }
            Value::Null => *node = Node::map(vec![fresh(segment, rest, overlay)], segment.span),
            Value::Seq(items) => {
                let count = items.len();
                match segment.text.parse::<usize>().ok().and_then(|i| items.get_mut(i)) {
                    Some(item) => self.put(item, rest, overlay),
                    None => self.diagnostics.push(
                        Diagnostic::new(segment.span, format!("the list has no item `{}`", shown(&segment.text)))
                            .label(format!("expected a number below {count}"))
                            .related(node.span, "the list"),
                    ),
                }
            }
            Value::Bad => {}
            Value::Bool(_) | Value::Number { .. } | Value::Text(_) => {
                let what = node.describe();
                self.diagnostics.push(
                    Diagnostic::new(segment.span, format!("there is no `{}` here", shown(&segment.text)))
                        .label("the path goes on below a single value")
                        .related(node.span, format!("this is {what}")),
                );
            }
        }
    }

    /// Replaces every `${...}` in `node`.
    pub fn interpolate(&mut self, node: Node) -> Node {
        let Node { value, span, via } = node;
        let value = match value {
            Value::Text(text) if text.contains("${") => return self.text(&text, span, via),
            Value::Seq(items) => Value::Seq(items.into_iter().map(|item| self.interpolate(item)).collect()),
            Value::Map(entries) => Value::Map(
                entries.into_iter().map(|entry| Entry { value: self.interpolate(entry.value), ..entry }).collect(),
            ),
            other => other,
        };
        Node { value, span, via }
    }

    fn text(&mut self, text: &str, span: Span, via: Vec<(Span, String)>) -> Node {
        let bad = Node::new(Value::Bad, span);
        let pieces = match split(text) {
            Ok(pieces) => pieces,
            Err(rest) => {
                let diagnostic = Diagnostic::new(span, format!("`{}` has no closing brace", shown(&rest)));
                self.diagnostics.push(diagnostic.help("write ${vars.NAME}; a literal `${` is written `$${`"));
                return bad;
            }
        };
        if let [Piece::Reference { written, path }] = pieces.as_slice() {
            let place = self.place(span, written);
            let Some(mut node) = self.reference(written, path, place) else { return bad };
            // A secret stays as it is written.
            if node.span != place {
                node.via.push((place, "used here".to_owned()));
            }
            node.via.extend(via);
            return node;
        }
        let mut whole = String::new();
        for piece in &pieces {
            match piece {
                Piece::Text(text) => whole.push_str(text),
                Piece::Reference { written, path } => {
                    let place = self.place(span, written);
                    let Some(node) = self.reference(written, path, place) else { return bad };
                    let Some(part) = node.scalar_text() else {
                        if !matches!(node.value, Value::Bad) {
                            let what = node.describe();
                            self.diagnostics.push(
                                Diagnostic::new(place, format!("`{}` cannot stand inside a string", shown(written)))
                                    .label(format!("it is {what}"))
                                    .related(node.span, "its value"),
                            );
                        }
                        return bad;
                    };
                    if !self.charge(1 + part.len() / 64, place) {
                        return bad;
                    }
                    whole.push_str(&part);
                }
            }
        }
        Node { value: Value::Text(whole), span, via }
    }

    /// Where `written` stands in the text of `span`.
    fn place(&self, span: Span, written: &str) -> Span {
        let Some(source) = self.diagnostics.sources.get(span.file) else { return span };
        let Some(at) = source.text.get(span.start..span.end).and_then(|text| text.find(written)) else { return span };
        Span { start: span.start + at, end: span.start + at + written.len(), ..span }
    }

    fn charge(&mut self, values: usize, span: Span) -> bool {
        if self.left < values {
            if self.left > 0 {
                self.diagnostics.push(
                    Diagnostic::new(span, format!("more than {MAX_VALUES} values in one stage"))
                        .help("variables that use each other several times multiply"),
                );
            }
            self.left = 0;
            return false;
        }
        self.left -= values;
        true
    }

    /// The value that a `${...}` stands for; None where that was reported.
    fn reference(&mut self, written: &str, path: &[String], span: Span) -> Option<Node> {
        let [root, name, inner @ ..] = path else {
            self.diagnostics.push(
                Diagnostic::new(span, format!("`{}` names nothing", shown(written)))
                    .help("write ${vars.NAME}, ${sweep.AXIS} or ${secrets.NAME}"),
            );
            return None;
        };
        match root.as_str() {
            "vars" => {
                let node = self.variable(name, span)?;
                self.descend(node, inner, written, span)
            }
            "sweep" => {
                let node = self.axis(name, span)?;
                self.descend(node, inner, written, span)
            }
            "secrets" => {
                let good = inner.is_empty()
                    && !name.starts_with(|c: char| c.is_ascii_digit())
                    && !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                if !good || *written != format!("${{secrets.{name}}}") {
                    self.diagnostics.push(
                        Diagnostic::new(span, format!("`{}` names no environment variable", shown(written)))
                            .help("write ${secrets.NAME} without spaces"),
                    );
                    return None;
                }
                Some(Node::new(Value::Text(written.to_owned()), span))
            }
            other => {
                let diagnostic = Diagnostic::new(span, format!("`{}` names nothing", shown(written)));
                self.diagnostics.push(diagnostic.nearest(other, ["vars", "sweep", "secrets"]));
                None
            }
        }
    }

    fn descend(&mut self, mut node: Node, inner: &[String], written: &str, span: Span) -> Option<Node> {
        for part in inner {
            if matches!(node.value, Value::Bad) {
                return None;
            }
            match node.get(part) {
                Some(value) => node = value.clone(),
                None => {
                    let known: Vec<&str> = node.entries().unwrap_or_default().iter().map(|e| e.key.as_str()).collect();
                    let diagnostic = Diagnostic::new(span, format!("`{}` names nothing", shown(written)))
                        .label(format!("there is no `{}`", shown(part)))
                        .related(node.span, "in this value");
                    self.diagnostics.push(match suggest(part, known) {
                        Some(help) => diagnostic.help(help),
                        None => diagnostic,
                    });
                    return None;
                }
            }
        }
        Some(node)
    }

    fn variable(&mut self, name: &str, span: Span) -> Option<Node> {
        let spec = self.spec;
        let Some(entry) = spec.vars.iter().find(|e| e.key == name) else {
            let diagnostic = Diagnostic::new(span, format!("there is no variable `{}`", shown(name)));
            self.diagnostics.push(match suggest(name, spec.vars.iter().map(|e| e.key.as_str())) {
                Some(help) => diagnostic.help(help),
                None => diagnostic.help("declare it under `vars`"),
            });
            return None;
        };
        self.used_vars.insert(name.to_owned());
        let node = self.layered(entry.value.clone(), &["vars", name], &[]);
        self.enter(&format!("vars.{name}"), node, span)
    }

    fn axis(&mut self, name: &str, span: Span) -> Option<Node> {
        let spec = self.spec;
        let Some(index) = spec.axis(name) else {
            let diagnostic = Diagnostic::new(span, format!("there is no axis `{}`", shown(name)));
            self.diagnostics.push(match suggest(name, spec.axes.iter().map(|a| a.name.as_str())) {
                Some(help) => diagnostic.help(help),
                None => diagnostic.help("declare it under `sweep`"),
            });
            return None;
        };
        self.touched[index] = true;
        let value = spec.axes[index].labels[self.point[index]].value.clone();
        self.enter(&format!("sweep.{name}"), value, span)
    }

    /// Interpolates a value that was named `${name}`.
    fn enter(&mut self, name: &str, node: Node, span: Span) -> Option<Node> {
        if self.open.iter().any(|open| open == name) {
            let mut chain = self.open.clone();
            chain.push(name.to_owned());
            self.diagnostics
                .push(Diagnostic::new(span, format!("`{name}` is defined by itself")).label(chain.join(" -> ")));
            return None;
        }
        if self.open.len() >= MAX_NESTING {
            let text = format!("variables inside variables more than {MAX_NESTING} deep");
            self.diagnostics.push(Diagnostic::new(span, text));
            return None;
        }
        if !self.charge(node.size(), span) {
            return None;
        }
        self.open.push(name.to_owned());
        let node = self.interpolate(node);
        self.open.pop();
        Some(node)
    }
}

/// `segment: {rest...: value}`.
fn fresh(segment: &Segment, rest: &[Segment], overlay: &Overlay) -> Entry {
    let value = match rest.split_first() {
        Some((next, rest)) => Node::map(vec![fresh(next, rest, overlay)], next.span),
        None => overlay.value.clone(),
    };
    Entry { key: segment.text.clone(), key_span: segment.span, value }
}
