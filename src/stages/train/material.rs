//! Problems of a stage's data inputs.

use std::io::{BufRead, BufReader};

use crate::data::Problem;
use crate::stages::{Context, split};
use crate::store::Handle;
use crate::{Error, Result};

/// The problems in `slot`, in the part that the input names (`train` where it names none).
pub fn problems(context: &Context<'_>, slot: &str) -> Result<Vec<Problem>> {
    let input = context.input(slot)?;
    let artifact = input
        .artifact
        .as_ref()
        .map_err(|why| Error::failed(format!("data of {:?} is not there: {why}", input.stage)))?;
    let Handle::Problems { parts } = &artifact.meta.handle else {
        return Err(Error::usage(format!("{:?} gives no problems", input.stage)).hint("name an entry under `data:`"));
    };
    let part = input.part.as_deref().unwrap_or("train");
    let file = parts.get(part).ok_or_else(|| {
        let have: Vec<&str> = parts.keys().map(String::as_str).collect();
        Error::missing(format!("{:?} has no part {part:?}", input.stage)).hint(format!("it has: {}", have.join(", ")))
    })?;
    let path = artifact.dir.join(file);
    let reader = BufReader::new(std::fs::File::open(&path).map_err(|e| Error::io("open", &path, e))?);
    let mut problems = Vec::new();
    for (i, line) in reader.lines().enumerate() {
        let line = line.map_err(|e| Error::io("read", &path, e))?;
        problems.push(
            serde_json::from_str(&line)
                .map_err(|e| Error::input(format!("{} line {} is no problem", path.display(), i + 1)).caused_by(e))?,
        );
    }
    Ok(problems)
}

/// How the data in `slot` was read: its template, system prompt and prompt length.
pub fn spec(context: &Context<'_>, slot: &str) -> Result<crate::data::DataSpec> {
    let input = context.input(slot)?;
    let artifact = input
        .artifact
        .as_ref()
        .map_err(|why| Error::failed(format!("data of {:?} is not there: {why}", input.stage)))?;
    split::spec(artifact).map_err(|e| e.within(format!("data of {:?}", input.stage)))
}
