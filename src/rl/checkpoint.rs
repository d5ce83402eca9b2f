//! Checkpoints of an interrupted run: parameters, optimizer state and counters in a folder that appears whole or not
//! at all. All randomness is a function of the counters, so nothing else is needed to continue bit by bit.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::{Engine, NamedTensor, OptimizerState};
use crate::{Error, Result};

const PREFIX: &str = "checkpoint-";
/// The newest one may be lost to a bad disk: the one before is kept too.
const KEPT: usize = 2;

/// Counters of a run; everything else follows from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Optimizer steps done.
    pub step: u64,
    /// Prompts taken from the shuffled epochs so far.
    pub cursor: u64,
    /// Prompt and completion tokens trained on so far.
    pub tokens: u64,
    /// Steps in a row that looked diverged.
    pub bad_streak: u64,
    /// Step and accuracy of the best evaluation.
    pub best: Option<(u64, f64)>,
    /// Steps whose parameters are kept for the artifact.
    pub kept: Vec<u64>,
    /// Why training ended before its time.
    pub stopped: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    counters: Counters,
    optimizer_step: u64,
    /// blake3 of the two tensor files.
    parameters: String,
    optimizer: String,
}

/// Where a run keeps its state.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
}

impl Checkpoints {
    /// `dir` is made where it is missing; folders of interrupted writes are removed.
    pub fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        let this = Self { dir: dir.to_owned() };
        for entry in fs::read_dir(dir).map_err(|e| Error::io("read", dir, e))?.flatten() {
            if entry.file_name().to_string_lossy().ends_with(".partial") {
                let path = entry.path();
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(|e| Error::io("remove", &path, e))?;
            }
        }
        Ok(this)
    }

    /// Steps that have a checkpoint, newest first.
    fn steps(&self) -> Result<Vec<u64>> {
        let entries = fs::read_dir(&self.dir).map_err(|e| Error::io("read", &self.dir, e))?;
        let mut steps: Vec<u64> = entries
            .flatten()
            .filter_map(|e| e.file_name().to_string_lossy().strip_prefix(PREFIX)?.parse().ok())
            .collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{step}"))
    }

    /// Writes the engine's state and the counters; older checkpoints are removed afterwards.
    pub fn save(&self, engine: &dyn Engine, counters: &Counters) -> Result<()> {
        let target = self.path(counters.step);
        let partial = target.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(|e| Error::io("remove", &partial, e))?;
        }
        fs::create_dir_all(&partial).map_err(|e| Error::io("create", &partial, e))?;
        let optimizer = engine.optimizer_state()?;
        let state = StateFile {
            counters: counters.clone(),
            optimizer_step: optimizer.step,
            parameters: write_tensors(&partial.join("parameters.safetensors"), &engine.parameters()?)?,
            optimizer: write_tensors(&partial.join("optimizer.safetensors"), &optimizer.tensors)?,
        };
        let text = serde_json::to_string_pretty(&state)
            .map_err(|e| Error::failed("cannot write the training state").caused_by(e))?;
        write_synced(&partial.join("state.json"), text.as_bytes())?;
        if target.exists() {
            fs::remove_dir_all(&target).map_err(|e| Error::io("remove", &target, e))?;
        }
        fs::rename(&partial, &target).map_err(|e| Error::io("rename", &partial, e))?;
        sync_dir(&self.dir)?;
        for step in self.steps()?.into_iter().filter(|s| *s <= counters.step).skip(KEPT) {
            let old = self.path(step);
            fs::remove_dir_all(&old).map_err(|e| Error::io("remove", &old, e))?;
        }
        Ok(())
    }

    /// Puts the newest checkpoint of at most `limit` steps that reads back whole into `engine`; `None` where there is
    /// none. The second value names checkpoints that were passed over as damaged.
    pub fn restore(&self, engine: &mut dyn Engine, limit: u64) -> Result<(Option<Counters>, Vec<String>)> {
        let mut damaged = Vec::new();
        for step in self.steps()?.into_iter().filter(|s| *s <= limit) {
            match self.read(step) {
                Ok((counters, parameters, optimizer)) => {
                    engine.set_parameters(&parameters)?;
                    engine.set_optimizer_state(&optimizer)?;
                    return Ok((Some(counters), damaged));
                }
                Err(error) => {
                    damaged.push(format!("checkpoint of step {step} is damaged ({error}); trying an older one"))
                }
            }
        }
        Ok((None, damaged))
    }

    fn read(&self, step: u64) -> Result<(Counters, Vec<NamedTensor>, OptimizerState)> {
        let dir = self.path(step);
        let path = dir.join("state.json");
        let text = fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        let state: StateFile = serde_json::from_str(&text)
            .map_err(|e| Error::input(format!("{} is malformed", path.display())).caused_by(e))?;
        let parameters = read_tensors(&dir.join("parameters.safetensors"), Some(&state.parameters))?;
        let tensors = read_tensors(&dir.join("optimizer.safetensors"), Some(&state.optimizer))?;
        Ok((state.counters, parameters, OptimizerState { step: state.optimizer_step, tensors }))
    }

    /// File of parameters kept under `name` (`best`, a step number).
    pub fn kept_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("kept-{name}.safetensors"))
    }

    /// Keeps the engine's parameters under `name`.
    pub fn keep(&self, name: &str, engine: &dyn Engine) -> Result<()> {
        let path = self.kept_path(name);
        let partial = path.with_extension("partial");
        write_tensors(&partial, &engine.parameters()?)?;
        fs::rename(&partial, &path).map_err(|e| Error::io("rename", &partial, e))
    }

    pub fn kept(&self, name: &str) -> Result<Vec<NamedTensor>> {
        read_tensors(&self.kept_path(name), None)
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let mut file = fs::File::create(path).map_err(|e| Error::io("create", path, e))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| Error::io("write", path, e))
}

fn sync_dir(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("sync", dir, e))
}

/// Tensors of this name hold bytes (8-bit optimizer states) and take one byte each in the file.
const CODES: &str = ".codes";

/// Writes tensors in a fixed order, as f32 or bytes; gives the file's blake3.
fn write_tensors(path: &Path, tensors: &[NamedTensor]) -> Result<String> {
    let bytes: Vec<(safetensors::Dtype, Vec<u8>)> = tensors
        .iter()
        .map(|t| match t.name.ends_with(CODES) {
            true => (safetensors::Dtype::U8, t.data.iter().map(|&v| v as u8).collect()),
            false => (safetensors::Dtype::F32, t.data.iter().flat_map(|v| v.to_le_bytes()).collect()),
        })
        .collect();
    let bad = |e: safetensors::SafeTensorError| Error::failed("cannot lay out a checkpoint").caused_by(e);
    let mut views = Vec::with_capacity(tensors.len());
    for (tensor, (dtype, data)) in tensors.iter().zip(&bytes) {
        let view = safetensors::tensor::TensorView::new(*dtype, tensor.shape.clone(), data);
        views.push((tensor.name.clone(), view.map_err(bad)?));
    }
    let out = safetensors::serialize(views, None).map_err(bad)?;
    write_synced(path, &out)?;
    Ok(blake3::hash(&out).to_hex().to_string())
}

fn read_tensors(path: &Path, digest: Option<&str>) -> Result<Vec<NamedTensor>> {
    let bytes = fs::read(path).map_err(|e| Error::io("read", path, e))?;
    if digest.is_some_and(|want| blake3::hash(&bytes).to_hex().as_str() != want) {
        return Err(Error::new(crate::error::Kind::Integrity, format!("{} has changed", path.display())));
    }
    let file = safetensors::SafeTensors::deserialize(&bytes)
        .map_err(|e| Error::input(format!("{} is malformed", path.display())).caused_by(e))?;
    let mut tensors = Vec::new();
    for (name, view) in file.iter() {
        let data = match view.dtype() {
            safetensors::Dtype::F32 => view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            safetensors::Dtype::U8 => view.data().iter().map(|&b| f32::from(b)).collect(),
            other => return Err(Error::input(format!("{}: {name} is {other:?}, not f32", path.display()))),
        };
        tensors.push(NamedTensor { name: name.to_owned(), shape: view.shape().to_vec(), data });
    }
    Ok(tensors)
}
