//! A tree against the JSON Schema of what it should be: keys, types, choices and ranges, every error at once.
//!
//! The schemas come from the stages' own configuration types, so a key, its range and its default stand once.

use serde_json::{Map, Number, Value as Json};

use super::diagnostics::{Diagnostic, Diagnostics};
use super::names::shown;
use super::source::Span;
use super::tree::{Node, Value};

/// A reference found on the way: a field whose schema says `x-qerl`.
#[derive(Clone, Debug)]
pub struct Found {
    /// The field's path in the configuration.
    pub slot: String,
    pub what: Referred,
    pub node: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referred {
    Stage,
    Data,
}

/// Checks trees against one schema.
pub struct Checker<'a> {
    /// Holds `$defs`.
    root: &'a Json,
    /// What the paths in messages begin with.
    name: &'a str,
    /// Where a key is missing from the whole.
    place: Span,
    diagnostics: &'a mut Diagnostics,
    pub found: Vec<Found>,
    /// Whether everything was as it should be.
    pub good: bool,
}

impl<'a> Checker<'a> {
    pub fn new(root: &'a Json, name: &'a str, place: Span, diagnostics: &'a mut Diagnostics) -> Self {
        Self { root, name, place, diagnostics, found: Vec::new(), good: true }
    }

    /// The JSON that `node` stands for, as far as it is right. References become their slots, data sets stay names.
    pub fn check(&mut self, node: &Node) -> Json {
        self.value(node, self.root, "")
    }

    fn value(&mut self, node: &Node, schema: &'a Json, path: &str) -> Json {
        let schema = self.follow(schema);
        if matches!(node.value, Value::Bad) {
            self.good = false;
            return Json::Null;
        }
        if let Some(what) = schema.get("x-qerl").and_then(Json::as_str) {
            return self.reference(node, path, what);
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(branches) = schema.get(word).and_then(Json::as_array) {
                return self.branches(node, schema, branches, path);
            }
        }
        if let Some(choices) = choices(schema) {
            return self.choice(node, schema, &choices, path);
        }
        let types = types(schema);
        if types.is_empty() {
            return node.to_json();
        }
        if matches!(node.value, Value::Null) && types.contains(&"null") {
            return Json::Null;
        }
        let wanted = types.iter().copied().find(|t| *t != "null").unwrap_or("null");
        match (wanted, &node.value) {
            ("object", Value::Map(_)) => self.object(node, schema, path),
            ("array", Value::Seq(items)) => self.array(node, items, schema, path),
            ("string", Value::Text(text) | Value::Number { text, .. }) => Json::String(text.clone()),
            ("string", Value::Bool(value)) => Json::String(value.to_string()),
            ("boolean", Value::Bool(value)) => Json::Bool(*value),
            ("integer", Value::Number { number, .. }) => match whole(number) {
                Some(number) if in_range(&number, schema) => Json::Number(number),
                _ => self.wrong(node, schema, path),
            },
            ("number", Value::Number { number, .. }) if in_range(number, schema) => Json::Number(number.clone()),
            _ => self.wrong(node, schema, path),
        }
    }

    /// Follows `$ref`s; schemars makes no cycles of them, and a bound makes sure.
    fn follow(&self, mut schema: &'a Json) -> &'a Json {
        for _ in 0..16 {
            let Some(name) = schema.get("$ref").and_then(Json::as_str).and_then(|r| r.strip_prefix("#/$defs/")) else {
                return schema;
            };
            match self.root.get("$defs").and_then(|d| d.get(name)) {
                Some(next) => schema = next,
                None => return schema,
            }
        }
        schema
    }

    fn branches(&mut self, node: &Node, schema: &'a Json, branches: &'a [Json], path: &str) -> Json {
        let branches: Vec<&Json> = branches.iter().map(|b| self.follow(b)).collect();
        let is_null = |b: &&Json| types(b) == ["null"];
        if matches!(node.value, Value::Null) && branches.iter().any(is_null) {
            return Json::Null;
        }
        let branches: Vec<&Json> = branches.into_iter().filter(|b| !is_null(b)).collect();
        if branches.iter().all(|b| choices(b).is_some()) {
            let all: Vec<&str> = branches.iter().filter_map(|b| choices(b)).flatten().collect();
            return self.choice(node, schema, &all, path);
        }
        if let [only] = branches.as_slice() {
            return self.value(node, only, path);
        }
        match branches.iter().find(|b| self.shape_fits(node, b)) {
            Some(branch) => self.value(node, branch, path),
            None => self.wrong(node, schema, path),
        }
    }

    fn shape_fits(&self, node: &Node, schema: &Json) -> bool {
        if schema.get("x-qerl").is_some() {
            return matches!(node.value, Value::Text(_) | Value::Map(_));
        }
        let types = types(schema);
        match node.value {
            Value::Null => types.contains(&"null"),
            Value::Bool(_) => types.contains(&"boolean"),
            Value::Number { .. } => types.contains(&"number") || types.contains(&"integer"),
            Value::Text(_) => types.contains(&"string"),
            Value::Seq(_) => types.contains(&"array"),
            Value::Map(_) => types.contains(&"object"),
            Value::Bad => true,
        }
    }

    fn reference(&mut self, node: &Node, path: &str, what: &str) -> Json {
        let what = if what == "data" { Referred::Data } else { Referred::Stage };
        let text = match what {
            Referred::Data => node.scalar_text(),
            Referred::Stage => Some(path.to_owned()),
        };
        let fits = match what {
            Referred::Stage => node.scalar_text().is_some() || matches!(node.value, Value::Map(_)),
            Referred::Data => text.is_some(),
        };
        if !fits {
            self.good = false;
            let (wanted, field) = (
                match what {
                    Referred::Stage => "a stage's id, or {stage: ID, at: {AXIS: LABEL}, checkpoint: last}",
                    Referred::Data => "the name of a data set",
                },
                self.full(path),
            );
            self.complain(node, format!("`{field}` is not {}", wanted.split(',').next().unwrap_or(wanted)), wanted);
            return Json::Null;
        }
        self.found.push(Found { slot: path.to_owned(), what, node: node.clone() });
        text.map_or(Json::Null, Json::String)
    }

    fn choice(&mut self, node: &Node, schema: &Json, choices: &[&str], path: &str) -> Json {
        if let Some(text) = node.scalar_text() {
            if choices.contains(&text.as_str()) {
                return Json::String(text);
            }
            self.good = false;
            let message = format!("`{}` cannot be `{}`", self.full(path), shown(&text));
            let diagnostic = with_via(Diagnostic::new(node.span, message), node)
                .label(format!("expected one of: {}", choices.join(", ")));
            self.diagnostics.push(match super::diagnostics::nearest(&shown(&text), choices.iter().copied()) {
                Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
                None => diagnostic,
            });
            return Json::Null;
        }
        self.wrong(node, schema, path)
    }

    fn object(&mut self, node: &Node, schema: &'a Json, path: &str) -> Json {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Json::as_object);
        let known = properties.unwrap_or(&empty);
        let more = schema.get("additionalProperties").unwrap_or(&Json::Bool(true));
        let mut object = Map::new();
        // Keys that an unknown one was probably meant to be: they are not missing too.
        let mut meant = Vec::new();
        for entry in node.entries().unwrap_or_default() {
            let inner = join(path, &entry.key);
            let field = properties.and_then(|p| p.get(&entry.key));
            let value = match (field, more) {
                (Some(field), _) => self.value(&entry.value, field, &inner),
                (None, Json::Bool(true)) => entry.value.to_json(),
                (None, Json::Object(_)) => self.value(&entry.value, more, &inner),
                (None, _) => {
                    self.good = false;
                    let at = match path {
                        "" => format!("`{}`", self.name),
                        path => format!("`{}`", self.full(path)),
                    };
                    let message = format!("{at} has no key `{}`", shown(&entry.key));
                    let diagnostic = Diagnostic::new(entry.key_span, message);
                    let keys = known.keys().map(String::as_str);
                    meant.extend(super::diagnostics::nearest(&shown(&entry.key), keys.clone()));
                    self.diagnostics.push(diagnostic.label("unknown key").nearest(&entry.key, keys));
                    continue;
                }
            };
            object.insert(entry.key.clone(), value);
        }
        for key in schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str) {
            if object.contains_key(key) || node.get(key).is_some() || meant.contains(&key) {
                continue;
            }
            self.good = false;
            let whole = if path.is_empty() { self.name.to_owned() } else { self.full(path) };
            let place = if path.is_empty() { self.place } else { node.span };
            let mut diagnostic = with_via(Diagnostic::new(place, format!("`{whole}` needs `{key}`")), node);
            if let Some(field) = known.get(key) {
                diagnostic = diagnostic.label(format!("expected `{key}`: {}", self.describe(field)));
                if let Some(text) = field.get("description").and_then(Json::as_str) {
                    diagnostic = diagnostic.help(format!("{key}: {}", text.replace('\n', " ")));
                }
            }
            self.diagnostics.push(diagnostic);
        }
        Json::Object(object)
    }

    fn array(&mut self, node: &Node, items: &[Node], schema: &'a Json, path: &str) -> Json {
        let bound = |key: &str| schema.get(key).and_then(Json::as_u64);
        let count = items.len() as u64;
        if bound("minItems").is_some_and(|min| count < min) || bound("maxItems").is_some_and(|max| count > max) {
            return self.wrong(node, schema, path);
        }
        let each = schema.get("items");
        let positions = schema.get("prefixItems").and_then(Json::as_array);
        let mut array = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let inner = join(path, &i.to_string());
            array.push(match positions.and_then(|p| p.get(i)).or(each) {
                Some(schema) => self.value(item, schema, &inner),
                None => item.to_json(),
            });
        }
        Json::Array(array)
    }

    fn wrong(&mut self, node: &Node, schema: &Json, path: &str) -> Json {
        self.good = false;
        let wanted = self.describe(schema);
        let field = if path.is_empty() { self.name.to_owned() } else { self.full(path) };
        let message = format!("`{field}` cannot be {}", node.describe());
        self.complain(node, message, &wanted);
        Json::Null
    }

    fn complain(&mut self, node: &Node, message: String, wanted: &str) {
        let mut diagnostic = with_via(Diagnostic::new(node.span, message), node).label(format!("expected {wanted}"));
        if let Some(text) = node.text() {
            let digits: String = text.chars().filter(|c| *c != '_').collect();
            let number = matches!(super::yaml::scalar(&digits), Value::Number { .. });
            if number && (wanted.contains("number") || wanted.contains("integer")) {
                diagnostic = diagnostic.help(format!("write {digits} (no quotes, no `_`)"));
            }
            if wanted.contains("true or false") && ["yes", "no", "on", "off"].contains(&text.to_lowercase().as_str()) {
                let value = matches!(text.to_lowercase().as_str(), "yes" | "on");
                diagnostic = diagnostic.help(format!("write {value}"));
            }
        }
        if wanted.starts_with("a list") && node.scalar_text().is_some() && diagnostic.help.is_none() {
            let text = node.scalar_text().unwrap_or_default();
            diagnostic = diagnostic.help(format!("write [{}]", shown(&text)));
        }
        self.diagnostics.push(diagnostic);
    }

    /// `an integer of at least 1`, `a list of data sets`, ...
    pub(super) fn describe(&self, schema: &Json) -> String {
        let schema = self.follow_any(schema);
        if let Some(what) = schema.get("x-qerl").and_then(Json::as_str) {
            return if what == "data" { "the name of a data set" } else { "a stage's id" }.to_owned();
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(branches) = schema.get(word).and_then(Json::as_array) {
                let kinds = branches.iter().filter(|b| types(self.follow_any(b)) != ["null"]);
                if let Some(all) = kinds.clone().map(|b| choices(self.follow_any(b))).collect::<Option<Vec<_>>>() {
                    return format!("one of: {}", all.into_iter().flatten().collect::<Vec<_>>().join(", "));
                }
                return kinds.map(|b| self.describe(b)).collect::<Vec<_>>().join(", or ");
            }
        }
        if let Some(choices) = choices(schema) {
            return format!("one of: {}", choices.join(", "));
        }
        let kind = types(schema).into_iter().find(|t| *t != "null").unwrap_or("any value");
        match kind {
            "integer" => format!("an integer{}", range(schema)),
            "number" => format!("a number{}", range(schema)),
            "string" => "a string".to_owned(),
            "boolean" => "true or false".to_owned(),
            "array" => {
                let count =
                    schema.get("minItems").filter(|n| Some(*n) == schema.get("maxItems")).and_then(Json::as_u64);
                let count = count.map(|n| format!(" of {n} items")).unwrap_or_default();
                match schema.get("items") {
                    Some(items) => format!("a list{count}, each {}", self.describe(items)),
                    None => format!("a list{count}"),
                }
            }
            "object" => match schema.get("properties").and_then(Json::as_object) {
                Some(properties) if !properties.is_empty() => {
                    let mut keys: Vec<&str> = properties.keys().map(String::as_str).take(8).collect();
                    if properties.len() > keys.len() {
                        keys.push("...");
                    }
                    format!("a map with {}", keys.join(", "))
                }
                _ => "a map".to_owned(),
            },
            other => other.to_owned(),
        }
    }

    fn follow_any<'b>(&self, schema: &'b Json) -> &'b Json
    where
        'a: 'b,
    {
        let Some(name) = schema.get("$ref").and_then(Json::as_str).and_then(|r| r.strip_prefix("#/$defs/")) else {
            return schema;
        };
        self.root.get("$defs").and_then(|d| d.get(name)).unwrap_or(schema)
    }

    fn full(&self, path: &str) -> String {
        format!("{}.{}", self.name, shown(path))
    }
}

/// Says where an overridden or interpolated value came from.
pub fn with_via(mut diagnostic: Diagnostic, node: &Node) -> Diagnostic {
    for (span, text) in node.via.iter().take(3) {
        diagnostic = diagnostic.related(*span, text.clone());
    }
    diagnostic
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn types(schema: &Json) -> Vec<&str> {
    match schema.get("type") {
        Some(Json::String(one)) => vec![one],
        Some(Json::Array(all)) => all.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The strings that a schema allows, where it lists them.
fn choices(schema: &Json) -> Option<Vec<&str>> {
    if let Some(text) = schema.get("const").and_then(Json::as_str) {
        return Some(vec![text]);
    }
    schema.get("enum").and_then(Json::as_array).map(|all| all.iter().filter_map(Json::as_str).collect())
}

/// The integer that a number is; `2e3` is 2000.
fn whole(number: &Number) -> Option<Number> {
    if number.is_u64() || number.is_i64() {
        return Some(number.clone());
    }
    let value = number.as_f64()?;
    // Above 2^53 a float no longer says which integer was meant.
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then(|| (value as i64).into())
}

fn in_range(number: &Number, schema: &Json) -> bool {
    let Some(value) = number.as_f64() else { return false };
    let bound = |key: &str| schema.get(key).and_then(Json::as_f64);
    // serde refuses what does not fit; u64 numbers above i64 are fine for unsigned fields.
    let unsigned = schema.get("format").and_then(Json::as_str).is_some_and(|f| f.starts_with('u'));
    let fits = match schema.get("format").and_then(Json::as_str) {
        Some("uint32") => value <= f64::from(u32::MAX),
        Some("float") => (value as f32).is_finite(),
        _ => true,
    };
    fits && !(unsigned && value < 0.0)
        && bound("minimum").is_none_or(|min| value >= min)
        && bound("maximum").is_none_or(|max| value <= max)
        && bound("exclusiveMinimum").is_none_or(|min| value > min)
        && bound("exclusiveMaximum").is_none_or(|max| value < max)
}

fn range(schema: &Json) -> String {
    let bound =
        |key: &str| schema.get(key).filter(|v| v.is_number()).map(|v| v.to_string().trim_end_matches(".0").to_owned());
    match (bound("minimum"), bound("maximum"), bound("exclusiveMinimum")) {
        (Some(min), Some(max), _) => format!(" within {min}..{max}"),
        (Some(min), None, _) => format!(" of at least {min}"),
        (None, Some(max), None) => format!(" of at most {max}"),
        (None, Some(max), Some(min)) => format!(" above {min} and at most {max}"),
        (None, None, Some(min)) => format!(" above {min}"),
        (None, None, None) => String::new(),
    }
}
