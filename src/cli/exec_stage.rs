//! `qerl exec-stage`: what a Slurm job runs; not for the shell.

use std::path::PathBuf;

use crate::control::Cancel;
use crate::hub::Hub;
use crate::run::{self, Lines};
use crate::slurm::{Frozen, exec, finish};
use crate::{Error, Result};

/// Run one stage of a frozen plan, inside a Slurm job
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder of the submitted run
    #[arg(long, value_name = "DIR")]
    plan: PathBuf,
    /// The stage; which of its instances is said by SLURM_ARRAY_TASK_ID
    #[arg(long, value_name = "STAGE", required_unless_present = "finish")]
    stage: Option<String>,
    /// After everything: publish reports and notify
    #[arg(long, conflicts_with = "stage")]
    finish: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let frozen = Frozen::read(&args.plan)?;
    let listener = Lines::new(std::io::stderr());
    let Some(stage) = &args.stage else { return finish(&frozen, &listener) };
    let task = frozen.tasks.iter().find(|task| task.stage == *stage);
    let task = task.ok_or_else(|| Error::usage(format!("the frozen plan has no stage `{stage}` to run")))?;
    let number = match std::env::var("SLURM_ARRAY_TASK_ID") {
        Ok(text) if !text.is_empty() => {
            text.parse().map_err(|_| Error::usage(format!("SLURM_ARRAY_TASK_ID is `{text}`, not a number")))?
        }
        _ if task.instances.len() > 1 => return Err(Error::usage("SLURM_ARRAY_TASK_ID is not set")),
        _ => 0usize,
    };
    let index = task.instances.get(number).copied();
    let index = index.ok_or_else(|| Error::usage(format!("`{stage}` has no task {number}")))?;
    let hub = Hub::from_env()?;
    let cancel = Cancel::new();
    run::stop_on_interrupt(&cancel, || {})?;
    exec(&frozen, index, &hub, &listener, &cancel)
}
