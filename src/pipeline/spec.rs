//! The merged map of a pipeline, taken apart: stages, variables, data, axes and the overlays that apply.

use std::collections::{BTreeMap, HashMap};

use super::Options;
use super::axes::{self, Axis, Selection};
use super::diagnostics::{Diagnostic, Diagnostics, suggest};
use super::paths::{self, Overlay};
use super::source::Span;
use super::tree::{Entry, Node, Value};
use crate::data::BUILTINS;
use crate::stages::Kind;

/// The keys of a pipeline file.
pub const KEYS: [&str; 10] =
    ["name", "include", "vars", "data", "defaults", "profiles", "variants", "sweep", "select", "stages"];
const STAGE_KEYS: [&str; 4] = ["id", "run", "resources", "needs"];
/// The axis that `variants` makes.
pub const VARIANT: &str = "variant";
const MAX_STAGES: usize = 1000;

/// A stage as it is written.
#[derive(Clone, Debug)]
pub struct Stage {
    pub id: String,
    pub id_span: Span,
    pub kind: Kind,
    pub kind_span: Span,
    /// Defaults of the kind with the stage's own values on top.
    pub config: Node,
    pub resources: Option<Node>,
    pub needs: Option<Node>,
}

/// A pipeline file's content before anything is resolved.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    pub name: String,
    pub vars: Vec<Entry>,
    pub data: Vec<Entry>,
    pub stages: Vec<Stage>,
    /// Every id that is written, also of stages that are not fit to be looked into.
    ids: HashMap<String, Span>,
    by_id: HashMap<String, usize>,
    pub axes: Vec<Axis>,
    /// Index of the axis `variant`.
    pub variant_axis: Option<usize>,
    pub select: Option<Selection>,
    pub profile: Vec<Overlay>,
    /// In the order of the variant axis' labels.
    pub variants: Vec<Vec<Overlay>>,
    pub sets: Vec<Overlay>,
    /// Names of the file's profiles.
    pub profiles: Vec<String>,
    pub profile_name: Option<String>,
}

impl Spec {
    pub fn stage(&self, id: &str) -> Option<&Stage> {
        self.stages.get(*self.by_id.get(id)?)
    }

    /// Whether a stage of this id is written, however badly.
    pub fn has_stage(&self, id: &str) -> bool {
        self.ids.contains_key(id)
    }

    /// Data names: the file's entries, then the built-in sets.
    pub fn data_names(&self) -> impl Iterator<Item = &str> {
        self.data.iter().map(|e| e.key.as_str()).chain(BUILTINS.iter().map(|b| b.name))
    }

    pub fn is_data(&self, name: &str) -> bool {
        self.data_names().any(|known| known == name)
    }

    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|axis| axis.name == name)
    }

    /// Whether a profile or `--set` changed the file.
    pub fn is_changed(&self) -> bool {
        self.profile_name.is_some() || !self.sets.is_empty()
    }
}

/// Whether `text` may be the id of a stage, the name of a data set, a variable or an axis.
pub fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 100 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Takes `root` apart; what is wrong goes into `diagnostics`.
pub fn read(root: &Node, options: &Options, diagnostics: &mut Diagnostics) -> Spec {
    let mut reader = Reader { root, diagnostics, spec: Spec::default() };
    reader.keys();
    reader.spec.name = reader.name();
    reader.spec.vars = reader.names("vars", "a variable");
    reader.spec.data = reader.names("data", "a data set");
    reader.stages();
    reader.overlays(options);
    reader.axes();
    reader.spec
}

struct Reader<'a> {
    root: &'a Node,
    diagnostics: &'a mut Diagnostics,
    spec: Spec,
}

impl Reader<'_> {
    fn say(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    fn keys(&mut self) {
        for entry in self.root.entries().unwrap_or_default() {
            if !KEYS.contains(&entry.key.as_str()) && !entry.key.starts_with("x-") {
                let diagnostic = Diagnostic::new(entry.key_span, format!("unknown key `{}`", shown(&entry.key)));
                self.say(diagnostic.label("not a key of a pipeline file").nearest(&entry.key, KEYS));
            }
        }
    }

    fn name(&mut self) -> String {
        let Some(node) = self.root.get("name") else {
            let span = self.root.entries().and_then(|e| e.first()).map_or(self.root.span, |e| e.key_span);
            self.say(Diagnostic::new(span, "the pipeline has no name").help("add `name: my-experiment`"));
            return String::new();
        };
        let name = node.scalar_text().unwrap_or_default();
        let good = !name.is_empty()
            && name.len() <= 100
            && !name.starts_with(['.', '-'])
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if !good && !matches!(node.value, Value::Bad) {
            self.say(
                Diagnostic::new(node.span, "this cannot be the pipeline's name")
                    .label(format!("expected letters, digits, `_`, `-` and `.`, got {}", node.describe())),
            );
        }
        name
    }

    /// The map under `key` whose keys are names.
    fn names(&mut self, key: &str, what: &str) -> Vec<Entry> {
        let entries = self.map(key);
        for entry in &entries {
            self.check_id(&entry.key, entry.key_span, what);
        }
        entries
    }

    fn map(&mut self, key: &str) -> Vec<Entry> {
        let Some(node) = self.root.get(key) else { return Vec::new() };
        match &node.value {
            Value::Map(entries) => entries.clone(),
            Value::Null | Value::Bad => Vec::new(),
            _ => {
                let text = node.describe();
                self.say(Diagnostic::new(node.span, format!("`{key}` is a map")).label(format!("got {text}")));
                Vec::new()
            }
        }
    }

    fn check_id(&mut self, text: &str, span: Span, what: &str) -> bool {
        let good = is_id(text);
        if !good {
            self.say(
                Diagnostic::new(span, format!("`{}` cannot name {what}", shown(text)))
                    .label("expected letters, digits, `_` and `-`"),
            );
        }
        good
    }

    fn defaults(&mut self) -> BTreeMap<Kind, Node> {
        let mut defaults = BTreeMap::new();
        for entry in self.map("defaults") {
            let Some(kind) = kind(&entry.key) else {
                let diagnostic = Diagnostic::new(entry.key_span, format!("unknown stage kind `{}`", shown(&entry.key)));
                self.say(diagnostic.label("defaults are given by stage kind").nearest(&entry.key, kinds()));
                continue;
            };
            match &entry.value.value {
                Value::Map(_) => {
                    defaults.insert(kind, entry.value);
                }
                Value::Null | Value::Bad => {}
                _ => {
                    let text = entry.value.describe();
                    self.say(
                        Diagnostic::new(entry.value.span, format!("the defaults of `{}` are a map", entry.key))
                            .label(format!("expected keys of its configuration, got {text}")),
                    );
                }
            }
        }
        defaults
    }

    fn stages(&mut self) {
        let defaults = self.defaults();
        let Some(entry) = self.root.entry("stages") else {
            let span = self.root.entry("name").map_or(self.root.span, |e| e.key_span);
            self.say(Diagnostic::new(span, "the pipeline has no stages").help("add `stages:` with a list"));
            return;
        };
        let items: &[Node] = match &entry.value.value {
            Value::Seq(items) => items,
            Value::Bad => return,
            _ => {
                let text = entry.value.describe();
                self.say(
                    Diagnostic::new(entry.value.span, "`stages` is a list")
                        .label(format!("expected `- id: ...` items, got {text}")),
                );
                return;
            }
        };
        if items.is_empty() {
            self.say(Diagnostic::new(entry.key_span, "the pipeline has no stages"));
        }
        if items.len() > MAX_STAGES {
            self.say(Diagnostic::new(entry.key_span, format!("more than {MAX_STAGES} stages")));
            return;
        }
        for item in items {
            self.stage(item, &defaults);
        }
    }

    fn stage(&mut self, item: &Node, defaults: &BTreeMap<Kind, Node>) {
        let Value::Map(entries) = &item.value else {
            if !matches!(item.value, Value::Bad) {
                let text = item.describe();
                self.say(
                    Diagnostic::new(item.span, "a stage is a map")
                        .label(format!("expected {{id: ..., run: {{KIND: ...}}}}, got {text}")),
                );
            }
            return;
        };
        for entry in entries {
            if !STAGE_KEYS.contains(&entry.key.as_str()) {
                let mut diagnostic = Diagnostic::new(entry.key_span, format!("unknown key `{}`", shown(&entry.key)));
                diagnostic = if kind(&entry.key).is_some() {
                    let key = &entry.key;
                    diagnostic
                        .label("not a key of a stage")
                        .help(format!("a stage's kind stands under `run`: `run: {{{key}: ...}}`"))
                } else {
                    diagnostic.label("not a key of a stage").nearest(&entry.key, STAGE_KEYS)
                };
                self.say(diagnostic);
            }
        }
        let place = entries.first().map_or(item.span, |e| e.key_span);
        let id = match item.get("id") {
            Some(node) => match node.scalar_text() {
                Some(id) if self.check_id(&id, node.span, "a stage") => Some((id, node.span)),
                Some(_) => None,
                None => {
                    let text = node.describe();
                    self.say(Diagnostic::new(node.span, "a stage's id is a name").label(format!("got {text}")));
                    None
                }
            },
            None => {
                self.say(Diagnostic::new(place, "this stage has no id").help("add `id: NAME`"));
                None
            }
        };
        if let Some((id, span)) = &id
            && let Some(&first) = self.spec.ids.get(id)
        {
            let diagnostic = Diagnostic::new(*span, format!("two stages have the id `{id}`"));
            self.say(diagnostic.label("the second one").related(first, "the first one"));
            self.run(item, place);
            return;
        }
        if let Some((id, span)) = &id {
            self.spec.ids.insert(id.clone(), *span);
        }
        let run = self.run(item, place);
        let Some((id, id_span)) = id else { return };
        if self.spec.data.iter().any(|e| e.key == id) || BUILTINS.iter().any(|b| b.name == id) {
            let place = self.spec.data.iter().find(|e| e.key == id).map(|e| e.key_span);
            let mut diagnostic = Diagnostic::new(id_span, format!("`{id}` is both a stage and a data set"));
            diagnostic = match place {
                Some(span) => diagnostic.related(span, "the data set"),
                None => diagnostic.label("a built-in data set has this name"),
            };
            self.say(diagnostic.help("give the stage another id"));
        }
        if id == "vars" || id == "data" || id == "sweep" {
            self.say(Diagnostic::new(id_span, format!("`{id}` cannot be a stage's id")).label("paths use this word"));
        }
        let Some((kind, kind_span, own)) = run else { return };
        let mut config = defaults.get(&kind).cloned().unwrap_or_else(|| Node::map(Vec::new(), own.span));
        if matches!(own.value, Value::Null) {
            config.span = own.span;
        } else {
            config.merge(own);
        }
        self.spec.by_id.insert(id.clone(), self.spec.stages.len());
        self.spec.stages.push(Stage {
            id,
            id_span,
            kind,
            kind_span,
            config,
            resources: item.get("resources").cloned(),
            needs: item.get("needs").cloned(),
        });
    }

    /// The stage's kind and configuration.
    fn run(&mut self, item: &Node, place: Span) -> Option<(Kind, Span, Node)> {
        let example = "write `run: {KIND: {...}}`";
        let Some(run) = item.entry("run") else {
            self.say(Diagnostic::new(place, "this stage does nothing: it has no `run`").help(example));
            return None;
        };
        let entries = match &run.value.value {
            Value::Map(entries) => entries,
            Value::Bad => return None,
            _ => {
                let mut diagnostic = Diagnostic::new(run.value.span, "`run` is a map with one key, the stage's kind")
                    .label(format!("got {}", run.value.describe()));
                if let Some(help) = run.value.text().and_then(|t| suggest(t, kinds())) {
                    diagnostic = diagnostic.help(help);
                }
                self.say(diagnostic.help(example));
                return None;
            }
        };
        let [entry] = entries.as_slice() else {
            let span = entries.get(1).map_or(run.key_span, |e| e.key_span);
            self.say(
                Diagnostic::new(span, format!("a stage runs one thing, this one has {}", entries.len())).help(example),
            );
            return None;
        };
        let Some(kind) = kind(&entry.key) else {
            let diagnostic = Diagnostic::new(entry.key_span, format!("unknown stage kind `{}`", shown(&entry.key)));
            self.say(diagnostic.label("expected a kind of stage").nearest(&entry.key, kinds()));
            return None;
        };
        match &entry.value.value {
            Value::Bad => None,
            Value::Map(_) | Value::Null => Some((kind, entry.key_span, entry.value.clone())),
            _ => {
                self.say(
                    Diagnostic::new(entry.value.span, format!("the configuration of `{}` is a map", entry.key))
                        .label(format!("got {}", entry.value.describe())),
                );
                None
            }
        }
    }

    fn overlays(&mut self, options: &Options) {
        let profiles = self.map("profiles");
        self.spec.profiles = profiles.iter().map(|e| e.key.clone()).collect();
        for entry in &profiles {
            self.check_id(&entry.key, entry.key_span, "a profile");
            let overlays = paths::overlays(&entry.value, "a profile", self.diagnostics);
            // Also profiles that are not asked for must name what exists.
            self.check_targets(&overlays, true);
            if options.profile.as_ref() == Some(&entry.key) {
                self.spec.profile = overlays;
            }
        }
        if let Some(name) = &options.profile {
            if !self.spec.profiles.contains(name) {
                let file = self.diagnostics.sources.add("--profile", name.as_str());
                let span = Span { file, start: 0, end: name.len() };
                let diagnostic = Diagnostic::new(span, format!("there is no profile `{}`", shown(name)));
                let known: Vec<String> = self.spec.profiles.clone();
                self.say(match known.is_empty() {
                    true => diagnostic.help("the pipeline has no profiles"),
                    false => diagnostic.nearest(name, known.iter().map(String::as_str)),
                });
            }
            self.spec.profile_name = Some(name.clone());
        }
        let sets: Vec<Overlay> = options.sets.iter().filter_map(|text| paths::set(text, self.diagnostics)).collect();
        self.check_targets(&sets, true);
        self.spec.sets = sets;
    }

    /// The axes with what profile and `--set` put into them.
    fn axes(&mut self) {
        let mut sweep = self.map("sweep");
        for overlay in self.spec.profile.iter().chain(&self.spec.sets) {
            let Some([axis]) = overlay.within(&["sweep"]) else { continue };
            if let Some(entry) = sweep.iter_mut().find(|e| e.key == axis.text) {
                let mut value = overlay.value.clone();
                value.via.push((entry.value.span, "this is overridden".to_owned()));
                // One value is a list of one.
                if value.scalar_text().is_some() {
                    value = Node::new(Value::Seq(vec![value.clone()]), value.span);
                }
                entry.value = value;
            }
        }
        let variants = self.map("variants");
        if let Some(entry) = self.root.entry("variants")
            && let Some(axis) = axes::variants(entry, &variants, self.diagnostics)
        {
            self.spec.variant_axis = Some(self.spec.axes.len());
            self.spec.axes.push(axis);
            for variant in &variants {
                let overlays = paths::overlays(&variant.value, "a variant", self.diagnostics);
                self.check_targets(&overlays, false);
                self.spec.variants.push(overlays);
            }
        }
        for entry in &sweep {
            let good = self.check_id(&entry.key, entry.key_span, "an axis");
            if entry.key == VARIANT {
                self.say(
                    Diagnostic::new(entry.key_span, "the axis `variant` is made by `variants`")
                        .help("give this axis another name"),
                );
            } else if good {
                let axis = axes::sweep(entry, self.diagnostics);
                self.spec.axes.push(axis);
            }
        }
        if let Some(node) = self.root.get("select") {
            self.spec.select = axes::selection(node, &self.spec.axes, self.diagnostics);
        }
    }

    /// Every overlay must lead somewhere.
    fn check_targets(&mut self, overlays: &[Overlay], may_sweep: bool) {
        for overlay in overlays {
            if let Some(diagnostic) = self.target(overlay, may_sweep) {
                self.say(diagnostic);
            }
        }
    }

    /// What is wrong with an overlay's first segments.
    fn target(&self, overlay: &Overlay, may_sweep: bool) -> Option<Diagnostic> {
        let (first, second) = (&overlay.path[0], &overlay.path[1]);
        let missing = |what: &str, known: Vec<&str>, none: &str| {
            let diagnostic = Diagnostic::new(second.span, format!("there is no {what} `{}`", shown(&second.text)));
            Some(match suggest(&second.text, known) {
                Some(help) => diagnostic.help(help),
                None => diagnostic.help(none),
            })
        };
        match first.text.as_str() {
            "vars" if self.spec.vars.iter().any(|e| e.key == second.text) => None,
            "vars" => {
                missing("variable", self.spec.vars.iter().map(|e| e.key.as_str()).collect(), "declare it under `vars`")
            }
            "data" if self.spec.is_data(&second.text) => None,
            "data" => missing("data set", self.spec.data_names().collect(), "declare it under `data`"),
            "sweep" if !may_sweep => Some(
                Diagnostic::new(overlay.span(), "a variant cannot change the sweep")
                    .help("profiles and --set can; variants are an axis themselves"),
            ),
            "sweep" => {
                let node = self.root.get("sweep");
                let axes: Vec<&str> =
                    node.and_then(Node::entries).unwrap_or_default().iter().map(|e| e.key.as_str()).collect();
                if overlay.path.len() > 2 {
                    let text = "an axis is set as a whole";
                    return Some(Diagnostic::new(overlay.span(), text).help("write sweep.AXIS: [values]"));
                }
                if axes.contains(&second.text.as_str()) {
                    return None;
                }
                missing("axis", axes, "declare it under `sweep`")
            }
            id if self.spec.has_stage(id) => None,
            id => {
                let words = ["vars", "data", "sweep"];
                let known = self.spec.stages.iter().map(|s| s.id.as_str()).chain(words);
                let diagnostic = Diagnostic::new(first.span, format!("there is no stage `{}`", shown(id)));
                Some(diagnostic.label("a path begins with a stage's id, `vars`, `data` or `sweep`").nearest(id, known))
            }
        }
    }
}

/// The stage kind of this name.
pub fn kind(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// The names of the stage kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name)
}

/// At most 60 characters of a name that a user wrote.
pub fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}
