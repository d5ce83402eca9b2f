//! YAML text -> [`Node`]: exact spans, typed scalars, equal keys refused, merge keys and aliases expanded in bounds.
//!
//! Plain scalars follow YAML 1.2's core schema (`NO` and `1_000` are strings, `1e-5` is a number); a number keeps its
//! text for places where a string is wanted.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span as Place};

use super::diagnostics::{Diagnostic, Diagnostics};
use super::source::Span;
use super::tree::{Entry, Node, Value};

/// Nodes of one text, aliases expanded: stops alias bombs.
const MAX_NODES: usize = 20_000;
/// Nested lists and maps, aliases expanded.
const MAX_DEPTH: usize = 64;

/// Parses one document. Spans are those of `file`, moved by `offset` bytes. None where there is no tree at all.
pub fn parse(text: &str, file: usize, offset: usize, diagnostics: &mut Diagnostics) -> Option<Node> {
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder {
        file,
        offset,
        diagnostics,
        stack: Vec::new(),
        root: None,
        anchors: HashMap::new(),
        nodes: 0,
        documents: 0,
    };
    for next in Parser::new_from_str_with_options(text, options) {
        match next {
            Ok((event, place)) => {
                if !builder.event(event, place) {
                    return None;
                }
            }
            Err(error) => {
                let mut at = error.marker().byte_offset().unwrap_or(0).min(text.len());
                // The parser tells of a tab at the start of what it was reading.
                let tab = error.info().contains("tab").then(|| text[at..].find('\t')).flatten();
                at += tab.unwrap_or(0);
                let end = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
                let span = Span { file, start: offset + at, end: offset + end };
                let message = match error.kind() {
                    ErrorKind::RecursionLimitExceeded => format!("nested more than {MAX_DEPTH} deep"),
                    _ => format!("this is not valid YAML: {}", error.info()),
                };
                let diagnostic = Diagnostic::new(span, message);
                builder.diagnostics.push(match unquoted(text, at) {
                    _ if tab.is_some() => diagnostic.help("YAML indents with spaces: replace the tab by spaces"),
                    true => diagnostic.help("quote `${...}` inside `{...}` and `[...]`: \"${vars.name}\""),
                    false => diagnostic,
                });
                return None;
            }
        }
    }
    let whole = Span { file, start: offset, end: offset };
    Some(builder.root.unwrap_or(Node::new(Value::Null, whole)))
}

/// Whether an unquoted `${` stands on the line of an error or on the one before.
fn unquoted(text: &str, at: usize) -> bool {
    let line = text[..at].matches('\n').count();
    text.lines().skip(line.saturating_sub(1)).take(2).any(|line| {
        line.match_indices("${").any(|(i, _)| {
            let before = &line[..i];
            before.matches('"').count() % 2 == 0 && before.matches('\'').count() % 2 == 0
        })
    })
}

/// A list or map whose end has not come yet.
struct Frame {
    start: Span,
    anchor: usize,
    size: usize,
    depth: usize,
    items: Items,
}

enum Items {
    Seq(Vec<Node>),
    Map { entries: Vec<Entry>, seen: HashMap<String, Span>, key: Option<Key>, merges: Vec<Node> },
}

struct Key {
    text: String,
    span: Span,
    /// An unquoted `<<`.
    merge: bool,
}

/// A finished node with what it counts for.
struct Made {
    node: Node,
    size: usize,
    depth: usize,
    /// Nodes that nobody counted yet: a collection's children were counted when they came, an alias's were not.
    new: usize,
    /// A plain (unquoted) scalar.
    plain: bool,
}

struct Builder<'a> {
    file: usize,
    offset: usize,
    diagnostics: &'a mut Diagnostics,
    stack: Vec<Frame>,
    root: Option<Node>,
    /// Node, size, depth.
    anchors: HashMap<usize, (Node, usize, usize)>,
    nodes: usize,
    documents: usize,
}

impl Builder<'_> {
    fn span(&self, place: Place) -> Span {
        let range = place.byte_range().unwrap_or(0..0);
        Span { file: self.file, start: self.offset + range.start, end: self.offset + range.end.max(range.start) }
    }

    /// False ends the parse.
    fn event(&mut self, event: Event<'_>, place: Place) -> bool {
        let span = self.span(place);
        if let Some(tag) = event.tag()
            && !tag.is_yaml_core_schema()
        {
            let tag = tag.original();
            self.say(Diagnostic::new(span, format!("the tag `{tag}` means nothing here")).help("remove it"));
        }
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    self.say(
                        Diagnostic::new(span, "a second YAML document")
                            .help("one file holds one pipeline: remove `---`"),
                    );
                    return false;
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let string = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let value = if plain && !string { scalar(&text) } else { Value::Text(text.into_owned()) };
                let made = Made { node: Node::new(value, span), size: 1, depth: 0, new: 1, plain: plain && !string };
                return self.finish(made, anchor);
            }
            Event::SequenceStart(_, anchor, _) => return self.open(span, anchor, Items::Seq(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let items = Items::Map { entries: Vec::new(), seen: HashMap::new(), key: None, merges: Vec::new() };
                return self.open(span, anchor, items);
            }
            Event::SequenceEnd | Event::MappingEnd => return self.close(span),
            Event::Alias(id) => {
                let Some((node, size, depth)) = self.anchors.get(&id) else {
                    self.say(Diagnostic::new(span, "this alias stands inside the value that it names"));
                    return false;
                };
                let (size, depth) = (*size, *depth);
                if self.nodes + size > MAX_NODES {
                    return self.too_much(span);
                }
                let mut node = node.clone();
                node.via.push((span, "used here".to_owned()));
                return self.finish(Made { node, size, depth, new: size, plain: false }, 0);
            }
            Event::UnresolvedAlias(name) => {
                self.say(Diagnostic::new(span, format!("there is no anchor `&{name}` before this alias")));
                let made = Made { node: Node::new(Value::Bad, span), size: 1, depth: 0, new: 1, plain: false };
                return self.finish(made, 0);
            }
            _ => {}
        }
        true
    }

    fn say(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    fn too_much(&mut self, span: Span) -> bool {
        self.say(
            Diagnostic::new(span, format!("more than {MAX_NODES} values in one file (aliases expanded)"))
                .help("a pipeline is small; share parts through `include`, `vars` and `defaults`"),
        );
        false
    }

    fn open(&mut self, span: Span, anchor: usize, items: Items) -> bool {
        self.stack.push(Frame { start: span, anchor, size: 1, depth: 0, items });
        if self.stack.len() > MAX_DEPTH {
            self.say(Diagnostic::new(span, format!("nested more than {MAX_DEPTH} deep")));
            return false;
        }
        true
    }

    fn close(&mut self, end: Span) -> bool {
        let Some(frame) = self.stack.pop() else { return true };
        let span = Span { end: end.end.max(frame.start.end), ..frame.start };
        let node = match frame.items {
            Items::Seq(items) => Node::new(Value::Seq(items), span),
            Items::Map { mut entries, mut seen, merges, .. } => {
                for merged in merges {
                    self.merge(merged, &mut entries, &mut seen);
                }
                Node::map(entries, span)
            }
        };
        self.finish(Made { node, size: frame.size, depth: frame.depth + 1, new: 1, plain: false }, frame.anchor)
    }

    /// `<<: *anchor` or `<<: [*a, *b]`: keys that are not there yet.
    fn merge(&mut self, merged: Node, entries: &mut Vec<Entry>, seen: &mut HashMap<String, Span>) {
        let span = merged.span;
        let maps = match merged.value {
            Value::Seq(items) => items,
            _ => vec![merged],
        };
        for map in maps {
            match map.value {
                Value::Map(more) => {
                    for entry in more {
                        if !seen.contains_key(&entry.key) {
                            seen.insert(entry.key.clone(), entry.key_span);
                            entries.push(entry);
                        }
                    }
                }
                Value::Bad => {}
                _ => self.say(
                    Diagnostic::new(span, "`<<` merges maps only")
                        .label(format!("expected a map or a list of maps, got {}", map.describe())),
                ),
            }
        }
    }

    /// Puts a finished node where it belongs.
    fn finish(&mut self, made: Made, anchor: usize) -> bool {
        self.nodes += made.new;
        let span = made.node.span;
        if self.nodes > MAX_NODES {
            return self.too_much(span);
        }
        if self.stack.len() + made.depth > MAX_DEPTH {
            self.say(Diagnostic::new(span, format!("nested more than {MAX_DEPTH} deep")));
            return false;
        }
        if anchor != 0 {
            self.anchors.insert(anchor, (made.node.clone(), made.size, made.depth));
        }
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(made.node);
            return true;
        };
        frame.size += made.size;
        frame.depth = frame.depth.max(made.depth);
        let mut complaint = None;
        match &mut frame.items {
            Items::Seq(items) => items.push(made.node),
            Items::Map { entries, seen, key, merges } => match key.take() {
                None => {
                    let text = made.node.scalar_text().or(matches!(made.node.value, Value::Null).then(String::new));
                    if text.is_none() && !matches!(made.node.value, Value::Bad) {
                        let what = made.node.describe();
                        complaint =
                            Some(Diagnostic::new(span, format!("{what} cannot be a key")).label("expected a name"));
                    }
                    let text = text.unwrap_or_default();
                    *key = Some(Key { merge: made.plain && text == "<<", text, span });
                }
                Some(key) if key.merge => merges.push(made.node),
                Some(key) => match seen.get(&key.text) {
                    Some(first) => {
                        complaint = Some(
                            Diagnostic::new(key.span, format!("the key `{}` stands twice", shorten(&key.text)))
                                .label("the second one")
                                .related(*first, "the first one"),
                        );
                    }
                    None => {
                        seen.insert(key.text.clone(), key.span);
                        entries.push(Entry { key: key.text, key_span: key.span, value: made.node });
                    }
                },
            },
        }
        if let Some(complaint) = complaint {
            self.say(complaint);
        }
        true
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}

/// A plain scalar by YAML 1.2's core schema; what is not finite stays text.
pub fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    match number(text) {
        Some(number) => Value::Number { text: text.to_owned(), number },
        None => Value::Text(text.to_owned()),
    }
}

fn number(text: &str) -> Option<serde_json::Number> {
    let radix = |digits: &str, radix| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u64::from_str_radix(digits, radix).ok().map(Into::into)).flatten()
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(i) => (&unsigned[..i], Some(&unsigned[i + 1..])),
        None => (unsigned, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let exponent_digits = exponent.map(|e| e.strip_prefix(['+', '-']).unwrap_or(e));
    let shape = digits(whole)
        && fraction.is_none_or(digits)
        && !(whole.is_empty() && fraction.is_none_or(str::is_empty))
        && exponent_digits.is_none_or(|e| !e.is_empty() && digits(e));
    if !shape {
        return None;
    }
    if fraction.is_none() && exponent.is_none() {
        let text = text.strip_prefix('+').unwrap_or(text);
        if let Ok(n) = text.parse::<u64>() {
            return Some(n.into());
        }
        if let Ok(n) = text.parse::<i64>() {
            return Some(n.into());
        }
    }
    text.parse::<f64>().ok().and_then(serde_json::Number::from_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> (Option<Node>, Diagnostics) {
        let mut diagnostics = Diagnostics::default();
        let file = diagnostics.sources.add("t", text);
        (parse(text, file, 0, &mut diagnostics), diagnostics)
    }

    #[test]
    fn plain_scalars_follow_the_core_schema() {
        let kind = |text: &str| match scalar(text) {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => format!("bool {value}"),
            Value::Number { number, .. } => format!("number {number}"),
            _ => "text".to_owned(),
        };
        for (text, want) in [
            ("", "null"),
            ("~", "null"),
            ("True", "bool true"),
            ("NO", "text"),
            ("on", "text"),
            ("12", "number 12"),
            ("-3", "number -3"),
            ("+4", "number 4"),
            ("007", "number 7"),
            ("0x1f", "number 31"),
            ("0o17", "number 15"),
            ("1e-5", "number 0.00001"),
            (".5", "number 0.5"),
            ("2.", "number 2.0"),
            ("18446744073709551615", "number 18446744073709551615"),
            ("1_000", "text"),
            ("61e9540", "text"),
            (".", "text"),
            ("-", "text"),
            ("1e", "text"),
            (".inf", "text"),
            ("0x", "text"),
            ("12:30:45", "text"),
            ("1.2.3", "text"),
        ] {
            assert_eq!(kind(text), want, "{text:?}");
        }
    }

    #[test]
    fn spans_are_exact() {
        let text = "é: [a, \"b\\n\"]\nk: {x: 1e-5}\n";
        let (node, diagnostics) = tree(text);
        assert!(diagnostics.is_empty());
        let node = node.unwrap();
        let slice = |span: Span| &text[span.start..span.end];
        let list = node.get("é").unwrap();
        assert_eq!(slice(node.entries().unwrap()[0].key_span), "é");
        assert_eq!(slice(list.span), "[a, \"b\\n\"]");
        let Value::Seq(items) = &list.value else { panic!("{list:?}") };
        assert_eq!((slice(items[1].span), items[1].text()), ("\"b\\n\"", Some("b\n")));
        assert_eq!(slice(node.get("k").unwrap().get("x").unwrap().span), "1e-5");
    }

    #[test]
    fn aliases_and_merge_keys() {
        let (node, diagnostics) =
            tree("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: {\"<<\": 1}\ne: {<<: [{x: 5}, *a]}\n");
        assert!(diagnostics.is_empty(), "{diagnostics}");
        let json = node.unwrap().to_json();
        assert_eq!(json["b"], serde_json::json!({"y": 3, "x": 1}));
        assert_eq!(json["c"]["y"], 2);
        assert_eq!(json["d"], serde_json::json!({"<<": 1}));
        assert_eq!(json["e"], serde_json::json!({"x": 5, "y": 2}));
    }

    #[test]
    fn what_is_no_plain_data_is_refused() {
        for (text, want) in [
            ("a: 1\na: 2", "stands twice"),
            ("? [a]\n: 1", "cannot be a key"),
            ("a: !thing 1", "means nothing here"),
            ("a: 1\n---\nb: 2", "second YAML document"),
            ("a: *b", "no anchor"),
            ("a: {<<: 1}", "merges maps only"),
            ("a: [", "not valid YAML"),
        ] {
            let (_, diagnostics) = tree(text);
            assert!(diagnostics.render(false).contains(want), "{text}: {diagnostics}");
        }
    }
}
