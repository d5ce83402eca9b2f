//! `qerl reproduce`: a report's numbers, made again from what the report holds.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::out::write as out;
use crate::control::Cancel;
use crate::error::Kind;
use crate::hub::Hub;
use crate::run::reproduce::{Recipe, programs};
use crate::run::{self, Executor, Listener};
use crate::store::Store;
use crate::{Error, Result, plan};

/// Run the pipeline that a report holds, with its overrides and pins, and compare the numbers
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A report.html that `qerl run` wrote, or its folder
    report: PathBuf,
    /// Where relative paths of the pipeline (`file:` sources, templates) start
    #[arg(long, value_name = "DIR", default_value = ".")]
    base: PathBuf,
    /// The store to work in [default: reproduce/ID in the usual store: nothing finished elsewhere is taken over]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Figures may differ by so much
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    tolerance: f64,
    /// Start the reward programs that the report's pipeline names
    #[arg(long)]
    allow_programs: bool,
    /// CPU threads shared by all running stages
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let recipe = Recipe::read(&args.report)?;
    let folder = tempfile::tempdir().map_err(|e| Error::io("create", std::env::temp_dir(), e))?;
    let (graph, lock_path) = recipe.unpack(folder.path(), &args.base)?;
    let programs = programs(&graph);
    if !programs.is_empty() && !args.allow_programs {
        let list: Vec<String> = programs.into_iter().collect();
        return Err(Error::usage(format!("the report's pipeline starts programs: {}", list.join(", ")))
            .hint("look at them, then add --allow-programs"));
    }
    let version = env!("CARGO_PKG_VERSION");
    if recipe.qerl_version != version {
        eprintln!("warning: the report was made by qerl {}, this is {version}", recipe.qerl_version);
    }
    let root = match &args.store {
        Some(root) => std::path::absolute(root).map_err(|e| Error::io("find", root, e))?,
        None => {
            let text = serde_json::to_vec(&recipe).map_err(|e| Error::failed("cannot write JSON").caused_by(e))?;
            let id = blake3::hash(&text).to_hex();
            Store::from_env()?.root.join("reproduce").join(&id[..12])
        }
    };
    let store = Store::open(root)?;
    let hub = Hub::from_env()?;
    let cancel = Cancel::new();
    let listener = run::Lines::new(std::io::stderr());
    let executor = Executor {
        graph: &graph,
        store: &store,
        hub: &hub,
        stages: &run::dispatch::Builtin,
        resolver: &hub,
        listener: &listener,
        cancel: cancel.clone(),
        options: run::Options {
            plan: plan::Options { until: vec![recipe.stage.clone()], ..plan::Options::default() },
            threads: args.threads.map(NonZeroUsize::get),
            overrides: recipe.overrides.clone(),
            recipe: Some(recipe.clone()),
            ..run::Options::default()
        },
        lock_path,
    };
    run::stop_on_interrupt(&cancel, || eprintln!("\nstopping: stages write a checkpoint first"))?;
    let summary = executor.run()?;
    // A report shows failed instances; then the figures tell.
    let report = summary.reports().next().map(|(_, report)| report.clone());
    let Some(report) = report else {
        return Err(summary.error.unwrap_or_else(|| Error::failed("no report was made")));
    };
    let (compared, different) = recipe.compare(&report, args.tolerance)?;
    listener.hear(&run::Event::Report { path: report.dir.join("report.html") });
    if args.json {
        let value = serde_json::json!({"compared": compared, "different": different});
        out(&format!("{value:#}\n"))?;
    } else {
        let rows = different.iter().map(|d| format!("{}: reported {}, now {}\n", d.figure, d.reported, d.reproduced));
        out(&format!("{}{compared} figures compared, {} differ\n", rows.collect::<String>(), different.len()))?;
    }
    match different.len() {
        0 => Ok(()),
        n => Err(Error::new(Kind::Failed, format!("{n} of {compared} figures came out differently"))
            .hint("other devices and other versions of qerl may differ slightly: --tolerance allows for that")),
    }
}
