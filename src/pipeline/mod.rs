//! The pipeline language: YAML with byte spans -> includes, profiles, variants, sweeps -> stage instances.
//!
//! The last product is [`Graph`]: every instance with its resolved configuration and the instances it reads.

mod axes;
mod check;
mod diagnostics;
mod draw;
mod evaluate;
mod expand;
mod links;
mod load;
mod names;
mod paths;
mod resolve;
mod schema;
mod sets;
mod source;
mod spec;
mod template;
mod tree;
mod yaml;

pub use diagnostics::{Diagnostic, Diagnostics};
pub use draw::Drawing;
pub use schema::schema;
pub use source::{Source, Sources, Span};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::stages::Kind;

/// What is changed and chosen from outside the file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `PATH=VALUE`, each over everything else.
    pub sets: Vec<String>,
    /// `AXIS=LABEL,...`: only points that fit one of these; every point where empty.
    pub only: Vec<String>,
    /// One of the file's profiles.
    pub profile: Option<String>,
}

impl Options {
    /// The same as arguments of the command line.
    pub fn arguments(&self) -> Vec<String> {
        let profile = self.profile.iter().map(|name| ("--profile", name));
        let sets = self.sets.iter().map(|set| ("--set", set));
        let only = self.only.iter().map(|only| ("--only", only));
        profile.chain(sets).chain(only).flat_map(|(option, value)| [option.to_owned(), value.clone()]).collect()
    }
}

/// Reads a pipeline file and expands it. Executes nothing and asks no network.
///
/// # Errors
/// Everything that is wrong, with its place.
pub fn load(file: &Path, options: &Options) -> Result<Graph, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    match expanded(file, options, &mut diagnostics) {
        Some(graph) if diagnostics.is_empty() => Ok(graph),
        _ => {
            diagnostics.sort();
            Err(diagnostics)
        }
    }
}

/// The names of a file's profiles; none where it cannot be read.
pub fn profiles(file: &Path) -> Vec<String> {
    let mut ignored = Diagnostics::default();
    let root = load::load(file, &mut ignored);
    root.map(|root| spec::read(&root, &Options::default(), &mut ignored).profiles).unwrap_or_default()
}

fn expanded(file: &Path, options: &Options, diagnostics: &mut Diagnostics) -> Option<Graph> {
    let root = load::load(file, diagnostics)?;
    let spec = spec::read(&root, options, diagnostics);
    let points = axes::points(&spec.axes, spec.select.as_ref(), diagnostics);
    let wanted = axes::only(&points, &options.only, &spec.axes, diagnostics);
    let mut evaluator = evaluate::Evaluator::new(&spec, &points, diagnostics);
    let mut units: Vec<evaluate::Unit> = spec.stages.iter().map(|stage| evaluator.stage(stage)).collect();
    let data_used: BTreeSet<String> =
        units.iter().flat_map(evaluate::Unit::made).flat_map(|m| &m.data).map(|l| l.name.clone()).collect();
    for name in data_used.iter().filter(|name| spec.is_data(name)) {
        units.extend(evaluator.data(name));
    }
    // Entries that nobody reads must be right all the same.
    for entry in spec.data.iter().filter(|e| !data_used.contains(&e.key)) {
        evaluator.data(&entry.key);
    }
    let used_vars = std::mem::take(&mut evaluator.used_vars);
    let mut notes = Vec::new();
    unused(&spec, &units, &used_vars, &data_used, &mut notes, diagnostics);
    let order = expand::order(&units, diagnostics)?;
    if !diagnostics.is_empty() {
        return None;
    }
    let expander = expand::Expander::new(&spec, &units, &order, &points, &wanted, diagnostics);
    let mut instances = expander.run(&order);
    let dropped = expand::drop_unread(&mut instances);
    for (stage, names) in &dropped {
        let (shown, more) = names.split_at(names.len().min(3));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let names = shown.join(", ");
        notes.push(format!("left out, as nothing reads them while others of `{stage}` are read: {names}{more}"));
    }
    let axes = spec.axes.iter().map(|a| (a.name.clone(), a.labels.iter().map(|l| l.text.clone()).collect())).collect();
    let mut graph = Graph { name: spec.name.clone(), file: file.to_path_buf(), instances, axes, notes };
    reports(&mut graph, options);
    Some(equal_variants(graph, &spec))
}

/// Axes that no stage uses (an error unless an override made it so), variables and data that nobody reads (notes).
fn unused(
    spec: &spec::Spec,
    units: &[evaluate::Unit],
    used_vars: &BTreeSet<String>,
    used_data: &BTreeSet<String>,
    notes: &mut Vec<String>,
    diagnostics: &mut Diagnostics,
) {
    if !diagnostics.is_empty() {
        // What a broken stage would have used is not known.
        return;
    }
    let touched: BTreeSet<usize> = units.iter().flat_map(evaluate::Unit::touched).collect();
    for (index, axis) in spec.axes.iter().enumerate().filter(|(i, _)| !touched.contains(i)) {
        let name = &axis.name;
        if spec.is_changed() {
            notes.push(format!("the axis `{name}` changes nothing any more: a profile or --set replaced what used it"));
            continue;
        }
        let diagnostic = Diagnostic::new(axis.span, format!("no stage uses the axis `{name}`"));
        diagnostics.push(if spec.variant_axis == Some(index) {
            diagnostic.help("give the variants paths to change: {STAGE.KEY: value}")
        } else {
            diagnostic.help(format!("use it as \"${{sweep.{name}}}\", or remove it"))
        });
    }
    for overlay in spec.sets.iter().filter(|o| o.path[0].text == "data" && !used_data.contains(&o.path[1].text)) {
        notes.push(format!(
            "{}: nothing uses the data set `{}`",
            diagnostics.sources.place(overlay.span()),
            overlay.path[1].text
        ));
    }
    for overlay in spec.sets.iter().filter(|o| o.path[0].text == "vars" && !used_vars.contains(&o.path[1].text)) {
        notes.push(format!(
            "{}: nothing uses the variable `{}`",
            diagnostics.sources.place(overlay.span()),
            overlay.path[1].text
        ));
    }
    if spec.is_changed() {
        return;
    }
    let vars = spec.vars.iter().filter(|e| !used_vars.contains(&e.key)).map(|e| ("variable", e));
    let data = spec.data.iter().filter(|e| !used_data.contains(&e.key)).map(|e| ("data set", e));
    for (what, entry) in vars.chain(data) {
        notes.push(format!("{}: nothing uses the {what} `{}`", diagnostics.sources.place(entry.key_span), entry.key));
    }
}

/// Tells reports how they were asked for, and notes those whose baseline is not among what they gather.
fn reports(graph: &mut Graph, options: &Options) {
    let arguments = options.arguments();
    for index in 0..graph.instances.len() {
        if graph.instances[index].kind != Kind::Report {
            continue;
        }
        graph.notes.extend(without_baseline(graph, &graph.instances[index]));
        if let (serde_json::Value::Object(config), false) = (&mut graph.instances[index].config, arguments.is_empty()) {
            config.insert("pipeline".to_owned(), serde_json::json!({ "arguments": arguments }));
        }
    }
}

fn without_baseline(graph: &Graph, report: &Instance) -> Option<String> {
    let text = |key: &str| report.config.get(key).and_then(serde_json::Value::as_str);
    let (rows, baseline) = (text("rows")?, text("baseline")?);
    let gathered = report.inputs.iter().filter_map(|edge| graph.instances.get(edge.from)?.point.get(rows));
    let labels: BTreeSet<&String> = gathered.collect();
    let other = labels.first().filter(|_| !labels.iter().any(|label| *label == baseline))?;
    let stage = &report.stage;
    Some(format!(
        "`{stage}` compares with {rows}={baseline}, which is left out here, so it compares nothing: add --only \
         {rows}={baseline}, or choose another with --set {stage}.baseline={other}"
    ))
}

/// Notes variants that came out as the same experiment.
fn equal_variants(mut graph: Graph, spec: &spec::Spec) -> Graph {
    let Some(axis) = spec.variant_axis.map(|a| &spec.axes[a]) else { return graph };
    let first = graph.first_equal();
    let mut kinds: BTreeMap<Vec<usize>, Vec<&str>> = BTreeMap::new();
    for label in &axis.labels {
        let of = |i: &&usize| graph.instances[**i].point.get(spec::VARIANT) == Some(&label.text);
        let all: Vec<usize> = (0..graph.instances.len()).collect();
        let mut classes: Vec<usize> = all.iter().filter(of).map(|i| first[*i]).collect();
        classes.sort_unstable();
        if !classes.is_empty() {
            kinds.entry(classes).or_default().push(&label.text);
        }
    }
    for equal in kinds.values().filter(|labels| labels.len() > 1) {
        let why = if spec.sets.is_empty() { "" } else { " (see --set)" };
        graph.notes.push(format!("the variants {} are the same experiment{why}", equal.join(", ")));
    }
    graph
}

/// The whole experiment, expanded: instances in a topological order (inputs come first).
#[derive(Clone, Debug)]
pub struct Graph {
    pub name: String,
    /// The pipeline file.
    pub file: PathBuf,
    pub instances: Vec<Instance>,
    /// Axis name -> its labels in order.
    pub axes: BTreeMap<String, Vec<String>>,
    /// What the user should know: dropped instances, equal variants, ...
    pub notes: Vec<String>,
}

impl Graph {
    /// For each instance the first one that does the same work on the same inputs; itself where there is none.
    /// Equal work is done once, though each instance keeps its name.
    pub fn first_equal(&self) -> Vec<usize> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut first: Vec<usize> = Vec::with_capacity(self.instances.len());
        for (index, instance) in self.instances.iter().enumerate() {
            let mut key = format!("{:?} {}", instance.kind, instance.config);
            for edge in &instance.inputs {
                let from = first.get(edge.from).copied().unwrap_or(edge.from);
                key += &format!("|{} {from} {} {:?}", edge.slot, edge.checkpoint, edge.part);
                if instance.kind == Kind::Report {
                    // Reports print the names of what they gather.
                    key += &format!(" {}", edge.from);
                }
            }
            first.push(*seen.entry(key).or_insert(index));
        }
        first
    }
}

/// One stage at one point of the axes it uses.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The stage's id (`train`); implicit data stages are called `data.NAME.download` and `data.NAME`.
    pub stage: String,
    pub kind: Kind,
    /// Axis -> label, only the axes this stage depends on.
    pub point: BTreeMap<String, String>,
    /// The typed configuration with every default filled in, as `stages::KIND::Config` decodes it. Stage
    /// references hold their slot's name.
    pub config: serde_json::Value,
    pub inputs: Vec<Edge>,
    /// Indices of instances that must come first without handing on data.
    pub needs: Vec<usize>,
    pub resources: Resources,
}

impl Instance {
    /// `train@seed=1,variant=nvfp4-aqn`, or just `train`.
    pub fn name(&self) -> String {
        if self.point.is_empty() {
            return self.stage.clone();
        }
        let point: Vec<String> = self.point.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
        format!("{}@{}", self.stage, point.join(","))
    }
}

/// An input of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The path of the field in the configuration: `model`, `policy`, `data.0`, `gather.2`.
    pub slot: String,
    /// Index into [`Graph::instances`].
    pub from: usize,
    /// `last`, `best` or a step number.
    pub checkpoint: String,
    /// For data: `train`, `holdout` or `all`.
    pub part: Option<String>,
}

/// What a scheduler must set aside. Never part of a fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    pub gpus: u32,
    pub cpus: u32,
    /// `16GiB` and the like.
    pub memory: Option<String>,
    /// `HH:MM:SS` or minutes, for a cluster's scheduler.
    pub time: Option<String>,
    pub partition: Option<String>,
}
