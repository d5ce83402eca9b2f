//! `qerl run`: does what a pipeline file says, as far as it is not done yet.

use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::pipeline_args::{PipelineArgs, VersionArgs};
use super::run_slurm::{self, SlurmArgs};
use crate::Result;
use crate::control::Cancel;
use crate::hub::Hub;
use crate::plan;
use crate::plan::lockfile::LockFile;
use crate::run::reproduce::Recipe;
use crate::run::{self, Executor, Listener, Summary};
use crate::store::Store;

/// Run a pipeline: what is finished already is taken from the store
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Stages at once; without it downloads and the like overlap, but sft, train and eval go one by one
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Only this stage (or STAGE@AXIS=LABEL) and what it needs; may be repeated
    #[arg(long, value_name = "STAGE")]
    until: Vec<String>,
    /// Run this stage (or `all`) although it is finished; may be repeated
    #[arg(long, value_name = "STAGE|all")]
    force: Vec<String>,
    /// After a failure go on with everything that does not depend on it
    #[arg(short, long)]
    keep_going: bool,
    /// Show the plan and do nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// CPU threads shared by all running stages
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// GPUs to hand out, each to one stage at a time: 0,1 (stages with `resources: {gpus: N}` get N of them)
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    gpus: Vec<usize>,
    #[command(flatten)]
    versions: VersionArgs,
    /// Folder for finished reports
    #[arg(long, value_name = "DIR", help = "Folder for finished reports [default: reports/out/PIPELINE]")]
    reports: Option<PathBuf>,
    /// Events as JSON lines on stdout
    #[arg(long)]
    json: bool,
    /// Command that gets the figures of every training step as JSON lines on stdin
    #[arg(long, value_name = "CMD")]
    metrics_hook: Option<String>,
    /// Show the curves of the run in a browser while it goes on: 127.0.0.1:8080; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    live: Option<String>,
    /// Let --live take an address that other machines reach; whoever does so sees the run
    #[arg(long, requires = "live")]
    live_anyone: bool,
    /// A program (with arguments, no shell) that gets a JSON object when a stage failed or diverged, and at the end
    #[arg(long, value_name = "CMD")]
    notify: Option<String>,
    /// Where stages run
    #[arg(long, value_enum, default_value_t = Where::Local)]
    executor: Where,
    #[command(flatten)]
    slurm: SlurmArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// On this machine
    Local,
    /// As jobs of a Slurm cluster
    Slurm,
}

pub fn run(args: &Args) -> Result<()> {
    let graph = args.pipeline.load()?;
    let store = Store::from_env()?;
    let hub = Hub::from_env()?;
    let cancel = Cancel::new();
    if args.executor == Where::Local
        && let Some(option) = args.slurm.given()
    {
        return Err(crate::Error::usage(format!("{option} is for Slurm")).hint("add --executor slurm"));
    }
    if args.executor == Where::Slurm && args.metrics_hook.is_some() {
        return Err(crate::Error::usage("--metrics-hook hears the stages of this machine only")
            .hint("leave it out with --executor slurm, or use --notify, which every job calls"));
    }
    if args.executor == Where::Slurm && args.live.is_some() {
        return Err(crate::Error::usage("--live hears the stages of this machine only")
            .hint("leave it out with --executor slurm; `qerl slurm` says how the jobs stand"));
    }
    let live = match args.live.as_deref().filter(|_| !args.dry_run) {
        Some(address) => Some(run::live::Live::start(address, args.live_anyone, &store)?),
        None => None,
    };
    let notify = args.notify.as_deref().map(run::notify::command).unwrap_or_default();
    let shown = listener(args.json);
    let hook = match args.metrics_hook.as_deref().filter(|_| !args.dry_run) {
        Some(command) => Some(run::MetricsHook::start(command)?),
        None => None,
    };
    if let Some(live) = &live {
        shown.hear(&run::Event::Said { name: None, line: format!("live: {}", live.url()) });
    }
    let paged = run::live::Shown { inner: shown.as_ref(), live: live.as_ref() };
    let hooked = run::Hooked { inner: &paged, hook: hook.as_ref() };
    // Jobs tell by themselves how they went.
    let told = if args.executor == Where::Slurm { Vec::new() } else { notify.clone() };
    let listener = run::notify::Notifier::new(&hooked, told);
    let overrides = args.pipeline.choice.overrides();
    // Pins that this run adds are put in when the report is made.
    let recipe = Recipe::new(&graph, &overrides, &LockFile::default())?;
    let executor = Executor {
        graph: &graph,
        store: &store,
        hub: &hub,
        stages: &run::dispatch::Builtin,
        resolver: &hub,
        listener: &listener,
        cancel: cancel.clone(),
        options: run::Options {
            plan: plan::Options {
                until: args.until.clone(),
                force: args.force.clone(),
                versions: args.versions.choice(),
            },
            jobs: args.jobs.map(NonZeroUsize::get),
            keep_going: args.keep_going,
            threads: args.threads.map(NonZeroUsize::get),
            gpus: args.gpus.clone(),
            overrides,
            recipe: Some(recipe),
            only: None,
        },
        lock_path: LockFile::path_beside(&graph.file),
    };
    if args.dry_run {
        let plan = executor.plan()?;
        super::plan::print(&plan, args.json)?;
        return plan.check_versions();
    }
    for note in &graph.notes {
        listener.hear(&run::Event::Said { name: None, line: format!("note: {note}") });
    }
    run::stop_on_interrupt(&cancel, || {
        eprintln!("\nstopping: stages write a checkpoint first (Ctrl-C again: stop now)");
    })?;
    if args.executor == Where::Slurm {
        let folder = args.reports.clone().unwrap_or_else(|| run::default_folder(&graph.name));
        if !run_slurm::run(&executor, &args.slurm, &folder, notify, &listener, &cancel)? {
            return Ok(());
        }
        // Everything is in the store now: what follows takes it from there, names it and publishes reports.
    }
    let summary = executor.run();
    drop(executor);
    // The hook is told to end once nothing speaks to it any more.
    drop(listener);
    if let Some(line) = hook.and_then(run::MetricsHook::finish) {
        eprintln!("warning: {line}");
    }
    let summary = summary?;
    let published = publish(args, &graph.name, &summary)?;
    for path in published {
        shown.hear(&run::Event::Report { path });
    }
    match summary.error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn listener(json: bool) -> Box<dyn Listener> {
    let terminal = std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    if json {
        Box::new(run::JsonLines::new(std::io::stdout()))
    } else if terminal {
        Box::new(run::Bars::new())
    } else {
        Box::new(run::Lines::new(std::io::stderr()))
    }
}

/// Copies finished reports out of the store; one folder each where there are several.
fn publish(args: &Args, pipeline: &str, summary: &Summary) -> Result<Vec<PathBuf>> {
    let folder = args.reports.clone().unwrap_or_else(|| run::default_folder(pipeline));
    let reports: Vec<_> = summary.reports().collect();
    let mut paths = Vec::new();
    for (name, report) in &reports {
        let place = if reports.len() == 1 { folder.clone() } else { folder.join(name) };
        paths.extend(run::publish(report, &place)?);
    }
    Ok(paths)
}
