//! The command line: one file per subcommand; data to stdout, talk to stderr, exit codes 0, 1, 2.

mod bar;
mod bench;
mod cache;
mod chat;
mod completions;
mod diff;
mod doctor;
mod eval;
mod exec_stage;
mod export;
mod generate;
mod grade;
mod graph;
mod inspect;
mod lock;
mod model_arg;
mod out;
mod path;
mod pipeline_args;
mod plan;
mod quantize;
mod report;
mod reproduce;
mod run;
mod run_slurm;
mod runs;
mod runs_top;
mod sampling_args;
mod schedule;
mod schema;
mod score;
mod selftest;
mod slurm;
mod text_model;
mod validate;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::Error;
use crate::engine::Device;
use crate::engine::cuda::device;

#[derive(Debug, Parser)]
#[command(name = "qerl", version, about, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    /// What engines compute on: `auto` (the GPU with most free memory, else the CPU), `cpu` or `cuda:N`; only commands
    /// that load a model look at it
    #[arg(long, global = true, value_name = "DEVICE", env = "QERL_DEVICE", hide_env_values = true)]
    device: Option<Device>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // A pipeline, from looking at it to running it.
    Run(Box<run::Args>),
    Slurm(slurm::Args),
    #[command(hide = true)]
    ExecStage(exec_stage::Args),
    Plan(plan::Args),
    Validate(validate::Args),
    Graph(graph::Args),
    Schedule(schedule::Args),
    Lock(lock::Args),
    // What is finished.
    Cache(cache::Args),
    Path(path::Args),
    Report(report::Args),
    Runs(runs::Args),
    Watch(watch::Args),
    Diff(diff::Args),
    Reproduce(reproduce::Args),
    // Single steps.
    Quantize(quantize::Args),
    Export(export::Args),
    Inspect(inspect::Args),
    Generate(generate::Args),
    Score(score::Args),
    Chat(chat::Args),
    Eval(Box<eval::Args>),
    Grade(grade::Args),
    // Around it.
    Bench(bench::Args),
    Doctor(doctor::Args),
    Selftest(selftest::Args),
    Schema(schema::Args),
    Completions(completions::Args),
}

/// Parses, runs, prints an error with its hint, and gives the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(device) = cli.device {
        device::choose(device);
    }
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Slurm(args) => slurm::run(&args),
        Command::ExecStage(args) => exec_stage::run(&args),
        Command::Lock(args) => lock::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Graph(args) => graph::run(&args),
        Command::Schedule(args) => schedule::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Path(args) => path::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Runs(args) => runs::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Grade(args) => grade::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn print_error(error: &Error) {
    eprintln!("error: {error}");
    if let Some(hint) = error.hint_text() {
        eprintln!("  hint: {hint}");
    }
}

/// The whole command, for completions and the manual.
fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}
