//! Each stage at every point: its typed configuration, its links, and which axes decided them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::Resources;
use super::axes::Point;
use super::check::{Checker, Found, Referred, with_via};
use super::diagnostics::{Diagnostic, Diagnostics};
use super::links::{self, DataLink, StageLink};
use super::resolve::Resolver;
use super::sets;
use super::source::Span;
use super::spec::{Spec, Stage};
use super::tree::{Node, Value};
use crate::stages::{Kind, download, eval, lora, quantize, report, sft, split, train};

/// What a stage is at some points.
#[derive(Clone, Debug)]
pub struct Made {
    pub config: Json,
    pub stages: Vec<StageLink>,
    pub data: Vec<DataLink>,
    pub needs: Vec<(String, Span)>,
    pub resources: Resources,
    pub parts: Parts,
}

/// What a `split` stage offers.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    pub holdout: bool,
    /// What evaluation on the plain name reads.
    pub eval: &'static str,
}

/// A stage's outcome for the labels that it looked at.
#[derive(Clone, Debug)]
pub struct Case {
    /// A label for every axis that was looked at.
    pub labels: Vec<Option<usize>>,
    /// None: no such stage here, or not a valid one.
    pub made: Option<Made>,
}

/// A stage of the file or of a data set.
#[derive(Clone, Debug)]
pub struct Unit {
    pub name: String,
    pub kind: Kind,
    pub cases: Vec<Case>,
    /// It belongs to a data set.
    pub implicit: bool,
}

impl Unit {
    /// The outcome at a point, or at a projection onto this unit's axes.
    pub fn at(&self, labels: &[Option<usize>]) -> Option<&Made> {
        let fits = |case: &&Case| case.labels.iter().zip(labels).all(|(own, given)| own.is_none() || own == given);
        self.cases.iter().find(fits)?.made.as_ref()
    }

    pub fn made(&self) -> impl Iterator<Item = &Made> {
        self.cases.iter().filter_map(|case| case.made.as_ref())
    }

    /// Axes that decided something.
    pub fn touched(&self) -> impl Iterator<Item = usize> {
        let all = self.cases.iter().flat_map(|c| c.labels.iter().enumerate());
        all.filter(|(_, label)| label.is_some()).map(|(axis, _)| axis)
    }
}

/// Evaluates stages and data sets of one pipeline.
pub struct Evaluator<'a> {
    pub spec: &'a Spec,
    pub points: &'a [Point],
    pub used_vars: BTreeSet<String>,
    pub diagnostics: &'a mut Diagnostics,
    schemas: BTreeMap<Kind, Json>,
    resources: Json,
    entry: Json,
}

impl<'a> Evaluator<'a> {
    pub fn new(spec: &'a Spec, points: &'a [Point], diagnostics: &'a mut Diagnostics) -> Self {
        let schemas = Kind::ALL.into_iter().map(|kind| (kind, kind.schema().to_value())).collect();
        Self {
            spec,
            points,
            used_vars: BTreeSet::new(),
            diagnostics,
            schemas,
            resources: schemars::schema_for!(Resources).to_value(),
            entry: schemars::schema_for!(crate::data::DataEntry).to_value(),
        }
    }

    /// `make` at every point, once for all points that agree in what it looked at.
    fn cases(&mut self, make: &mut dyn FnMut(&mut Resolver<'_>) -> Option<Made>) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for point in self.points {
            let known = |case: &Case| case.labels.iter().zip(point).all(|(l, p)| l.is_none_or(|l| l == *p));
            if cases.iter().any(known) {
                continue;
            }
            let mut resolver = Resolver::new(self.spec, point, &mut self.used_vars, self.diagnostics);
            let made = make(&mut resolver);
            let labels = resolver.touched.iter().zip(point).map(|(touched, label)| touched.then_some(*label)).collect();
            cases.push(Case { labels, made });
        }
        cases
    }

    /// A stage of the file.
    pub fn stage(&mut self, stage: &Stage) -> Unit {
        let schema = self.schemas.remove(&stage.kind).unwrap_or_default();
        let resources = std::mem::take(&mut self.resources);
        let cases = self.cases(&mut |resolver| at_point(resolver, stage, &schema, &resources));
        self.resources = resources;
        self.schemas.insert(stage.kind, schema);
        Unit { name: stage.id.clone(), kind: stage.kind, cases, implicit: false }
    }

    /// The stages of a data set: the `split` that everyone reads, and the download where there is one.
    pub fn data(&mut self, name: &str) -> Vec<Unit> {
        let spec = self.spec;
        let entry = spec.data.iter().find(|e| e.key == name);
        let span = entry.map_or(Span { file: 0, start: 0, end: 0 }, |e| e.key_span);
        let schema = std::mem::take(&mut self.entry);
        let mut downloads = Vec::new();
        let splits = self.cases(&mut |resolver| {
            let base = entry.map_or_else(|| Node::map(Vec::new(), span), |e| e.value.clone());
            let base = match base.value {
                Value::Null => Node::map(Vec::new(), base.span),
                _ => base,
            };
            let node = resolver.layered(base, &["data", name], &[]);
            let node = resolver.interpolate(node);
            let both = sets::stages(name, &node, &schema, resolver.diagnostics);
            let (split, download) = both.map_or((None, None), |(split, download)| (Some(split), download));
            downloads.push(download);
            split
        });
        self.entry = schema;
        let cases = splits.iter().zip(downloads).map(|(s, made)| Case { labels: s.labels.clone(), made }).collect();
        let download = Unit { name: sets::download_name(name), kind: Kind::Download, cases, implicit: true };
        let split = Unit { name: sets::split_name(name), kind: Kind::Split, cases: splits, implicit: true };
        vec![download, split]
    }
}

fn at_point(resolver: &mut Resolver<'_>, stage: &Stage, schema: &Json, resources: &Json) -> Option<Made> {
    let spec = resolver.spec;
    let id = stage.id.as_str();
    let node = resolver.layered(stage.config.clone(), &[id], &["resources", "needs"]);
    let node = resolver.interpolate(node);
    let mut part = |key: &str, own: &Option<Node>| {
        let base = own.clone().unwrap_or_else(|| Node::new(Value::Null, stage.id_span));
        let node = resolver.layered(base, &[id, key], &[]);
        resolver.interpolate(node)
    };
    let resources_node = part("resources", &stage.resources);
    let needs_node = part("needs", &stage.needs);
    if stage.kind == Kind::Report
        && let Some(axis) = resolver.touched.iter().position(|t| *t)
    {
        let name = &spec.axes[axis].name;
        resolver.diagnostics.push(
            Diagnostic::new(stage.id_span, format!("the report `{id}` would differ along the axis `{name}`"))
                .label("a report is made once and gathers over all points")
                .help("take `${...}` and variants' paths out of it"),
        );
    }
    let diagnostics = &mut *resolver.diagnostics;
    let mut checker = Checker::new(schema, id, stage.kind_span, diagnostics);
    let json = checker.check(&node);
    let (mut good, found) = (checker.good, checker.found);
    let (mut stages, mut data) = (Vec::new(), Vec::new());
    for Found { slot, what, node } in found {
        match what {
            Referred::Stage => match links::stage(spec, stage.kind, &slot, &node, diagnostics) {
                Some(link) => stages.push(link),
                None => good = false,
            },
            Referred::Data => match links::data(spec, &slot, &node, diagnostics) {
                Some(link) => data.push(link),
                None => good = false,
            },
        }
    }
    let needs = links::needs(spec, &needs_node, diagnostics);
    let name = format!("{id}.resources");
    let resources = decode_resources(&resources_node, &name, resources, diagnostics)?;
    if !good {
        return None;
    }
    let before = diagnostics.len();
    let mut say = |trouble: Trouble| diagnostics.push(trouble.at(&node, stage));
    let config = match typed(stage.kind, json, spec, &mut say) {
        Ok(config) => config,
        Err(why) => {
            say(Trouble::new("", why));
            return None;
        }
    };
    if diagnostics.len() > before {
        return None;
    }
    let holdout = config.get("holdout").is_some();
    Some(Made { config, stages, data, needs, resources, parts: Parts { holdout, eval: "all" } })
}

fn decode_resources(node: &Node, name: &str, schema: &Json, diagnostics: &mut Diagnostics) -> Option<Resources> {
    if matches!(node.value, Value::Null) {
        return Some(Resources::default());
    }
    let mut checker = Checker::new(schema, name, node.span, diagnostics);
    let json = checker.check(node);
    if !checker.good {
        return None;
    }
    match serde_json::from_value(json) {
        Ok(resources) => Some(resources),
        Err(e) => {
            diagnostics.push(Diagnostic::new(node.span, e.to_string()));
            None
        }
    }
}

/// What is wrong with a configuration that fits its schema.
struct Trouble {
    /// The key it is about.
    key: String,
    message: String,
    hint: Option<String>,
}

impl Trouble {
    fn new(key: &str, message: impl Into<String>) -> Self {
        Self { key: key.to_owned(), message: message.into(), hint: None }
    }

    /// The checks of the stages say `KEY must be ...`.
    fn of(error: &crate::Error) -> Self {
        let message = error.message().to_owned();
        let key = message.split([' ', ':']).next().unwrap_or_default().trim_matches('`').to_owned();
        Self { key, message, hint: error.hint_text().map(str::to_owned) }
    }

    fn at(self, config: &Node, stage: &Stage) -> Diagnostic {
        let mut node = Some(config);
        for part in self.key.split('.') {
            node = node.and_then(|n| n.part(part));
        }
        let place = node.map_or(stage.kind_span, |node| node.span);
        let mut diagnostic = Diagnostic::new(place, format!("`{}`: {}", stage.id, self.message));
        if let Some(node) = node {
            diagnostic = with_via(diagnostic, node);
        }
        match self.hint {
            Some(hint) => diagnostic.help(hint),
            None => diagnostic,
        }
    }
}

/// The configuration with every default filled in.
fn typed(kind: Kind, json: Json, spec: &Spec, say: &mut dyn FnMut(Trouble)) -> Result<Json, String> {
    fn both<T: DeserializeOwned + Serialize>(json: Json) -> Result<(T, Json), String> {
        let config: T = serde_json::from_value(json).map_err(|e| e.to_string())?;
        let json = serde_json::to_value(&config).map_err(|e| e.to_string())?;
        Ok((config, json))
    }
    match kind {
        Kind::Download => {
            let (config, json) = both::<download::Config>(json)?;
            if let Err(why) = sets::check_repo(&config.repo) {
                say(Trouble { hint: Some(sets::REPO_HELP.to_owned()), ..Trouble::new("repo", why) });
            }
            let source = download::Source::parse(&config.repo);
            if !matches!(source, download::Source::Hub(_))
                && let Err(error) = download::check_options(&config)
            {
                say(Trouble::of(&error));
            }
            Ok(json)
        }
        Kind::Split => Ok(both::<split::Config>(json)?.1),
        Kind::Quantize => Ok(both::<quantize::Config>(json)?.1),
        Kind::Lora => {
            let (config, json) = both::<lora::Config>(json)?;
            if let Err(error) = config.check() {
                say(Trouble::of(&error));
            }
            Ok(json)
        }
        Kind::Sft => {
            let (config, json) = both::<sft::Config>(json)?;
            if let Err(error) = config.settings() {
                say(Trouble::of(&error));
            }
            Ok(json)
        }
        Kind::Train => {
            let (config, json) = both::<train::Config>(json)?;
            if let Err(error) = config.settings() {
                say(Trouble::of(&error));
            }
            check_rewards(&config, say);
            Ok(json)
        }
        Kind::Eval => {
            let (config, json) = both::<eval::Config>(json)?;
            check_eval(&config, say);
            Ok(json)
        }
        Kind::Report => {
            let given = |key: &str| json.get(key).is_some();
            let rows_given = given("rows");
            let (config, json) = both::<report::Config>(json)?;
            check_report(&config, rows_given, spec, say);
            Ok(json)
        }
    }
}

fn check_rewards(config: &train::Config, say: &mut dyn FnMut(Trouble)) {
    let known = crate::rl::rewards::Builtin::ALL.map(|(name, _)| name);
    for (name, reward) in &config.rewards {
        if matches!(reward, crate::rl::RewardSpec::Weight(_)) && !known.contains(&name.as_str()) {
            let mut trouble = Trouble::new(&format!("rewards.{name}"), format!("there is no built-in reward `{name}`"));
            trouble.hint = super::diagnostics::suggest(name, known);
            say(trouble);
        }
    }
    if config.rewards.is_empty() {
        say(Trouble::new("rewards", "training needs at least one reward"));
    }
}

fn check_eval(config: &eval::Config, say: &mut dyn FnMut(Trouble)) {
    if config.data.is_empty() {
        say(Trouble::new("data", "there is no data set to evaluate on"));
    }
    if config.temperature == 0.0 && config.samples > 1 {
        say(Trouble {
            hint: Some("set a temperature, such as 0.6, or samples: 1".to_owned()),
            ..Trouble::new("samples", "greedy answers are all the same: samples above 1 need a temperature above 0")
        });
    }
    if config.top_p <= 0.0 {
        say(Trouble::new("top_p", "top_p must be above 0"));
    }
    for (i, k) in config.k.iter().enumerate().filter(|(_, k)| **k == 0 || **k > config.samples) {
        let message = format!("pass@{k} needs 1..={} as k: there are {} samples", config.samples, config.samples);
        say(Trouble::new(&format!("k.{i}"), message));
    }
}

fn check_report(config: &report::Config, rows_given: bool, spec: &Spec, say: &mut dyn FnMut(Trouble)) {
    if config.gather.is_empty() {
        say(Trouble::new("gather", "there is no stage to gather"));
    }
    let names: Vec<&str> = spec.axes.iter().map(|a| a.name.as_str()).collect();
    let mut axis = |key: &str, name: &str| {
        let found = spec.axes.iter().find(|a| a.name == name);
        if found.is_none() {
            let mut trouble = Trouble::new(key, format!("there is no axis `{name}`"));
            trouble.hint = super::diagnostics::suggest(name, names.iter().copied());
            say(trouble);
        }
        found
    };
    let rows = if rows_given { axis("rows", &config.rows) } else { spec.axes.iter().find(|a| a.name == config.rows) };
    if let Some(over) = &config.over {
        axis("over", over);
    }
    if let Some(baseline) = &config.baseline {
        let known: Vec<&str> = rows.iter().flat_map(|a| &a.labels).map(|l| l.text.as_str()).collect();
        if !known.contains(&baseline.as_str()) && (rows.is_some() || !rows_given) {
            let mut trouble =
                Trouble::new("baseline", format!("the axis `{}` has no `{baseline}` to compare with", config.rows));
            trouble.hint = super::diagnostics::suggest(baseline, known);
            say(trouble);
        }
    }
    if let Some(table) = &config.paper
        && !crate::report::PAPER_TABLES.contains(&table.as_str())
    {
        let mut trouble = Trouble::new("paper", format!("there is no paper table `{table}`"));
        trouble.hint = super::diagnostics::suggest(table, crate::report::PAPER_TABLES);
        say(trouble);
    }
}
