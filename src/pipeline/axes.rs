//! The axes of an experiment and which of their combinations are points.

use std::collections::BTreeSet;

use super::diagnostics::{Diagnostic, Diagnostics, suggest};
use super::source::Span;
use super::spec::{VARIANT, shown};
use super::tree::{Entry, Node, Value};

/// More combinations must be sampled.
const MAX_POINTS: usize = 4096;

#[derive(Clone, Debug)]
pub struct Axis {
    pub name: String,
    pub span: Span,
    pub labels: Vec<Label>,
}

#[derive(Clone, Debug)]
pub struct Label {
    pub text: String,
    /// What `${sweep.AXIS}` stands for; for a variant its name.
    pub value: Node,
}

impl Axis {
    pub fn label(&self, text: &str) -> Option<usize> {
        self.labels.iter().position(|label| label.text == text)
    }
}

/// A label index for every axis.
pub type Point = Vec<usize>;

/// The axis that `variants` makes.
pub fn variants(entry: &Entry, variants: &[Entry], diagnostics: &mut Diagnostics) -> Option<Axis> {
    if variants.is_empty() {
        diagnostics.push(Diagnostic::new(entry.key_span, "there are no variants").help("remove `variants`"));
        return None;
    }
    let mut labels = Vec::new();
    for variant in variants {
        if is_label(&variant.key) {
            let value = Node::new(Value::Text(variant.key.clone()), variant.key_span);
            labels.push(Label { text: variant.key.clone(), value });
        } else {
            diagnostics.push(bad_label(variant.key_span, &variant.key));
        }
    }
    let whole = labels.len() == variants.len();
    whole.then(|| Axis { name: VARIANT.to_owned(), span: entry.key_span, labels })
}

/// An entry under `sweep`: a list of values, or a map of labels to values. A broken one gives an axis too, so that what
/// uses it is not called wrong.
pub fn sweep(entry: &Entry, diagnostics: &mut Diagnostics) -> Axis {
    let mut labels = sweep_labels(entry, diagnostics);
    if labels.is_empty() {
        labels.push(Label { text: "?".to_owned(), value: Node::new(Value::Bad, entry.value.span) });
    }
    Axis { name: entry.key.clone(), span: entry.key_span, labels }
}

fn sweep_labels(entry: &Entry, diagnostics: &mut Diagnostics) -> Vec<Label> {
    let mut labels: Vec<Label> = Vec::new();
    let mut add = |text: String, span: Span, value: &Node, diagnostics: &mut Diagnostics| {
        if !is_label(&text) {
            diagnostics.push(bad_label(span, &text));
        } else if let Some(first) = labels.iter().find(|l| l.text == text) {
            diagnostics.push(
                Diagnostic::new(span, format!("the axis `{}` has `{text}` twice", entry.key))
                    .label("the second one")
                    .related(first.value.span, "the first one"),
            );
        } else {
            labels.push(Label { text, value: value.clone() });
        }
    };
    match &entry.value.value {
        Value::Seq(items) => {
            for item in items {
                match item.scalar_text() {
                    Some(text) => add(text, item.span, item, diagnostics),
                    None if matches!(item.value, Value::Bad) => {}
                    None => {
                        diagnostics.push(
                            Diagnostic::new(item.span, "a value of an axis needs a label")
                                .label(format!("expected a number or a word, got {}", item.describe()))
                                .help(format!("write `{}: {{LABEL: value, ...}}`", entry.key)),
                        );
                    }
                }
            }
        }
        Value::Map(entries) => {
            for value in entries {
                add(value.key.clone(), value.key_span, &value.value, diagnostics);
            }
        }
        Value::Bad => {}
        _ => {
            diagnostics.push(
                Diagnostic::new(entry.value.span, format!("the axis `{}` is a list or a map", entry.key))
                    .label(format!("expected [value, ...] or {{LABEL: value, ...}}, got {}", entry.value.describe())),
            );
        }
    }
    let written = matches!(&entry.value.value, Value::Seq(items) if items.is_empty())
        || matches!(&entry.value.value, Value::Map(entries) if entries.is_empty());
    if written {
        diagnostics.push(Diagnostic::new(entry.key_span, format!("the axis `{}` has no values", entry.key)));
    }
    labels
}

fn is_label(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 100
        && !text.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, ',' | '=' | '$' | '{' | '}'))
}

fn bad_label(span: Span, text: &str) -> Diagnostic {
    Diagnostic::new(span, format!("`{}` cannot be a label", shown(text)))
        .label("labels stand in addresses: no spaces, `,`, `=`, `$` or braces")
        .help("give the value a label: `AXIS: {LABEL: value}`")
}

/// What `select` says.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Axes that go in step.
    zip: Vec<Vec<usize>>,
    exclude: Vec<Pattern>,
    add: Vec<Pattern>,
    sample: Option<(usize, u64)>,
}

/// Allowed labels per axis; every label where None.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Option<BTreeSet<usize>>>);

impl Pattern {
    pub fn fits(&self, point: &[usize]) -> bool {
        self.0.iter().zip(point).all(|(allowed, label)| allowed.as_ref().is_none_or(|a| a.contains(label)))
    }
}

/// Reads `select`.
pub fn selection(node: &Node, axes: &[Axis], diagnostics: &mut Diagnostics) -> Option<Selection> {
    const KEYS: [&str; 4] = ["exclude", "add", "zip", "sample"];
    let Value::Map(entries) = &node.value else {
        if !matches!(node.value, Value::Bad | Value::Null) {
            diagnostics.push(
                Diagnostic::new(node.span, "`select` is a map")
                    .label(format!("expected exclude, add, zip or sample, got {}", node.describe())),
            );
        }
        return None;
    };
    let mut selection = Selection::default();
    for entry in entries {
        match entry.key.as_str() {
            "exclude" => selection.exclude = patterns(&entry.value, axes, diagnostics),
            "add" => selection.add = patterns(&entry.value, axes, diagnostics),
            "zip" => selection.zip = zip(&entry.value, axes, diagnostics),
            "sample" => selection.sample = sample(&entry.value, diagnostics),
            key => {
                let diagnostic = Diagnostic::new(entry.key_span, format!("unknown key `{}`", shown(key)));
                diagnostics.push(diagnostic.label("not a key of `select`").nearest(key, KEYS));
            }
        }
    }
    Some(selection)
}

fn patterns(node: &Node, axes: &[Axis], diagnostics: &mut Diagnostics) -> Vec<Pattern> {
    match &node.value {
        Value::Seq(items) => items.iter().filter_map(|item| pattern(item, axes, diagnostics)).collect(),
        Value::Null | Value::Bad => Vec::new(),
        _ => {
            diagnostics.push(
                Diagnostic::new(node.span, "this is a list of points")
                    .label(format!("expected [{{AXIS: LABEL, ...}}, ...], got {}", node.describe())),
            );
            Vec::new()
        }
    }
}

/// `{AXIS: LABEL or [LABEL, ...], ...}`; None where something in it is wrong.
pub fn pattern(node: &Node, axes: &[Axis], diagnostics: &mut Diagnostics) -> Option<Pattern> {
    let Value::Map(entries) = &node.value else {
        if !matches!(node.value, Value::Bad) {
            diagnostics.push(
                Diagnostic::new(node.span, "a point is a map")
                    .label(format!("expected {{AXIS: LABEL, ...}}, got {}", node.describe())),
            );
        }
        return None;
    };
    let mut pattern = Pattern(vec![None; axes.len()]);
    let mut good = true;
    for entry in entries {
        let Some(axis) = axis(&entry.key, entry.key_span, axes, diagnostics) else {
            good = false;
            continue;
        };
        let one = std::slice::from_ref(&entry.value);
        let items = if let Value::Seq(items) = &entry.value.value { items } else { one };
        let mut labels = BTreeSet::new();
        for item in items {
            match label(item, &axes[axis], diagnostics) {
                Some(label) => {
                    labels.insert(label);
                }
                None => good = false,
            }
        }
        pattern.0[axis] = Some(labels);
    }
    good.then_some(pattern)
}

/// The axis of this name.
pub fn axis(name: &str, span: Span, axes: &[Axis], diagnostics: &mut Diagnostics) -> Option<usize> {
    let found = axes.iter().position(|axis| axis.name == name);
    if found.is_none() {
        let diagnostic = Diagnostic::new(span, format!("there is no axis `{}`", shown(name)));
        diagnostics.push(match suggest(name, axes.iter().map(|a| a.name.as_str())) {
            Some(help) => diagnostic.help(help),
            None => diagnostic.help("axes are made by `variants` and `sweep`"),
        });
    }
    found
}

/// The label that a scalar names.
pub fn label(node: &Node, axis: &Axis, diagnostics: &mut Diagnostics) -> Option<usize> {
    let Some(text) = node.scalar_text() else {
        if !matches!(node.value, Value::Bad) {
            diagnostics.push(
                Diagnostic::new(node.span, format!("this is no label of the axis `{}`", axis.name))
                    .label(format!("expected a label, got {}", node.describe())),
            );
        }
        return None;
    };
    let found = axis.label(&text);
    if found.is_none() {
        diagnostics.push(
            Diagnostic::new(node.span, format!("the axis `{}` has no `{}`", axis.name, shown(&text)))
                .nearest(&text, axis.labels.iter().map(|l| l.text.as_str())),
        );
    }
    found
}

/// A list of axes, or a list of such lists.
fn zip(node: &Node, axes: &[Axis], diagnostics: &mut Diagnostics) -> Vec<Vec<usize>> {
    let help = "write `zip: [AXIS, AXIS]`, or several such lists in a list";
    let Value::Seq(items) = &node.value else {
        diagnostics.push(Diagnostic::new(node.span, "`zip` is a list of axes").help(help));
        return Vec::new();
    };
    let nested = items.iter().any(|item| matches!(item.value, Value::Seq(_)));
    let lists: Vec<&[Node]> = match nested {
        false => vec![items.as_slice()],
        true => items
            .iter()
            .map(|i| if let Value::Seq(l) = &i.value { l.as_slice() } else { std::slice::from_ref(i) })
            .collect(),
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for list in lists {
        let mut group: Vec<usize> = Vec::new();
        for item in list {
            let Some(name) = item.scalar_text() else {
                diagnostics.push(Diagnostic::new(item.span, "this is not an axis").help(help));
                continue;
            };
            let Some(index) = axis(&name, item.span, axes, diagnostics) else { continue };
            if group.contains(&index) || groups.iter().any(|g| g.contains(&index)) {
                diagnostics.push(Diagnostic::new(item.span, format!("the axis `{name}` is zipped twice")));
                continue;
            }
            if let Some(&first) = group.first()
                && axes[first].labels.len() != axes[index].labels.len()
            {
                let (a, b) = (&axes[first], &axes[index]);
                diagnostics.push(
                    Diagnostic::new(item.span, format!("`{}` and `{}` cannot go in step", a.name, b.name))
                        .label(format!("one has {} labels, the other {}", a.labels.len(), b.labels.len())),
                );
                continue;
            }
            group.push(index);
        }
        if group.len() > 1 {
            groups.push(group);
        }
    }
    groups
}

fn sample(node: &Node, diagnostics: &mut Diagnostics) -> Option<(usize, u64)> {
    let help = "write `sample: {n: 20, seed: 1}`";
    let Value::Map(entries) = &node.value else {
        diagnostics.push(Diagnostic::new(node.span, "`sample` is a map").help(help));
        return None;
    };
    let (mut n, mut seed) = (None, 0);
    for entry in entries {
        let number = match &entry.value.value {
            Value::Number { number, .. } => number.as_u64(),
            _ => None,
        };
        match (entry.key.as_str(), number) {
            ("n", Some(value)) if value > 0 => n = Some(value as usize),
            ("seed", Some(value)) => seed = value,
            ("n" | "seed", _) => {
                let least = if entry.key == "n" { 1 } else { 0 };
                diagnostics.push(
                    Diagnostic::new(entry.value.span, format!("`select.sample.{}` is a whole number", entry.key))
                        .label(format!("expected {least} or more, got {}", entry.value.describe())),
                );
                return None;
            }
            (key, _) => {
                let diagnostic = Diagnostic::new(entry.key_span, format!("unknown key `{}`", shown(key)));
                diagnostics.push(diagnostic.label("not a key of `sample`").nearest(key, ["n", "seed"]));
            }
        }
    }
    if n.is_none() {
        diagnostics.push(Diagnostic::new(node.span, "`sample` needs `n`").help(help));
    }
    Some((n?, seed))
}

/// Every point that the file selects, the last axis running fastest. One empty point where there are no axes.
pub fn points(axes: &[Axis], select: Option<&Selection>, diagnostics: &mut Diagnostics) -> Vec<Point> {
    let none = Selection::default();
    let select = select.unwrap_or(&none);
    // Each group of axes runs as one digit of a counter.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in 0..axes.len() {
        if let Some(zipped) = select.zip.iter().find(|g| g.contains(&index)) {
            if zipped.iter().min() == Some(&index) {
                groups.push(zipped.clone());
            }
        } else {
            groups.push(vec![index]);
        }
    }
    let size = |group: &[usize]| axes[group[0]].labels.len() as u128;
    let total = groups.iter().try_fold(1u128, |n, g| n.checked_mul(size(g))).unwrap_or(u128::MAX);
    let point = |mut number: u128| {
        let mut point = vec![0; axes.len()];
        for group in groups.iter().rev() {
            let digit = (number % size(group)) as usize;
            number /= size(group);
            for &axis in group {
                point[axis] = digit;
            }
        }
        point
    };
    let kept = |point: &Point| !select.exclude.iter().any(|p| p.fits(point));
    let first = axes.first().map(|a| a.span);
    let mut points: Vec<Point> = match select.sample {
        Some((n, seed)) => draw(n.min(MAX_POINTS), seed, total, &point, &kept),
        None if total <= MAX_POINTS as u128 => (0..total).map(&point).filter(&kept).collect(),
        None => {
            if let Some(span) = first {
                diagnostics.push(
                    Diagnostic::new(span, format!("the axes have {total} combinations, more than {MAX_POINTS}"))
                        .help("choose with `select: {sample: {n: 100, seed: 1}}` or `zip`"),
                );
            }
            return Vec::new();
        }
    };
    let mut seen: BTreeSet<Point> = points.iter().cloned().collect();
    for pattern in &select.add {
        let choices = pattern.0.iter().zip(axes).map(|(allowed, axis)| match allowed {
            Some(labels) => labels.iter().copied().collect::<Vec<_>>(),
            None => (0..axis.labels.len()).collect(),
        });
        let mut added: Vec<Point> = vec![Vec::new()];
        for choice in choices {
            let longer = |p: &Point| choice.iter().map(|c| [p.as_slice(), &[*c]].concat()).collect::<Vec<_>>();
            added = added.iter().flat_map(longer).take(MAX_POINTS).collect();
        }
        for point in added {
            if points.len() < MAX_POINTS && seen.insert(point.clone()) {
                points.push(point);
            }
        }
    }
    if points.is_empty()
        && let Some(span) = first
    {
        diagnostics.push(Diagnostic::new(span, "`select` leaves no point"));
    }
    points
}

/// `n` different points, the same for the same seed.
fn draw(n: usize, seed: u64, total: u128, point: &dyn Fn(u128) -> Point, kept: &dyn Fn(&Point) -> bool) -> Vec<Point> {
    let hash = |number: u128| {
        let bytes = [seed.to_le_bytes().as_slice(), &number.to_le_bytes()].concat();
        let digest = blake3::hash(&bytes);
        let mut low = [0u8; 16];
        low.copy_from_slice(&digest.as_bytes()[..16]);
        u128::from_le_bytes(low)
    };
    let mut chosen = BTreeSet::new();
    if total <= 1 << 16 {
        let mut ranked: Vec<u128> = (0..total).filter(|number| kept(&point(*number))).collect();
        ranked.sort_by_key(|number| hash(*number));
        chosen.extend(ranked.into_iter().take(n));
    } else {
        // The grid is far larger than the sample: draw until there are enough, in bounded time.
        for counter in 0..64 * n as u128 {
            let number = hash(counter) % total;
            if chosen.len() < n && kept(&point(number)) {
                chosen.insert(number);
            }
        }
    }
    chosen.into_iter().map(point).collect()
}

/// Points that fit one of `--only`'s patterns; all without any.
pub fn only(points: &[Point], patterns: &[String], axes: &[Axis], diagnostics: &mut Diagnostics) -> Vec<Point> {
    if patterns.is_empty() {
        return points.to_vec();
    }
    let mut read = Vec::new();
    for text in patterns {
        let file = diagnostics.sources.add("--only", text.as_str());
        let mut pattern = Pattern(vec![None; axes.len()]);
        let mut start = 0;
        let mut good = true;
        for pair in text.split(',') {
            let span = Span { file, start, end: start + pair.len() };
            start += pair.len() + 1;
            let Some((name, value)) = pair.split_once('=') else {
                diagnostics.push(Diagnostic::new(span, "there is no `=`").help("write --only AXIS=LABEL,AXIS=LABEL"));
                good = false;
                continue;
            };
            let place = Span { end: span.start + name.len(), ..span };
            let Some(index) = axis(name.trim(), place, axes, diagnostics) else {
                good = false;
                continue;
            };
            let value_span = Span { start: span.start + name.len() + 1, ..span };
            let node = Node::new(Value::Text(value.trim().to_owned()), value_span);
            match label(&node, &axes[index], diagnostics) {
                Some(label) => {
                    pattern.0[index].get_or_insert_default().insert(label);
                }
                None => good = false,
            }
        }
        if good {
            read.push((pattern, file, text.len()));
        }
    }
    let mut wanted = Vec::new();
    for point in points {
        if read.iter().any(|(p, ..)| p.fits(point)) {
            wanted.push(point.clone());
        }
    }
    for (pattern, file, end) in &read {
        if !points.iter().any(|p| pattern.fits(p)) {
            let span = Span { file: *file, start: 0, end: *end };
            diagnostics
                .push(Diagnostic::new(span, "no point of the pipeline is like this").help("`select` leaves it out"));
        }
    }
    wanted
}
