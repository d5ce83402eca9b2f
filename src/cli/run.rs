//! `qerl run`: does what a pipeline file says, as far as it is not done yet.

use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::pipeline_args::{PipelineArgs, VersionArgs};
use crate::Result;
use crate::control::Cancel;
use crate::hub::Hub;
use crate::plan;
use crate::plan::lockfile::LockFile;
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
    /// Where sft, train and eval compute
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
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
}

/// Devices of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    /// The best engine that this version has, which is the CPU's
    Auto,
    Cpu,
}

pub fn run(args: &Args) -> Result<()> {
    let graph = args.pipeline.load()?;
    let store = Store::from_env()?;
    let hub = Hub::from_env()?;
    let cancel = Cancel::new();
    let shown = listener(args.json);
    let hook = match args.metrics_hook.as_deref().filter(|_| !args.dry_run) {
        Some(command) => Some(run::MetricsHook::start(command)?),
        None => None,
    };
    let listener = run::Hooked { inner: shown.as_ref(), hook: hook.as_ref() };
    // Both choices are the CPU engine until there is another.
    let (Device::Auto | Device::Cpu) = args.device;
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
    let summary = executor.run();
    drop(executor);
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
