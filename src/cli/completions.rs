//! `qerl completions`: a completion script for a shell.

use crate::Result;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
pub struct Args {
    shell: clap_complete::Shell,
}

pub fn run(args: &Args) -> Result<()> {
    clap_complete::generate(args.shell, &mut super::command(), "qerl", &mut std::io::stdout());
    Ok(())
}
