//! References between stages and to data, taken apart.

use super::axes;
use super::diagnostics::{Diagnostic, Diagnostics};
use super::names::shown;
use super::source::Span;
use super::spec::Spec;
use super::tree::{Node, Value};
use crate::stages::Kind;

/// An edge to a stage, before points are known.
#[derive(Clone, Debug)]
pub struct StageLink {
    pub slot: String,
    pub target: String,
    /// Axis -> label, for axes that are pinned.
    pub at: Vec<(usize, usize)>,
    pub checkpoint: String,
    pub span: Span,
}

/// An edge to a data set.
#[derive(Clone, Debug)]
pub struct DataLink {
    pub slot: String,
    pub name: String,
    /// `NAME.holdout` was written.
    pub holdout: bool,
    pub span: Span,
}

/// Kinds of stages that a field takes.
fn takes(kind: Kind, slot: &str) -> &'static [Kind] {
    use Kind::{Download, Eval, Lora, Quantize, Sft, Split, Train};
    match (kind, slot.split('.').next().unwrap_or(slot)) {
        (Kind::Report, _) => &[Eval, Train, Sft],
        (Split, _) => &[Download],
        (Lora, "init") => &[Download, Lora, Sft, Train],
        (Quantize | Lora, _) => &[Download, Quantize, Sft, Train],
        _ => &[Download, Quantize, Lora, Sft, Train],
    }
}

/// A stage's id, or `{stage, at, checkpoint}`.
pub fn stage(spec: &Spec, kind: Kind, slot: &str, node: &Node, diagnostics: &mut Diagnostics) -> Option<StageLink> {
    const KEYS: [&str; 3] = ["stage", "at", "checkpoint"];
    let mut link = StageLink {
        slot: slot.to_owned(),
        target: String::new(),
        at: Vec::new(),
        checkpoint: "last".to_owned(),
        span: node.span,
    };
    let mut target = node;
    if let Value::Map(entries) = &node.value {
        let Some(named) = node.get("stage") else {
            diagnostics
                .push(Diagnostic::new(node.span, "this reference names no stage").help("write {stage: ID, ...}"));
            return None;
        };
        target = named;
        let mut good = true;
        for entry in entries {
            match entry.key.as_str() {
                "stage" => {}
                "at" => good &= at(spec, &entry.value, &mut link, diagnostics),
                "checkpoint" => match checkpoint(&entry.value) {
                    Some(text) => link.checkpoint = text,
                    None => {
                        good = false;
                        diagnostics.push(
                            Diagnostic::new(entry.value.span, "this is no checkpoint")
                                .label(format!("expected last, best, init or a step, got {}", entry.value.describe())),
                        );
                    }
                },
                key => {
                    good = false;
                    let diagnostic = Diagnostic::new(entry.key_span, format!("unknown key `{}`", shown(key)));
                    diagnostics.push(diagnostic.label("not a key of a reference").nearest(key, KEYS));
                }
            }
        }
        if !good {
            return None;
        }
    }
    link.span = target.span;
    let Some(id) = target.scalar_text() else {
        if !matches!(target.value, Value::Bad) {
            let text = format!("expected a stage's id, got {}", target.describe());
            diagnostics.push(Diagnostic::new(target.span, "this names no stage").label(text));
        }
        return None;
    };
    link.target = id;
    let found = known(spec, &link.target, target, diagnostics)?;
    let allowed = takes(kind, slot);
    if !allowed.contains(&found) {
        let names: Vec<&str> = allowed.iter().map(|k| k.name()).collect();
        diagnostics.push(
            Diagnostic::new(target.span, format!("`{}` is a `{}` stage", link.target, found.name()))
                .label(format!("expected a stage of kind {}", names.join(", "))),
        );
        return None;
    }
    let offered: &[&str] = match found {
        Kind::Lora => &["last", "init"],
        Kind::Train | Kind::Sft => &["last", "best"],
        _ => &["last"],
    };
    let step = found == Kind::Train && link.checkpoint.parse::<u64>().is_ok();
    if !step && !offered.contains(&link.checkpoint.as_str()) {
        let named = format!("`{}` has no checkpoint `{}`", link.target, link.checkpoint);
        let steps = if found == Kind::Train { " or a kept step" } else { "" };
        let text = format!("a `{}` stage has {}{steps}", found.name(), offered.join(", "));
        diagnostics.push(Diagnostic::new(target.span, named).label(text));
        return None;
    }
    Some(link)
}

/// The kind of a stage that must exist; None where it does not (said) or cannot be looked into (said elsewhere).
fn known(spec: &Spec, id: &str, node: &Node, diagnostics: &mut Diagnostics) -> Option<Kind> {
    if let Some(stage) = spec.stage(id) {
        return Some(stage.kind);
    }
    if !spec.has_stage(id) {
        let diagnostic =
            super::check::with_via(Diagnostic::new(node.span, format!("there is no stage `{}`", shown(id))), node);
        let diagnostic = diagnostic.nearest(id, spec.stages.iter().map(|s| s.id.as_str()));
        diagnostics.push(if spec.is_data(id) { diagnostic.label("this is a data set") } else { diagnostic });
    }
    None
}

fn checkpoint(node: &Node) -> Option<String> {
    match &node.value {
        Value::Text(text) if ["last", "best", "init"].contains(&text.as_str()) => Some(text.clone()),
        Value::Number { number, .. } => number.as_u64().map(|n| n.to_string()),
        _ => None,
    }
}

fn at(spec: &Spec, node: &Node, link: &mut StageLink, diagnostics: &mut Diagnostics) -> bool {
    let Value::Map(entries) = &node.value else {
        if !matches!(node.value, Value::Bad) {
            let text = format!("expected {{AXIS: LABEL}}, got {}", node.describe());
            diagnostics.push(Diagnostic::new(node.span, "`at` is a map").label(text));
        }
        return false;
    };
    let mut good = true;
    for entry in entries {
        let label = axes::axis(&entry.key, entry.key_span, &spec.axes, diagnostics)
            .and_then(|axis| Some((axis, axes::label(&entry.value, &spec.axes[axis], diagnostics)?)));
        match label {
            Some(pair) => link.at.push(pair),
            None => good = false,
        }
    }
    good
}

/// A data set's name, or `NAME.holdout`.
pub fn data(spec: &Spec, slot: &str, node: &Node, diagnostics: &mut Diagnostics) -> Option<DataLink> {
    let text = node.scalar_text()?;
    let (name, holdout) = text.strip_suffix(".holdout").map_or((text.as_str(), false), |name| (name, true));
    let link = DataLink { slot: slot.to_owned(), name: name.to_owned(), holdout, span: node.span };
    if spec.is_data(name) {
        return Some(link);
    }
    match spec.stage(name).map(|stage| stage.kind) {
        Some(Kind::Split) => return Some(link),
        Some(kind) => diagnostics.push(
            Diagnostic::new(node.span, format!("`{name}` is a `{}` stage", kind.name()))
                .label("expected a data set or a `split` stage"),
        ),
        None if spec.has_stage(name) => {}
        None => {
            let diagnostic = Diagnostic::new(node.span, format!("there is no data set `{}`", shown(name)));
            let diagnostic = super::check::with_via(diagnostic, node);
            diagnostics.push(diagnostic.nearest(name, spec.data_names()));
        }
    }
    None
}

/// `needs`: a stage's id or a list of them.
pub fn needs(spec: &Spec, node: &Node, diagnostics: &mut Diagnostics) -> Vec<(String, Span)> {
    let items = match &node.value {
        Value::Seq(items) => items.as_slice(),
        Value::Null | Value::Bad => return Vec::new(),
        _ => std::slice::from_ref(node),
    };
    let mut needs = Vec::new();
    for item in items {
        match item.scalar_text() {
            Some(id) => {
                if known(spec, &id, item, diagnostics).is_some() {
                    needs.push((id, item.span));
                }
            }
            None => {
                let text = format!("expected a stage's id, got {}", item.describe());
                diagnostics.push(Diagnostic::new(item.span, "this names no stage").label(text));
            }
        }
    }
    needs
}
