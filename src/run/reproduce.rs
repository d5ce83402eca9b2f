//! A report made again: the pipeline, overrides and pins that it holds, run in a store of its own, and the numbers
//! of both compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::Overrides;
use super::requests;
use crate::pipeline::{Graph, Options};
use crate::plan::lockfile::LockFile;
use crate::stages::Kind;
use crate::stages::report::embed;
use crate::store::Artifact;
use crate::{Error, Result};

/// What stands in a report about how it came to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    pub qerl_version: String,
    /// The pipeline file among `files`.
    pub main: String,
    /// Path relative to a common folder -> text, of the pipeline and what it includes.
    pub files: BTreeMap<String, String>,
    pub overrides: Overrides,
    /// The pins of this pipeline's downloads.
    pub lock: LockFile,
    /// The report's stage.
    #[serde(default)]
    pub stage: String,
    /// Row -> stage -> data set -> figures.
    #[serde(default)]
    pub rows: Value,
}

/// A figure that came out differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    pub figure: String,
    pub reported: Value,
    pub reproduced: Value,
}

impl Recipe {
    /// Takes the files of `graph`'s pipeline, as they are now, and its pins.
    ///
    /// # Errors
    /// When a file cannot be read any more.
    pub fn new(graph: &Graph, overrides: &Overrides, lock: &LockFile) -> Result<Self> {
        let texts = crate::pipeline::sources(&graph.file)
            .map_err(|e| Error::from(e).within("keeping the pipeline in its report"))?;
        let (main, files) = relative(&graph.file, texts);
        let mut recipe = Self {
            qerl_version: env!("CARGO_PKG_VERSION").to_owned(),
            main,
            files,
            overrides: overrides.clone(),
            lock: LockFile::default(),
            stage: String::new(),
            rows: Value::Null,
        };
        recipe.pin(graph, lock);
        Ok(recipe)
    }

    /// Takes the pins of the graph's downloads out of `lock`, and no others.
    pub fn pin(&mut self, graph: &Graph, lock: &LockFile) {
        self.lock = LockFile::default();
        for request in requests(graph, &(0..graph.instances.len()).collect::<BTreeSet<_>>()) {
            if let Some(pin) = lock.get(&request) {
                self.lock.set(&request, pin.clone());
            }
        }
    }

    /// Reads it out of a report: an HTML file, its folder, or the Markdown file beside it.
    ///
    /// # Errors
    /// When there is none, or it is malformed.
    pub fn read(report: &Path) -> Result<Self> {
        let path = match report {
            path if path.is_dir() => path.join("report.html"),
            path if path.extension().is_some_and(|e| e == "md") => path.with_extension("html"),
            path => path.to_path_buf(),
        };
        let html = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        Self::of_html(&html).map_err(|e| e.within(path.display()))
    }

    fn of_html(html: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::input(what.to_owned())
                .hint("give a report.html that `qerl run` wrote; older reports hold no pipeline")
        };
        let value = embed::extract(html).ok_or_else(|| wrong("this report holds no pipeline"))?;
        let recipe: Self = serde_json::from_value(value)
            .map_err(|e| wrong("the pipeline in this report is malformed").caused_by(e))?;
        // A report is untrusted: its names must stay below the folder that they are written to.
        let inside = |name: &String| {
            let path = Path::new(name);
            !name.is_empty() && path.components().all(|c| matches!(c, Component::Normal(_)))
        };
        if !recipe.files.keys().all(inside) || !recipe.files.contains_key(&recipe.main) {
            return Err(wrong("the files in this report have names that cannot be"));
        }
        Ok(recipe)
    }

    /// Writes its files below `folder` and expands the pipeline; relative paths in it start at `base`.
    ///
    /// # Errors
    /// What is wrong with the pipeline, or a disk that takes no files.
    pub fn unpack(&self, folder: &Path, base: &Path) -> Result<(Graph, PathBuf)> {
        for (name, text) in &self.files {
            crate::store::write_atomic(&folder.join(name), text.as_bytes())?;
        }
        let lock = folder.join("qerl.lock");
        self.lock.write(&lock)?;
        let Overrides { sets, only, profile } = self.overrides.clone();
        let file = folder.join(&self.main);
        let mut graph = crate::pipeline::load(&file, &Options { sets, only, profile })?;
        let name = Path::new(&self.main).file_name().unwrap_or(file.as_os_str());
        graph.file = base.join(name);
        Ok((graph, lock))
    }

    /// Figures of `report` that are not this recipe's, by more than `tolerance`; and how many were compared.
    ///
    /// # Errors
    /// When the report cannot be read.
    pub fn compare(&self, report: &Artifact, tolerance: f64) -> Result<(usize, Vec<Mismatch>)> {
        let path = report.dir.join("report.html");
        let html = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        let made = Self::of_html(&html)?.rows;
        let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
        leaves("", &self.rows, &mut old);
        leaves("", &made, &mut new);
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let mut different = Vec::new();
        for &name in &names {
            let get = |map: &BTreeMap<String, Value>| map.get(name).cloned().unwrap_or(Value::Null);
            let (reported, reproduced) = (get(&old), get(&new));
            let near = match (reported.as_f64(), reproduced.as_f64()) {
                (Some(a), Some(b)) => (a - b).abs() <= tolerance,
                _ => reported == reproduced,
            };
            if !near {
                different.push(Mismatch { figure: name.clone(), reported, reproduced });
            }
        }
        Ok((names.len(), different))
    }
}

/// Reward programs that a pipeline would start.
pub fn programs(graph: &Graph) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for instance in graph.instances.iter().filter(|i| i.kind == Kind::Train) {
        let rewards = instance.config.get("rewards").and_then(Value::as_object);
        for command in rewards.into_iter().flatten().filter_map(|(_, reward)| reward.get("command")) {
            found.insert(command.to_string());
        }
    }
    found
}

fn leaves(path: &str, value: &Value, out: &mut BTreeMap<String, Value>) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path} / {key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(&join(key), value, out)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| leaves(&join(&i.to_string()), v, out)),
        Value::Null => {}
        other => {
            out.insert(path.to_owned(), other.clone());
        }
    }
}

/// Names relative to the highest folder that any of the files lies in; the first is the name of `main`.
fn relative(main: &Path, texts: Vec<(PathBuf, String)>) -> (String, BTreeMap<String, String>) {
    let parts = |path: &Path| -> Vec<String> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let mut parts = Vec::new();
        for component in absolute.components() {
            match component {
                Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
                Component::ParentDir => {
                    parts.pop();
                }
                _ => {}
            }
        }
        parts
    };
    let paths: Vec<(Vec<String>, String)> = texts.into_iter().map(|(path, text)| (parts(&path), text)).collect();
    let main = parts(main);
    let mut shared = main.len().saturating_sub(1);
    for (path, _) in &paths {
        shared = shared.min(path.iter().zip(&main).take_while(|(a, b)| a == b).count());
    }
    let name = |path: &[String]| path[shared.min(path.len())..].join("/");
    (name(&main), paths.iter().map(|(path, text)| (name(path), text.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_from_their_common_folder() {
        let texts = ["/a/b/p.yaml", "/a/b/../shared/x.yaml", "/a/b/c/y.yaml"];
        let texts = texts.into_iter().map(|p| (PathBuf::from(p), p.to_owned())).collect();
        let (main, files) = relative(Path::new("/a/b/p.yaml"), texts);
        assert_eq!(main, "b/p.yaml");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["b/c/y.yaml", "b/p.yaml", "shared/x.yaml"]);
        let (main, files) = relative(Path::new("/a/p.yaml"), vec![("/a/p.yaml".into(), String::new())]);
        assert_eq!((main.as_str(), files.len()), ("p.yaml", 1));
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let recipe = |main: &str| {
            let value = serde_json::json!({"qerl_version": "1", "main": main, "files": {main: "name: x"},
                "overrides": {}, "lock": {"version": 1}});
            Recipe::of_html(&format!("<script type=\"application/json\" id=\"qerl-reproduce\">{value}</script>"))
        };
        assert_eq!(recipe("a/p.yaml").unwrap().main, "a/p.yaml");
        for name in ["../p.yaml", "/etc/p.yaml", "a/../../p.yaml", "", "."] {
            assert!(recipe(name).is_err(), "{name}");
        }
    }
}
