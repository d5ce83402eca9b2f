//! The command line: one file per subcommand; data to stdout, talk to stderr, exit codes 0, 1, 2.

mod bar;
mod cache;
mod chat;
mod completions;
mod doctor;
mod eval;
mod export;
mod generate;
mod grade;
mod graph;
mod lock;
mod model_arg;
mod out;
mod path;
mod pipeline_args;
mod plan;
mod quantize;
mod run;
mod sampling_args;
mod schedule;
mod schema;
mod score;
mod selftest;
mod text_model;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::Error;

#[derive(Debug, Parser)]
#[command(name = "qerl", version, about, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // A pipeline, from looking at it to running it.
    Run(run::Args),
    Plan(plan::Args),
    Validate(validate::Args),
    Graph(graph::Args),
    Schedule(schedule::Args),
    Lock(lock::Args),
    // What is finished.
    Cache(cache::Args),
    Path(path::Args),
    // Single steps.
    Quantize(quantize::Args),
    Export(export::Args),
    Generate(generate::Args),
    Score(score::Args),
    Chat(chat::Args),
    Eval(Box<eval::Args>),
    Grade(grade::Args),
    // Around it.
    Doctor(doctor::Args),
    Selftest(selftest::Args),
    Schema(schema::Args),
    Completions(completions::Args),
}

/// Parses, runs, prints an error with its hint, and gives the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Lock(args) => lock::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Graph(args) => graph::run(&args),
        Command::Schedule(args) => schedule::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Path(args) => path::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Export(args) => export::run(&args),
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
