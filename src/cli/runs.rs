//! `qerl runs`: what was run, how it went, and its records.

use super::out::write as out;
use crate::run::record::{RunRecord, RunState, find_run, remove_run, run_folder, runs};
use crate::run::text_of_seconds;
use crate::store::{Store, short};
use crate::{Error, Result};

/// List, show, rank and remove runs
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List runs, oldest first
    #[command(visible_alias = "list")]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show how every stage of a run ended
    Show {
        /// An id of `qerl runs ls`, the beginning of one, `last` or `last~N`
        run: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove records of runs that are over; artifacts stay
    #[command(visible_alias = "remove")]
    Rm {
        #[arg(required = true)]
        runs: Vec<String>,
    },
    Top(super::runs_top::Args),
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    match &args.command {
        Command::Ls { json } => list(&store, *json),
        Command::Show { run, json } => show(&store, &find_run(&store, run)?, *json),
        Command::Top(args) => super::runs_top::run(args),
        Command::Rm { runs } => {
            // All of them must be there before one goes: `last` would mean another one then.
            let found = runs.iter().map(|name| find_run(&store, name)).collect::<Result<Vec<_>>>()?;
            found.iter().try_for_each(|record| remove_run(&store, record))?;
            out(&format!("{} records removed\n", found.len()))
        }
    }
}

fn json_of(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(|e| Error::failed("cannot write JSON").caused_by(e))? + "\n")
}

fn list(store: &Store, json: bool) -> Result<()> {
    let all = runs(store)?;
    if json {
        return out(&json_of(&all)?);
    }
    let mut text = String::new();
    for run in &all {
        let time = run.seconds.map(text_of_seconds).unwrap_or_default();
        text += &format!("{}  {:<8} {time:>12}  {}\n", run.id, run.state.name(), what(run));
    }
    text += &format!("{} runs in {}\n", all.len(), store.root.join("runs").display());
    out(&text)
}

/// `tiny --set train.steps=2 --profile smoke`.
fn what(run: &RunRecord) -> String {
    let mut text = run.pipeline.clone();
    let options = &run.overrides;
    for (flag, values) in [("--set", &options.sets), ("--only", &options.only)] {
        values.iter().for_each(|value| text += &format!(" {flag} {value}"));
    }
    if let Some(profile) = &options.profile {
        text += &format!(" --profile {profile}");
    }
    text
}

fn show(store: &Store, run: &RunRecord, json: bool) -> Result<()> {
    if json {
        return out(&json_of(run)?);
    }
    let mut text = format!("{}  {}  {}\n", run.id, run.state.name(), what(run));
    text += &format!("started {} on {} (process {}), qerl {}\n", run.started, run.host, run.pid, run.qerl_version);
    if let Some(error) = &run.error {
        text += &format!("error: {error}\n");
    }
    let width = run.instances.iter().map(|i| i.name.chars().count()).max().unwrap_or(0).min(60);
    for instance in &run.instances {
        let detail = match (&instance.why, &instance.fingerprint) {
            (Some(why), _) => why.clone(),
            (None, Some(fingerprint)) => short(fingerprint).to_owned(),
            (None, None) => String::new(),
        };
        text += &format!("  {:<8} {:<width$}  {detail}\n", instance.outcome, instance.name);
    }
    if matches!(run.state, RunState::Running | RunState::Killed) {
        text += "how its stages ended is not written yet: events.jsonl says how far it came\n";
    }
    text += &format!("files: {}\n", run_folder(store, run).display());
    out(&text)
}
