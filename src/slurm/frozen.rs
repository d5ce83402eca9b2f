//! A plan on disk: the expanded pipeline and what of it is to be done, as jobs read it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::pipeline::Graph;
use crate::plan::{Action, Plan, Versions, dependencies};
use crate::run::reproduce::Recipe;
use crate::store::{Store, write_atomic};
use crate::{Error, Result};

pub(super) const FILE: &str = "frozen.json";

/// The instances of one stage that are to be made: one job, or an array of as many tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub stage: String,
    /// Indices into the graph; a task's number in the array is its place here.
    pub instances: Vec<usize>,
}

/// Everything that a job needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Frozen {
    pub id: String,
    /// Its paths are absolute.
    pub graph: Graph,
    pub lock_path: PathBuf,
    pub store: PathBuf,
    /// In an order in which inputs come first.
    pub tasks: Vec<Task>,
    /// Instance -> those that are the same work and get its artifact's name.
    pub same: BTreeMap<usize, Vec<usize>>,
    pub keep_old: bool,
    pub rerun: bool,
    /// What reports keep of the pipeline.
    pub recipe: Recipe,
    /// Where finished reports go.
    pub reports: PathBuf,
    /// A program that hears how it went, as JSON on its standard input.
    pub notify: Vec<String>,
}

impl Frozen {
    pub fn folder(&self) -> PathBuf {
        self.store.join("slurm").join(&self.id)
    }

    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        serde_json::from_slice(&text).map_err(|e| {
            Error::input(format!("{} is no frozen plan of this qerl", path.display()))
                .caused_by(e)
                .hint("submit again: what is finished is kept")
        })
    }

    pub fn write(&self) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|e| Error::failed("cannot write a plan").caused_by(e))?;
        write_atomic(&self.folder().join(FILE), &text)
    }

    pub fn versions(&self) -> Versions {
        match (self.keep_old, self.rerun) {
            (true, _) => Versions::KeepOld,
            (_, true) => Versions::Rerun,
            _ => Versions::Ask,
        }
    }

    /// The instance that makes the artifact of `index`: itself, or the first one of equal work.
    pub fn maker(&self, index: usize) -> usize {
        self.same.iter().find(|(_, all)| all.contains(&index)).map_or(index, |(first, _)| *first)
    }

    /// The instances of this plan that must end before `index` can start.
    pub fn waits_for(&self, index: usize) -> BTreeSet<usize> {
        let planned: BTreeSet<usize> = self.tasks.iter().flat_map(|t| t.instances.iter().copied()).collect();
        let instance = &self.graph.instances[index];
        dependencies(instance).map(|d| self.maker(d)).filter(|d| *d != index && planned.contains(d)).collect()
    }
}

/// What of `plan` is to be done, by stage. The caller fills in the rest and writes it.
pub fn freeze(store: &Store, graph: &Graph, plan: &Plan, recipe: Recipe, lock_path: &Path) -> Result<Frozen> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(|e| Error::io("find", path, e));
    let mut graph = graph.clone();
    graph.file = absolute(&graph.file)?;
    let by_name: BTreeMap<&str, usize> = plan.entries.iter().map(|e| (e.name.as_str(), e.index)).collect();
    let mut tasks: Vec<Task> = Vec::new();
    let mut same: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for entry in &plan.entries {
        match &entry.action {
            Action::Cached(_) => {}
            Action::Same(other) => {
                if let Some(first) = by_name.get(other.as_str()) {
                    same.entry(*first).or_default().push(entry.index);
                }
            }
            Action::Run(_) => {
                let stage = &graph.instances[entry.index].stage;
                match tasks.iter_mut().find(|t| t.stage == *stage) {
                    Some(task) => task.instances.push(entry.index),
                    None => tasks.push(Task { stage: stage.clone(), instances: vec![entry.index] }),
                }
            }
        }
    }
    let now = jiff::Timestamp::now().to_string();
    let digits: String = now.chars().filter(char::is_ascii_digit).take(14).collect();
    let salt = blake3::hash(format!("{now} {}", std::process::id()).as_bytes()).to_hex();
    Ok(Frozen {
        id: format!("{}-{}-{}", &digits[..8], &digits[8..], &salt[..4]),
        graph,
        lock_path: absolute(lock_path)?,
        store: store.root.clone(),
        tasks: ordered(tasks),
        same,
        keep_old: false,
        rerun: false,
        recipe,
        reports: PathBuf::new(),
        notify: Vec::new(),
    })
}

/// The graph lists instances with their inputs first; a stage's last instance then comes after all that it waits for.
fn ordered(mut tasks: Vec<Task>) -> Vec<Task> {
    tasks.sort_by_key(|task| task.instances.iter().max().copied());
    tasks
}
