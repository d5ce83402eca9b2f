//! `qerl plan`: what a run would do and why; executes nothing and asks no network.

use super::pipeline_args::{PipelineArgs, VersionArgs};
use crate::plan::keys::{Surroundings, base_dir};
use crate::plan::{self, Plan};
use crate::store::Store;
use crate::{Error, Result};

/// Show which stages are cached, which would run, and why
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Only this stage (or STAGE@AXIS=LABEL) and what it needs; may be repeated
    #[arg(long, value_name = "STAGE")]
    until: Vec<String>,
    /// As if `run` were told to force this stage (or `all`)
    #[arg(long, value_name = "STAGE|all")]
    force: Vec<String>,
    #[command(flatten)]
    versions: VersionArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let graph = args.pipeline.load()?;
    let store = Store::from_env()?;
    let lock = plan::read_lock(&graph)?;
    let around = Surroundings {
        graph: &graph,
        store: &store,
        lock: &lock,
        base_dir: base_dir(&graph),
        backend: crate::engine::cuda::device::chosen()?.backend()?,
    };
    let options =
        plan::Options { until: args.until.clone(), force: args.force.clone(), versions: args.versions.choice() };
    let plan = plan::plan(&around, &options)?;
    print(&plan, args.json)?;
    plan.check_versions()
}

/// Writes a plan to stdout.
pub(super) fn print(plan: &Plan, json: bool) -> Result<()> {
    let text = if json {
        let text = serde_json::to_string_pretty(&plan.to_json());
        text.map_err(|e| Error::failed("cannot write the plan as JSON").caused_by(e))? + "\n"
    } else {
        plan.to_text()
    };
    super::out::write(&text)
}
