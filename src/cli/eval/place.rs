//! Where `qerl eval` works: beside the folder asked for, so that an interrupted run can go on, or nowhere to stay.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::json;

use super::input::SetName;
use crate::cli::model_arg::{Policy, absolute};
use crate::stages::eval::Config;
use crate::store::{canonical, remove_tree, write_atomic};
use crate::{Error, Result};

/// Says what the work in a folder belongs to; without it a folder is not ours to remove.
const KEY: &str = "evaluation-key";

pub(super) struct Place {
    work: PathBuf,
    out: Option<PathBuf>,
    /// Removes the folder where nothing is to stay.
    _temporary: Option<tempfile::TempDir>,
}

impl Place {
    /// `OUT.partial`, with what an interrupted run of the same evaluation left there; a temporary folder without `out`.
    pub fn open(out: Option<&Path>, config: &Config, policy: &Policy, sets: &[&SetName]) -> Result<Self> {
        let Some(out) = out else {
            let folder = tempfile::Builder::new().prefix("qerl-eval-").tempdir();
            let folder = folder.map_err(|e| Error::io("write into", std::env::temp_dir(), e))?;
            return Ok(Self { work: folder.path().to_owned(), out: None, _temporary: Some(folder) });
        };
        let out = absolute(out)?;
        if std::fs::read_dir(&out).map_or(out.exists(), |mut entries| entries.next().is_some()) {
            return Err(Error::usage(format!("{} is not empty", out.display())).hint("name a new folder with --out"));
        }
        let name = out.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let work = out.with_file_name(format!("{name}.partial"));
        let key = key(config, policy, sets)?;
        let known = std::fs::read_to_string(work.join(KEY)).ok();
        if known.is_none() && work.exists() {
            return Err(
                Error::usage(format!("{} is in the way", work.display())).hint("move it, or name another --out")
            );
        }
        if known.is_some_and(|known| known != key) {
            remove_tree(&work)?;
        }
        write_atomic(&work.join(KEY), key.as_bytes())?;
        Ok(Self { work, out: Some(out), _temporary: None })
    }

    /// An empty folder.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join(name);
        remove_tree(&dir)?;
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
        Ok(dir)
    }

    /// A folder that an interruption leaves as it is.
    pub fn kept(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join(name);
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
        Ok(dir)
    }

    /// Moves the result to where it was asked for.
    pub fn finish(&self, result: &Path) -> Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        if out.exists() {
            // Empty, as was seen in the beginning; anything else stays.
            std::fs::remove_dir(out).map_err(|e| Error::io("replace", out, e))?;
        }
        std::fs::rename(result, out).map_err(|e| Error::io("write", out, e))?;
        remove_tree(&self.work)
    }
}

/// Everything that decides the completions: settings, and names, sizes and times of the files behind policy and sets.
fn key(config: &Config, policy: &Policy, sets: &[&SetName]) -> Result<String> {
    let failed = |e| Error::failed("cannot write the settings as JSON").caused_by(e);
    let mut files = Vec::new();
    for folder in policy.folders.iter().chain(sets.iter().filter_map(|set| set.path.as_ref())) {
        stat(&absolute(folder)?, 0, &mut files)?;
    }
    let specs =
        sets.iter().map(|set| serde_json::to_value(&set.spec)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let value = json!({
        "qerl": env!("CARGO_PKG_VERSION"),
        "config": serde_json::to_value(config).map_err(failed)?,
        "policy": policy.artifact.meta.fingerprint,
        "sets": specs,
        "files": files,
    });
    Ok(blake3::hash(canonical(&value).as_bytes()).to_hex().to_string())
}

/// Deeper folders of a data set do not matter for telling two runs apart.
const MAX_DEPTH: usize = 4;

fn stat(path: &Path, depth: usize, out: &mut Vec<serde_json::Value>) -> Result<()> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io("read", path, e))?;
    if meta.is_dir() {
        if depth < MAX_DEPTH {
            let entries = std::fs::read_dir(path).map_err(|e| Error::io("read", path, e))?;
            let mut inside: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
            inside.sort();
            inside.iter().filter(|p| p.exists()).try_for_each(|p| stat(p, depth + 1, out))?;
        }
        return Ok(());
    }
    let changed =
        meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_nanos().to_string());
    out.push(json!([path.display().to_string(), meta.len(), changed]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::model_arg::artifact;
    use crate::stages::{DataRef, Kind, StageRef};
    use crate::store::Handle;

    fn config(seed: u64) -> Config {
        let (policy, data) = (StageRef("policy".into()), vec![DataRef("mine".into())]);
        let mut config: Config =
            serde_json::from_value(json!({"policy": "policy", "data": ["mine"]})).expect("a configuration");
        (config.policy, config.data, config.seed) = (policy, data, seed);
        config
    }

    #[test]
    fn the_same_evaluation_goes_on_and_another_one_starts_anew() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir(&model).unwrap();
        std::fs::write(model.join("config.json"), "{}").unwrap();
        let policy = Policy { artifact: artifact(&model, Kind::Download, Handle::Eval), folders: vec![model.clone()] };
        let out = dir.path().join("out");
        let open = |seed: u64| Place::open(Some(&out), &config(seed), &policy, &[]);
        let journal = |place: &Place| place.kept("work").unwrap().join("records.0.jsonl");
        std::fs::write(journal(&open(1).unwrap()), "kept").unwrap();
        assert!(journal(&open(1).unwrap()).exists(), "an interrupted run goes on");
        assert!(!journal(&open(2).unwrap()).exists(), "other settings");
        std::fs::write(journal(&open(2).unwrap()), "kept").unwrap();
        std::fs::write(model.join("config.json"), "{ }").unwrap();
        let place = open(2).unwrap();
        assert!(!journal(&place).exists(), "another model under the same name");

        let result = place.fresh("output").unwrap();
        std::fs::write(result.join("summary.json"), "{}").unwrap();
        place.finish(&result).unwrap();
        assert!(out.join("summary.json").exists() && !out.with_file_name("out.partial").exists());
        assert!(open(2).is_err(), "a finished evaluation is not overwritten");
        std::fs::create_dir(dir.path().join("new.partial")).unwrap();
        let foreign = Place::open(Some(&dir.path().join("new")), &config(1), &policy, &[]);
        assert!(foreign.is_err_and(|e| e.to_string().contains("in the way")), "a folder of somebody else's");
    }
}
