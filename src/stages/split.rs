//! `split`: raw rows -> normalised problems in parts `train`, `holdout` and `all`. Made for each entry under
//! `data:`; can also stand in a pipeline by itself.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::download::raw_files;
use super::{Context, Output, StageRef};
use crate::data::parts::{Parts, cut, join};
use crate::data::read::{self, Found, Source};
use crate::data::template::{Template, file_text};
use crate::data::{DataSpec, Holdout, Problem, builtin, generate};
use crate::store::{Artifact, Handle, Location};
use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Raw files; absent for generated sets (`arith`, `sums`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<StageRef>,
    pub spec: DataSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holdout: Option<Holdout>,
}

/// How the problems are put: the stage's [`DataSpec`] with the text of its template file.
const SPEC: &str = "spec.json";

/// Reads or generates the set, cuts it, and writes one file of JSON lines per part.
pub fn run(context: &Context<'_>, config: &Config) -> Result<Output> {
    let mut spec = config.spec.clone();
    spec.template_text = file_text(&spec, &context.base_dir)?;
    // Refused here rather than when a model is loaded.
    Template::open(&spec, None)?;
    let mut found = Found::default();
    let parts = parts(context, config, &spec, &mut found)?;
    say(context, &found, &parts);

    let mut files = BTreeMap::new();
    let mut declared = Vec::new();
    let mut put = |name: &str, part: &mut dyn Iterator<Item = &Problem>| {
        context.cancel.check()?;
        let file = format!("{name}.jsonl");
        let written = write(&context.output.join(&file), part)?;
        files.insert(name.to_owned(), file.clone());
        declared.push(file);
        Ok::<usize, Error>(written)
    };
    let all = put("all", &mut parts.all.iter())?;
    let train = put("train", &mut parts.train())?;
    let held = if parts.holdout().next().is_some() { put("holdout", &mut parts.holdout())? } else { 0 };
    let path = context.output.join(SPEC);
    let text = serde_json::to_string_pretty(&spec)
        .map_err(|e| Error::failed("the data set's description cannot be written").caused_by(e))?;
    std::fs::write(&path, text + "\n").map_err(|e| Error::io("write", &path, e))?;
    declared.push(SPEC.to_owned());
    Ok(Output {
        declared,
        handle: Handle::Problems { parts: files },
        summary: json!({
            "problems": all,
            "train": train,
            "holdout": held,
            "duplicates": parts.duplicates,
            "conflicting_duplicates": parts.conflicts,
            "left_out_rows": found.left_out,
            "files": found.files,
        }),
    })
}

/// The set, cut: by the pipeline's hold-out; where it names none, by the source's own split for evaluation, or (of a
/// generated set) by the usual hold-out.
fn parts(context: &Context<'_>, config: &Config, spec: &DataSpec, found: &mut Found) -> Result<Parts> {
    let name = spec.builtin.as_deref();
    let set = name.map(|name| builtin(name).ok_or_else(|| read::unknown_builtin(name))).transpose()?;
    let Some(source) = &config.source else {
        if set.is_none_or(|set| set.repo.is_some()) {
            return Err(
                Error::usage("this data set has no source").hint("name a `repo`, or a generated set: arith, sums")
            );
        }
        let holdout = config.holdout.clone().or_else(|| generate::holdout(spec));
        return cut(generate::generate(spec)?, holdout.as_ref(), true);
    };
    let source = files(context, &source.0)?;
    let mut problems = |split: Option<&str>| {
        let mut problems = Vec::new();
        let spec = DataSpec { split: split.map(str::to_owned).or(spec.split.clone()), ..spec.clone() };
        let more = read::read(&source, &spec, context.cancel, &mut |mut problem: Problem| {
            // Both splits count their rows from 0.
            if let Some(split) = split {
                problem.id = format!("{split}/{}", problem.id);
            }
            problems.push(problem);
            Ok(())
        })?;
        found.add(more);
        Ok::<_, Error>(problems)
    };
    match read::apart(&source, spec)? {
        Some((train, evaluation)) if config.holdout.is_none() => {
            let train = train.map_or(Ok(Vec::new()), |split| problems(Some(split)))?;
            let held = evaluation.map_or(Ok(Vec::new()), |split| problems(Some(split)))?;
            Ok(join(train, held))
        }
        _ => cut(problems(None)?, config.holdout.as_ref(), read::unique(spec)),
    }
}

/// The raw files in `slot`: of the hub's cache only those that the download took.
fn files(context: &Context<'_>, slot: &str) -> Result<Source> {
    let input = context.input(slot)?;
    let artifact = input
        .artifact
        .as_ref()
        .map_err(|why| Error::failed(format!("the files of {:?} are not there: {why}", input.stage)))?;
    let Handle::Files { at } = &artifact.meta.handle else {
        return Err(Error::usage(format!("{:?} gives no raw files of a data set", input.stage))
            .hint("name a `download` stage with `dataset: true`"));
    };
    let place = context.store.locate(artifact, at)?;
    if !matches!(at, Location::Hub { .. }) {
        return Ok(Source::Place(place));
    }
    let names = raw_files(context.store, artifact)?.into_iter().map(|file| file.name).collect();
    Ok(Source::Listed(place, names))
}

fn say(context: &Context<'_>, found: &Found, parts: &Parts) {
    found.warnings.iter().for_each(|line| context.progress.say(line));
    if parts.duplicates > 0 {
        let other = match parts.conflicts {
            0 => String::new(),
            n => format!(" ({n} of them with another answer than the first)"),
        };
        context.progress.say(&format!("{} rows repeat an earlier problem and are left out{other}", parts.duplicates));
    }
}

fn write(path: &Path, problems: &mut dyn Iterator<Item = &Problem>) -> Result<usize> {
    let file = std::fs::File::create(path).map_err(|e| Error::io("write", path, e))?;
    let mut out = std::io::BufWriter::new(file);
    let mut count = 0;
    for problem in problems {
        let line = serde_json::to_string(problem)
            .map_err(|e| Error::failed(format!("problem {:?} cannot be written", problem.id)).caused_by(e))?;
        writeln!(out, "{line}").map_err(|e| Error::io("write", path, e))?;
        count += 1;
    }
    out.flush().map_err(|e| Error::io("write", path, e))?;
    Ok(count)
}

/// How the problems of a `split` artifact are put to a model: its spec with the text of its template file.
pub fn spec(artifact: &Artifact) -> Result<DataSpec> {
    let path = artifact.dir.join(SPEC);
    if path.is_file() {
        let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        return serde_json::from_slice(&bytes)
            .map_err(|e| Error::input(format!("{} does not describe a data set", path.display())).caused_by(e));
    }
    let config: Config = serde_json::from_value(artifact.meta.config.clone())
        .map_err(|e| Error::input("this is not the output of a `split` stage").caused_by(e))?;
    Ok(config.spec)
}
