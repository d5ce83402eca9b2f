//! From stages to instances: one per combination of the axes that a stage depends on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::axes::Point;
use super::diagnostics::{Diagnostic, Diagnostics};
use super::evaluate::{Made, Unit};
use super::links::StageLink;
use super::spec::Spec;
use super::{Edge, Instance};
use crate::stages::Kind;

/// A projection of a point: labels of the axes that matter.
type Projection = Vec<Option<usize>>;

/// Units in an order in which inputs come first; None where they wait for each other (said).
pub fn order(units: &[Unit], diagnostics: &mut Diagnostics) -> Option<Vec<usize>> {
    let by_name: HashMap<&str, usize> = units.iter().enumerate().map(|(i, u)| (u.name.as_str(), i)).collect();
    let targets: Vec<Vec<(usize, super::source::Span)>> = units
        .iter()
        .map(|unit| {
            let mut all: Vec<(usize, super::source::Span)> = Vec::new();
            for made in unit.made() {
                let stages = made.stages.iter().map(|l| (l.target.clone(), l.span));
                let data = made.data.iter().map(|l| (data_unit(&by_name, &l.name), l.span));
                let needs = made.needs.iter().cloned();
                for (name, span) in stages.chain(data).chain(needs) {
                    if let Some(&index) = by_name.get(name.as_str())
                        && all.iter().all(|(known, _)| *known != index)
                    {
                        all.push((index, span));
                    }
                }
            }
            all
        })
        .collect();
    let mut visit =
        Visit { units, targets: &targets, state: vec![0; units.len()], path: Vec::new(), order: Vec::new() };
    // A download's unit comes with its split.
    for index in (0..units.len()).filter(|i| !units[*i].implicit) {
        if let Err(diagnostic) = visit.unit(index) {
            diagnostics.push(*diagnostic);
            return None;
        }
    }
    Some(visit.order)
}

/// The unit that a data name stands for: a set's split, or a `split` stage of the file.
fn data_unit(by_name: &HashMap<&str, usize>, name: &str) -> String {
    let implicit = super::sets::split_name(name);
    if by_name.contains_key(implicit.as_str()) { implicit } else { name.to_owned() }
}

struct Visit<'a> {
    units: &'a [Unit],
    targets: &'a [Vec<(usize, super::source::Span)>],
    /// 0 new, 1 on the path, 2 done.
    state: Vec<u8>,
    path: Vec<usize>,
    order: Vec<usize>,
}

impl Visit<'_> {
    /// At most as deep as there are stages, which are bounded.
    fn unit(&mut self, index: usize) -> Result<(), Box<Diagnostic>> {
        self.state[index] = 1;
        self.path.push(index);
        for &(target, span) in &self.targets[index] {
            match self.state[target] {
                0 => self.unit(target)?,
                1 => {
                    let start = self.path.iter().position(|i| *i == target).unwrap_or(0);
                    let mut names: Vec<&str> =
                        self.path[start..].iter().map(|i| self.units[*i].name.as_str()).collect();
                    names.push(&self.units[target].name);
                    let text = if names.len() == 2 { "a stage waits for itself" } else { "stages wait for each other" };
                    return Err(Box::new(
                        Diagnostic::new(span, text).label(names.join(" -> ")).help("remove one of these references"),
                    ));
                }
                _ => {}
            }
        }
        self.path.pop();
        self.state[index] = 2;
        self.order.push(index);
        Ok(())
    }
}

/// Builds instances out of evaluated units.
pub struct Expander<'a> {
    spec: &'a Spec,
    units: &'a [Unit],
    by_name: HashMap<&'a str, usize>,
    /// Per unit: the axes that its instances differ in.
    axes: Vec<BTreeSet<usize>>,
    /// Per unit: projections of every point that the file selects, and of the wanted ones in order.
    allowed: Vec<HashSet<Projection>>,
    wanted: Vec<Vec<Projection>>,
    known: HashMap<(usize, Projection), Option<usize>>,
    instances: Vec<Instance>,
    diagnostics: &'a mut Diagnostics,
}

impl<'a> Expander<'a> {
    /// `order` as [`order`] gives it; `points` are all selected points, `wanted` those that `--only` leaves.
    pub fn new(
        spec: &'a Spec,
        units: &'a [Unit],
        order: &[usize],
        points: &[Point],
        wanted: &[Point],
        diagnostics: &'a mut Diagnostics,
    ) -> Self {
        let by_name: HashMap<&str, usize> = units.iter().enumerate().map(|(i, u)| (u.name.as_str(), i)).collect();
        let mut axes: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); units.len()];
        for &index in order {
            let unit = &units[index];
            let mut own: BTreeSet<usize> = unit.touched().collect();
            if unit.kind == Kind::Report {
                own.clear();
            } else {
                for made in unit.made() {
                    for link in &made.stages {
                        if let Some(&target) = by_name.get(link.target.as_str()) {
                            let pinned = |axis: &usize| link.at.iter().any(|(a, _)| a == axis);
                            own.extend(axes[target].iter().filter(|a| !pinned(a)));
                        }
                    }
                    for link in &made.data {
                        if let Some(&target) = by_name.get(data_unit(&by_name, &link.name).as_str()) {
                            own.extend(axes[target].iter());
                        }
                    }
                }
            }
            axes[index] = own;
        }
        let project = |unit: usize, point: &Point| -> Projection {
            point.iter().enumerate().map(|(axis, label)| axes[unit].contains(&axis).then_some(*label)).collect()
        };
        let allowed = (0..units.len()).map(|u| points.iter().map(|p| project(u, p)).collect()).collect();
        let wanted = (0..units.len())
            .map(|u| {
                let mut seen = HashSet::new();
                wanted.iter().map(|p| project(u, p)).filter(|p| seen.insert(p.clone())).collect()
            })
            .collect();
        Self { spec, units, by_name, axes, allowed, wanted, known: HashMap::new(), instances: Vec::new(), diagnostics }
    }

    /// Every instance, inputs first.
    pub fn run(mut self, order: &[usize]) -> Vec<Instance> {
        for &unit in order {
            // Data sets come with those that read them.
            if self.units[unit].implicit {
                continue;
            }
            for projection in self.wanted[unit].clone() {
                self.instance(unit, &projection);
            }
        }
        self.instances
    }

    /// The instance of a unit at a projection onto its axes.
    fn instance(&mut self, index: usize, projection: &Projection) -> Option<usize> {
        let key = (index, projection.clone());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (units, spec) = (self.units, self.spec);
        let unit = &units[index];
        let made = unit.at(projection)?;
        let mut inputs = Vec::new();
        for link in &made.stages {
            if unit.kind == Kind::Report {
                self.gather(link, &mut inputs);
            } else if let Some(edge) = self.edge(link, projection) {
                inputs.push(edge);
            }
        }
        for link in &made.data {
            if let Some(edge) = self.data_edge(unit.kind, link, projection) {
                inputs.push(edge);
            }
        }
        let needs = self.needs(made, projection);
        let labels = projection.iter().enumerate().filter_map(|(axis, label)| {
            let axis = &spec.axes[axis];
            Some((axis.name.clone(), axis.labels[(*label)?].text.clone()))
        });
        self.instances.push(Instance {
            stage: unit.name.clone(),
            kind: unit.kind,
            point: labels.collect(),
            config: made.config.clone(),
            inputs,
            needs,
            resources: made.resources.clone(),
        });
        let at = self.instances.len() - 1;
        self.known.insert(key, Some(at));
        Some(at)
    }

    /// The target's projection that agrees with a consumer's, `at` replacing some labels.
    fn projected(&self, target: usize, projection: &Projection, at: &[(usize, usize)]) -> Projection {
        let label = |axis: usize| at.iter().find(|(a, _)| *a == axis).map(|(_, label)| *label).or(projection[axis]);
        (0..projection.len()).map(|axis| self.axes[target].contains(&axis).then(|| label(axis)).flatten()).collect()
    }

    /// `at` may only pin axes that the target has.
    fn check_at(&mut self, target: usize, link: &StageLink) -> bool {
        let Some((axis, _)) = link.at.iter().find(|(axis, _)| !self.axes[target].contains(axis)) else { return true };
        let name = &self.spec.axes[*axis].name;
        self.diagnostics.push(
            Diagnostic::new(link.span, format!("`{}` does not depend on the axis `{name}`", link.target))
                .help(format!("remove `{name}` from `at`")),
        );
        false
    }

    fn edge(&mut self, link: &StageLink, projection: &Projection) -> Option<Edge> {
        let target = *self.by_name.get(link.target.as_str())?;
        if !self.check_at(target, link) {
            return None;
        }
        let wanted = self.projected(target, projection, &link.at);
        if !self.allowed[target].contains(&wanted) {
            let name = self.describe(target, &wanted);
            self.diagnostics.push(
                Diagnostic::new(link.span, format!("there is no instance `{name}`"))
                    .help("`select` leaves its point out"),
            );
            return None;
        }
        let from = self.instance(target, &wanted)?;
        Some(Edge { slot: link.slot.clone(), from, checkpoint: link.checkpoint.clone(), part: None })
    }

    fn describe(&self, unit: usize, projection: &Projection) -> String {
        let labels = projection
            .iter()
            .zip(&self.spec.axes)
            .filter_map(|(label, axis)| Some(format!("{}={}", axis.name, axis.labels[(*label)?].text)));
        let labels: Vec<String> = labels.collect();
        format!("{}@{}", self.units[unit].name, labels.join(","))
    }

    fn data_edge(&mut self, kind: Kind, link: &super::links::DataLink, projection: &Projection) -> Option<Edge> {
        let name = data_unit(&self.by_name, &link.name);
        let target = *self.by_name.get(name.as_str())?;
        let wanted = self.projected(target, projection, &[]);
        let parts = self.units[target].at(&wanted)?.parts;
        let trains = matches!(kind, Kind::Train | Kind::Sft) && link.slot == "data";
        let part = match (link.holdout, trains) {
            (true, true) => {
                self.diagnostics.push(
                    Diagnostic::new(link.span, "this would train on a hold-out")
                        .help(format!("write `{}`: training leaves its hold-out out", link.name)),
                );
                return None;
            }
            (true, false) if !parts.holdout => {
                self.diagnostics.push(
                    Diagnostic::new(link.span, format!("`{}` has no hold-out", link.name))
                        .help("give its entry under `data` one: holdout: {n: 500, seed: 7}"),
                );
                return None;
            }
            (true, false) => "holdout",
            (false, true) => "train",
            (false, false) => parts.eval,
        };
        let from = self.instance(target, &wanted)?;
        Some(Edge { slot: link.slot.clone(), from, checkpoint: "last".to_owned(), part: Some(part.to_owned()) })
    }

    /// Edges to every instance of a gathered stage.
    fn gather(&mut self, link: &StageLink, inputs: &mut Vec<Edge>) {
        let Some(&target) = self.by_name.get(link.target.as_str()) else { return };
        if !self.check_at(target, link) {
            return;
        }
        let fits = |p: &&Projection| link.at.iter().all(|(axis, label)| p[*axis] == Some(*label));
        let mut chosen: Vec<Projection> = self.wanted[target].iter().filter(fits).cloned().collect();
        if chosen.is_empty() {
            // Pinned by `at`, so asked for although `--only` leaves it out.
            chosen = self.allowed[target].iter().filter(fits).cloned().collect();
            chosen.sort();
        }
        if chosen.is_empty() {
            self.diagnostics.push(
                Diagnostic::new(link.span, format!("no instance of `{}` is like this", link.target))
                    .help("`select` leaves these points out"),
            );
        }
        for projection in chosen {
            if let Some(from) = self.instance(target, &projection) {
                let (slot, checkpoint) = (link.slot.clone(), link.checkpoint.clone());
                inputs.push(Edge { slot, from, checkpoint, part: None });
            }
        }
    }

    /// Every instance of the needed stages whose labels do not contradict the consumer's.
    fn needs(&mut self, made: &Made, projection: &Projection) -> Vec<usize> {
        let mut needs = BTreeSet::new();
        for (name, _) in &made.needs {
            let Some(&target) = self.by_name.get(name.as_str()) else { continue };
            let agrees = |p: &&Projection| p.iter().zip(projection).all(|(a, b)| a.is_none() || b.is_none() || a == b);
            let chosen: Vec<Projection> = self.wanted[target].iter().filter(agrees).cloned().collect();
            needs.extend(chosen.iter().filter_map(|p| self.instance(target, p)));
        }
        needs.into_iter().collect()
    }
}

/// Removes instances that nobody reads while siblings are read; gives their names by stage.
pub fn drop_unread(instances: &mut Vec<Instance>) -> BTreeMap<String, Vec<String>> {
    let mut kept = vec![true; instances.len()];
    let mut readers = vec![0usize; instances.len()];
    let dependencies =
        |i: &Instance| -> Vec<usize> { i.inputs.iter().map(|e| e.from).chain(i.needs.iter().copied()).collect() };
    for instance in instances.iter() {
        dependencies(instance).into_iter().for_each(|d| readers[d] += 1);
    }
    let mut stages: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, instance) in instances.iter().enumerate() {
        stages.entry(&instance.stage).or_default().push(i);
    }
    // What only a dropped instance reads is dropped too, so go from the consumers to their inputs.
    let read_at_all: HashSet<&str> =
        stages.iter().filter(|(_, all)| all.iter().any(|i| readers[*i] > 0)).map(|(stage, _)| *stage).collect();
    for i in (0..instances.len()).rev() {
        let instance = &instances[i];
        if readers[i] == 0 && read_at_all.contains(instance.stage.as_str()) {
            kept[i] = false;
            dependencies(instance).into_iter().for_each(|d| readers[d] -= 1);
        }
    }
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut moved = vec![0; instances.len()];
    let mut next = 0;
    for (i, keep) in kept.iter().enumerate() {
        moved[i] = next;
        if *keep {
            next += 1;
        } else {
            names.entry(instances[i].stage.clone()).or_default().push(instances[i].name());
        }
    }
    let mut index = 0;
    instances.retain(|_| {
        index += 1;
        kept[index - 1]
    });
    for instance in instances.iter_mut() {
        instance.inputs.iter_mut().for_each(|e| e.from = moved[e.from]);
        instance.needs.iter_mut().for_each(|n| *n = moved[*n]);
    }
    names
}
