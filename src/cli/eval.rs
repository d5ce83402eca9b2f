//! `qerl eval`: one policy on problem sets without a pipeline, and the comparison of two evaluations.

mod input;
mod place;
mod versus;

use std::path::PathBuf;

use input::{SetArgs, SetName};
use place::Place;

use super::bar::Bar;
use super::model_arg::{self, Policy};
use super::out::write as out;
use crate::control::Cancel;
use crate::eval::{files, table};
use crate::hub::Hub;
use crate::stages::{Context, DataRef, Input, StageRef, eval, split};
use crate::store::{Artifact, Store};
use crate::{Error, Result, run};

/// Evaluate a model on problem sets, or compare two evaluations
///
/// Sets are files and folders that are here already: `gsm8k=DIR` reads a built-in set's files, `FILE.jsonl` any
/// problems with their answers, `arith` and `sums` are made on the spot. Pipelines download sets by themselves.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model's folder, `bundled`, or the ADDRESS of a pipeline's stage (PIPELINE:STAGE@AXIS=LABEL,...)
    #[arg(required_unless_present = "compare")]
    model: Option<String>,
    /// A PEFT adapter's folder
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Which checkpoint of an ADDRESS: `last`, `best` or a step
    #[arg(long, value_name = "NAME", default_value = "last")]
    checkpoint: String,
    /// NAME=PATH, FILE, or a generated set's NAME; may be repeated
    #[arg(long, value_name = "SET", required_unless_present = "compare")]
    data: Vec<String>,
    #[command(flatten)]
    sets: SetArgs,
    #[command(flatten)]
    drawing: Drawing,
    /// Keep summary.json and records.parquet in this new folder; an interrupted run with it goes on where it was
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// CPU threads; all by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Compare two evaluations (folders, records.parquet, .jsonl or addresses) question by question
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["model", "data", "adapter", "out"])]
    compare: Option<Vec<String>>,
}

/// How completions are drawn.
#[derive(Debug, clap::Args)]
struct Drawing {
    /// Completions per problem
    #[arg(long, default_value_t = 1)]
    samples: usize,
    /// 0 is greedy; several samples need more
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// 0 is off
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    #[arg(long, default_value_t = 1024)]
    max_new_tokens: usize,
    /// Only the first so many problems of each set
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print pass@k and maj@k for these k
    #[arg(long, value_delimiter = ',')]
    k: Vec<usize>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Worked examples before each question
    #[arg(long, default_value_t = 0, requires = "shots_data")]
    shots: usize,
    /// The set that examples come from, as in --data
    #[arg(long, value_name = "SET", requires = "shots")]
    shots_data: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(pair) = &args.compare {
        return versus::run(&pair[0], &pair[1], args.drawing.seed, args.json);
    }
    let store = Store::from_env()?;
    // clap has seen to it that there is one.
    let model = args.model.as_deref().unwrap_or_default();
    let policy = Policy::find(&store, model, args.adapter.as_deref(), &args.checkpoint)?;
    let names = args.data.iter().map(|text| args.sets.name(text, true)).collect::<Result<Vec<_>>>()?;
    let shots = args.drawing.shots_data.as_deref().map(|text| args.sets.name(text, false)).transpose()?;
    let config = config(args, &names, shots.as_ref());
    config.check()?;
    let sources: Vec<&SetName> = names.iter().chain(&shots).collect();
    let place = Place::open(args.out.as_deref(), &config, &policy, &sources)?;
    let cancel = Cancel::new();
    let hint = if args.out.is_some() { ": the same command goes on from here" } else { "" };
    run::stop_on_interrupt(&cancel, move || eprintln!("\nstopping{hint} (Ctrl-C again: stop now)"))?;
    let bar = Bar::new();
    let hub = Hub::from_env()?;
    let stage = |inputs: Vec<Input>, folder: &str| -> Result<Context<'_>> {
        Ok(Context {
            inputs,
            output: place.fresh(folder)?,
            work: place.kept("work")?,
            store: &store,
            progress: &bar,
            cancel: &cancel,
            threads: args.threads,
            base_dir: PathBuf::from("."),
            hub: &hub,
        })
    };
    let mut inputs = vec![slot("policy", policy.artifact.clone(), &args.checkpoint, None)];
    for (i, name) in sources.iter().enumerate() {
        let at = if i < names.len() { format!("data.{i}") } else { "shots_data".to_owned() };
        let source = name.source()?.map(|artifact| slot("source", artifact, "last", None));
        let context = stage(source.into_iter().collect(), &format!("sets/{i}"))?;
        let made = split::run(&context, &name.config()).map_err(|e| e.within(&name.label))?;
        let problems = model_arg::artifact(&context.output, crate::stages::Kind::Split, made.handle);
        inputs.push(slot(&at, problems, "last", Some(name.part)));
    }
    let context = stage(inputs, "output")?;
    eval::run(&context, &config)?;
    let summary = files::read_summary(&context.output)?;
    place.finish(&context.output)?;
    drop(bar);
    if args.json {
        let text = serde_json::to_string_pretty(&summary)
            .map_err(|e| Error::failed("cannot write the summary as JSON").caused_by(e))?;
        return out(&(text + "\n"));
    }
    out(&table::summary(&summary))
}

fn config(args: &Args, names: &[SetName], shots: Option<&SetName>) -> eval::Config {
    let drawing = &args.drawing;
    eval::Config {
        policy: StageRef("policy".to_owned()),
        data: names.iter().map(|name| DataRef(name.label.clone())).collect(),
        samples: drawing.samples,
        temperature: drawing.temperature,
        top_p: drawing.top_p,
        top_k: drawing.top_k,
        max_new_tokens: drawing.max_new_tokens,
        limit: drawing.limit,
        k: drawing.k.clone(),
        seed: drawing.seed,
        shots: drawing.shots,
        shots_data: shots.map(|name| DataRef(name.label.clone())),
    }
}

fn slot(slot: &str, artifact: Artifact, checkpoint: &str, part: Option<&str>) -> Input {
    model_arg::input(slot, slot, artifact, checkpoint, part)
}
