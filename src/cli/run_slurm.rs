//! `qerl run --executor slurm`: pins, plans, submits, and looks on.

use crate::control::Cancel;
use crate::run::{self, Executor, Listener};
use crate::slurm::{Frozen, JobOptions, Status, freeze, submit, watch};
use crate::{Error, Result, plan};

/// What `qerl run` says to Slurm; a stage's `resources` come first.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "With --executor slurm")]
pub struct SlurmArgs {
    /// Partition of stages that name none
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Time limit of stages that name none: minutes or HH:MM:SS
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// Account to charge
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// Quality of service
    #[arg(long, value_name = "NAME")]
    qos: Option<String>,
    /// Address for Slurm's mails
    #[arg(long, value_name = "ADDRESS")]
    mail_user: Option<String>,
    /// When Slurm sends mails: END,FAIL and the like
    #[arg(long, value_name = "TYPE", requires = "mail_user")]
    mail_type: Option<String>,
    /// A further option of sbatch, such as --sbatch=--constraint=h100; may be repeated
    #[arg(long = "sbatch", value_name = "OPTION", allow_hyphen_values = true)]
    more: Vec<String>,
    /// Submit and return; `qerl slurm status` tells how it goes
    #[arg(long)]
    detach: bool,
}

impl SlurmArgs {
    /// The first option that was given, for an error where there is no Slurm.
    pub fn given(&self) -> Option<&'static str> {
        let named = [
            ("--partition", &self.partition),
            ("--time", &self.time),
            ("--account", &self.account),
            ("--qos", &self.qos),
            ("--mail-user", &self.mail_user),
            ("--mail-type", &self.mail_type),
        ];
        let first = named.iter().find(|(_, value)| value.is_some()).map(|(name, _)| *name);
        first.or((!self.more.is_empty()).then_some("--sbatch")).or(self.detach.then_some("--detach"))
    }

    fn options(&self) -> JobOptions {
        JobOptions {
            partition: self.partition.clone(),
            time: self.time.clone(),
            account: self.account.clone(),
            qos: self.qos.clone(),
            mail_user: self.mail_user.clone(),
            mail_type: self.mail_type.clone(),
            more: self.more.clone(),
        }
    }
}

/// Submits what `executor` would run. Gives whether everything that was asked for is finished.
pub fn run(
    executor: &Executor<'_>,
    args: &SlurmArgs,
    reports: &std::path::Path,
    notify: Vec<String>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<bool> {
    if !executor.options.plan.force.is_empty() {
        return Err(Error::usage("--force does not go with --executor slurm")
            .hint("remove what is to be made anew: `qerl cache rm ADDRESS`"));
    }
    let plan = executor.pinned_plan()?;
    plan.check_versions()?;
    let Some(recipe) = executor.options.recipe.clone() else {
        return Err(Error::usage("there is no pipeline to submit"));
    };
    let mut frozen = freeze(executor.store, executor.graph, &plan, recipe, &executor.lock_path)?;
    let counts = plan.counts();
    say(
        listener,
        format!("{}: {} stages, {} cached, {} to run", plan.pipeline, plan.entries.len(), counts.cached, counts.run),
    );
    if frozen.tasks.is_empty() {
        return Ok(true);
    }
    frozen.keep_old = executor.options.plan.versions == plan::Versions::KeepOld;
    frozen.rerun = executor.options.plan.versions == plan::Versions::Rerun;
    frozen.reports = std::path::absolute(reports).map_err(|e| Error::io("find", reports, e))?;
    frozen.notify = notify;
    let program = std::env::current_exe().map_err(|e| Error::io("find", "this program", e))?;
    let jobs = submit(&frozen, &program, &args.options())?;
    let ids: Vec<&str> = jobs.all().collect();
    say(listener, format!("submitted run {} as jobs {}", frozen.id, ids.join(", ")));
    if args.detach {
        say(listener, format!("`qerl slurm status {}` tells how it goes", frozen.id));
        return Ok(false);
    }
    look_on(&frozen, listener, cancel)
}

fn say(listener: &dyn Listener, line: String) {
    listener.hear(&run::Event::Said { name: None, line });
}

fn look_on(frozen: &Frozen, listener: &dyn Listener, cancel: &Cancel) -> Result<bool> {
    let changed = |status: &Status| {
        let why =
            if status.why.is_empty() || status.why == "None" { String::new() } else { format!(" ({})", status.why) };
        let line = format!("{} [{}]{why}", status.state, status.job);
        listener.hear(&run::Event::Said { name: Some(status.name.clone()), line });
    };
    let watched = watch(frozen, cancel, changed)?;
    if watched.left {
        say(listener, format!("the jobs go on: `qerl slurm status {0}`, `qerl slurm cancel {0}`", frozen.id));
        return Ok(false);
    }
    match watched.statuses.iter().find(|s| s.state != "done") {
        None => Ok(true),
        Some(first) => {
            let n = watched.statuses.iter().filter(|s| s.state != "done").count();
            let failed = watched.statuses.iter().find(|s| s.state == "failed").unwrap_or(first);
            Err(Error::failed(format!(
                "{n} of {} stages did not finish; {} {}: {}",
                watched.statuses.len(),
                failed.name,
                failed.state,
                failed.why
            ))
            .hint(format!("logs: {}; the same command submits what is left", frozen.folder().join("logs").display())))
        }
    }
}
