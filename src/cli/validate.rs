//! `qerl validate`: whether pipeline files are right, in every profile; every error with its place.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::out::write as out;
use super::pipeline_args::{Choice, shown};
use crate::pipeline::{self, Diagnostics, Graph};
use crate::stages::Kind;
use crate::{Error, Result};

/// Check pipeline files: every error, with its place and what was expected
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pipeline files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// Print JSON: errors with their places, counts of what is valid
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let mut results = Vec::new();
    for file in &args.files {
        results.push((file, check(file, &args.choice)));
    }
    if args.json {
        return as_json(&results);
    }
    let mut text = String::new();
    let mut bad = Vec::new();
    for (file, result) in results {
        match result {
            Ok(checked) => text += &checked.to_text(file),
            Err((profile, diagnostics)) => bad.push((file, profile, diagnostics)),
        }
    }
    out(&text)?;
    let mut errors = bad.into_iter().map(|(file, profile, diagnostics)| {
        let error = shown(diagnostics);
        match profile {
            Some(profile) => error.within(format!("{}, profile {profile}", file.display())),
            None => error.within(file.display()),
        }
    });
    let Some(first) = errors.next() else { return Ok(()) };
    let rest: Vec<String> = errors.map(|e| format!("\n\nerror: {}", e.message())).collect();
    Err(Error::usage(format!("{}{}", first.message(), rest.concat())))
}

/// A file that is right.
struct Checked {
    graph: Graph,
    /// Profiles that were checked beside the plain file.
    profiles: Vec<String>,
}

/// Checks a file as it is and, unless one is asked for, in each of its profiles.
fn check(file: &Path, choice: &Choice) -> Result<Checked, (Option<String>, Diagnostics)> {
    let graph = pipeline::load(file, &choice.options()).map_err(|d| (choice.profile.clone(), d))?;
    let profiles = if choice.profile.is_some() { Vec::new() } else { pipeline::profiles(file) };
    for profile in &profiles {
        let mut options = choice.options();
        options.profile = Some(profile.clone());
        pipeline::load(file, &options).map_err(|d| (Some(profile.clone()), d))?;
    }
    Ok(Checked { graph, profiles })
}

/// How many instances there are of what.
struct Counts {
    stages: usize,
    distinct: usize,
    trainings: usize,
    data: usize,
}

fn counts(graph: &Graph) -> Counts {
    let first = graph.first_equal();
    let own = |i: &usize| !graph.instances[*i].stage.contains('.');
    let all: Vec<usize> = (0..graph.instances.len()).collect();
    let kind = |i: &&usize| graph.instances[**i].kind == Kind::Train;
    let stages = all.iter().filter(|i| own(i));
    Counts {
        stages: stages.clone().count(),
        distinct: stages.clone().filter(|i| first[**i] == **i).count(),
        trainings: stages.filter(kind).count(),
        data: all.iter().filter(|i| !own(i)).count(),
    }
}

impl Checked {
    fn to_text(&self, file: &Path) -> String {
        let Counts { stages, distinct, trainings, data } = counts(&self.graph);
        let mut text = format!("{}: valid, {}", file.display(), plural(stages, "stage instance"));
        if distinct < stages {
            text += &format!(" ({distinct} distinct)");
        }
        text += &format!(", {}, {} for data", plural(trainings, "training"), plural(data, "stage"));
        if !self.profiles.is_empty() {
            text += &format!("; also with profile {}", self.profiles.join(", "));
        }
        text.push('\n');
        for note in &self.graph.notes {
            text += &format!("  note: {note}\n");
        }
        text
    }
}

fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

type Outcome<'a> = (&'a PathBuf, Result<Checked, (Option<String>, Diagnostics)>);

fn as_json(results: &[Outcome<'_>]) -> Result<()> {
    let mut bad = 0;
    let mut list = Vec::new();
    for (file, result) in results {
        list.push(match result {
            Ok(checked) => {
                let Counts { stages, distinct, trainings, data } = counts(&checked.graph);
                json!({"file": file, "valid": true, "name": checked.graph.name, "profiles": checked.profiles,
                    "axes": checked.graph.axes, "stage_instances": stages, "distinct": distinct,
                    "trainings": trainings, "data_stages": data, "notes": checked.graph.notes})
            }
            Err((profile, diagnostics)) => {
                bad += 1;
                json!({"file": file, "valid": false, "profile": profile, "errors": diagnostics.to_json()})
            }
        });
    }
    let text = serde_json::to_string_pretty(&list).map_err(|e| Error::failed("cannot write JSON").caused_by(e))?;
    out(&(text + "\n"))?;
    match bad {
        0 => Ok(()),
        1 => Err(Error::usage("one file is not valid")),
        n => Err(Error::usage(format!("{n} files are not valid"))),
    }
}
