//! Problems of a stage's data inputs.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::data::{DataSpec, Problem};
use crate::stages::{Context, split};
use crate::store::{Artifact, Handle};
use crate::{Error, Result};

/// The problems in `slot`, in the part that the input names (`otherwise` where it names none).
pub fn problems(context: &Context<'_>, slot: &str, otherwise: &str) -> Result<Vec<Problem>> {
    let part = context.input(slot)?.part.as_deref().unwrap_or(otherwise);
    let mut problems = Vec::new();
    each(&file(artifact(context, slot)?, part)?, &mut |problem| problems.push(problem))?;
    Ok(problems)
}

/// Problems that may be shown: the part `train` of the set in `slot`; the part that the input names where that is empty.
pub fn examples(context: &Context<'_>, slot: &str) -> Result<Vec<Problem>> {
    let artifact = artifact(context, slot)?;
    let mut found = Vec::new();
    if let Ok(path) = file(artifact, "train") {
        each(&path, &mut |problem| found.push(problem))?;
    }
    if found.is_empty() { problems(context, slot, "all") } else { Ok(found) }
}

/// How the data in `slot` was read: its template, system prompt and prompt length.
pub fn spec(context: &Context<'_>, slot: &str) -> Result<DataSpec> {
    split::spec(artifact(context, slot)?).map_err(|e| e.within(format!("{slot:?}")))
}

/// The file of a part (`train`, `holdout`, `all`) of an artifact that holds problems.
pub fn file(artifact: &Artifact, part: &str) -> Result<PathBuf> {
    let instance = &artifact.meta.provenance.instance;
    let Handle::Problems { parts } = &artifact.meta.handle else {
        return Err(Error::usage(format!("{instance:?} gives no problems")).hint("name an entry under `data:`"));
    };
    let file = parts.get(part).ok_or_else(|| {
        let have: Vec<&str> = parts.keys().map(String::as_str).collect();
        Error::missing(format!("{instance:?} has no part {part:?}")).hint(format!("it has: {}", have.join(", ")))
    })?;
    Ok(artifact.dir.join(file))
}

/// Reads problems one by one: a training set need not fit into memory.
pub fn each(path: &Path, take: &mut dyn FnMut(Problem)) -> Result<()> {
    let reader = BufReader::new(std::fs::File::open(path).map_err(|e| Error::io("open", path, e))?);
    for (i, line) in reader.lines().enumerate() {
        let line = line.map_err(|e| Error::io("read", path, e))?;
        take(
            serde_json::from_str(&line)
                .map_err(|e| Error::input(format!("{} line {} is no problem", path.display(), i + 1)).caused_by(e))?,
        );
    }
    Ok(())
}

fn artifact<'a>(context: &'a Context<'_>, slot: &str) -> Result<&'a Artifact> {
    let input = context.input(slot)?;
    let absent = |why| Error::failed(format!("data of {:?} is not there: {why}", input.stage));
    input.artifact.as_ref().map_err(absent)
}
