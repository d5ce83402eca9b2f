//! `qerl slurm`: how submitted runs stand, and taking them back.

use super::out::write as out;
use crate::slurm::{Frozen, Jobs, Status, cancel, find, status};
use crate::store::Store;
use crate::{Error, Result};

/// Status and cancelling of runs that were submitted with `qerl run --executor slurm`
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show where every stage stands
    Status {
        /// A submitted run: its id, the beginning of it, or `last`
        #[arg(default_value = "last")]
        run: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take every job of a run back; what is finished stays, checkpoints too
    Cancel {
        /// A submitted run: its id, the beginning of it, or `last`
        run: String,
    },
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    match &args.command {
        Command::Status { run, json } => {
            let frozen = find(&store, run)?;
            let statuses = status(&frozen)?;
            if *json {
                let text = serde_json::to_string_pretty(&statuses);
                return out(&(text.map_err(|e| Error::failed("cannot write JSON").caused_by(e))? + "\n"));
            }
            out(&table(&frozen, &statuses))
        }
        Command::Cancel { run } => {
            let frozen = find(&store, run)?;
            cancel(&Jobs::read(&frozen)?)?;
            out(&format!("{}: every job is taken back\n", frozen.id))
        }
    }
}

fn table(frozen: &Frozen, statuses: &[Status]) -> String {
    let mut text = format!("{}  {}\n", frozen.id, frozen.graph.name);
    let width = statuses.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).min(60);
    for status in statuses {
        text += &format!("  {:<8} {:<width$}  {:<10}  {}\n", status.state, status.name, status.job, status.why);
    }
    text + &format!("logs: {}\n", frozen.folder().join("logs").display())
}
