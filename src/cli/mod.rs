//! The command line: one file per subcommand; data to stdout, talk to stderr, exit codes 0, 1, 2.

mod bar;
mod completions;
mod doctor;
mod eval;
mod grade;
mod out;
mod path;
mod quantize;

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
    Path(path::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Quantize(quantize::Args),
    Eval(Box<eval::Args>),
    Grade(grade::Args),
}

/// Parses, runs, prints an error with its hint, and gives the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Path(args) => path::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Quantize(args) => quantize::run(&args),
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
