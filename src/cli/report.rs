//! `qerl report`: a report over any set of finished runs, whatever pipelines they belong to.

use std::path::PathBuf;

use super::out::write as out;
use crate::control::{Cancel, Quiet};
use crate::hub::Hub;
use crate::stages::{Context, Input, Kind, report};
use crate::store::{Store, parse_address};
use crate::{Error, Result};

/// Compare finished evaluations of any pipelines in one report
#[derive(Debug, clap::Args)]
pub struct Args {
    /// PIPELINE (all its evaluations), PIPELINE:STAGE or PIPELINE:STAGE@AXIS=LABEL,...
    #[arg(required = true, value_name = "RUNS")]
    runs: Vec<String>,
    /// The axis whose values are the rows
    #[arg(long, default_value = "variant", value_name = "AXIS")]
    rows: String,
    /// The axis averaged over, such as seed
    #[arg(long, value_name = "AXIS")]
    over: Option<String>,
    /// The row that the others are compared with
    #[arg(long, value_name = "LABEL")]
    baseline: Option<String>,
    /// Figures of the paper to print beside: table1.7B, table2.32B, ...
    #[arg(long, value_name = "TABLE")]
    paper: Option<String>,
    #[arg(long)]
    title: Option<String>,
    /// Folder with report.html.j2 or report.md.j2 in place of the built-in templates
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,
    /// Where the report goes
    #[arg(short, long, value_name = "DIR", default_value = "reports/out/report")]
    out: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    let inputs = gather(&store, &args.runs)?;
    let mut pipelines: Vec<&str> = args.runs.iter().filter_map(|r| r.split(':').next()).collect();
    pipelines.dedup();
    let name = pipelines.join(", ");
    let here = std::env::current_dir().map_err(|e| Error::io("find", "the current folder", e))?;
    let config = report::Config {
        gather: Vec::new(),
        rows: args.rows.clone(),
        over: args.over.clone(),
        baseline: args.baseline.clone(),
        paper: args.paper.clone(),
        title: args.title.clone(),
        templates: args.templates.as_ref().map(|path| path.to_string_lossy().into_owned()),
        pipeline: Some(report::Origin { name, ..report::Origin::default() }),
    };
    std::fs::create_dir_all(&args.out).map_err(|e| Error::io("create", &args.out, e))?;
    let context = Context {
        inputs,
        output: args.out.clone(),
        work: args.out.clone(),
        store: &store,
        progress: &Quiet,
        cancel: &Cancel::new(),
        threads: 1,
        base_dir: here,
        hub: &Hub::from_env()?,
    };
    report::run(&context, &config)?;
    out(&format!("{}\n{}\n", args.out.join("report.html").display(), args.out.join("report.md").display()))
}

/// The evaluations that the names stand for, in the order of the names; those of a whole pipeline with `before` and
/// the like first, as far as their time tells. With several pipelines `pipeline` is a further axis.
fn gather(store: &Store, runs: &[String]) -> Result<Vec<Input>> {
    let mut found: Vec<(String, Input)> = Vec::new();
    for run in runs {
        let (pipeline, wanted) = run.split_once(':').map_or((run.as_str(), None), |(p, w)| (p, Some(w)));
        let names = store.names(pipeline)?;
        if names.is_empty() {
            let known = store.pipelines()?;
            let hint = if known.is_empty() {
                "run a pipeline first: `qerl run FILE`".to_owned()
            } else {
                format!("finished pipelines: {}", known.join(", "))
            };
            return Err(Error::missing(format!("nothing of the pipeline `{pipeline}` is stored")).hint(hint));
        }
        let mut any = Vec::new();
        for (instance, fingerprint) in names {
            let stage = instance.split('@').next().unwrap_or_default();
            if wanted.is_some_and(|w| w != stage && w != instance) {
                continue;
            }
            let Some(artifact) = store.get(&fingerprint)?.filter(|a| a.meta.kind == Kind::Eval) else { continue };
            let mut point = parse_address(&format!("{pipeline}:{instance}"))?.point;
            point.insert("pipeline".to_owned(), pipeline.to_owned());
            let began = artifact.meta.provenance.started.clone();
            any.push((
                began,
                Input {
                    slot: format!("gather.{}", found.len() + any.len()),
                    stage: stage.to_owned(),
                    point,
                    checkpoint: "last".to_owned(),
                    part: None,
                    artifact: Ok(artifact),
                },
            ));
        }
        if any.is_empty() {
            return Err(Error::missing(format!("`{run}` names no finished evaluation"))
                .hint("name a pipeline, or PIPELINE:STAGE of one of its `eval` stages"));
        }
        any.sort_by(|a, b| a.0.cmp(&b.0));
        found.extend(any);
    }
    let mut inputs: Vec<Input> = found.into_iter().map(|(_, input)| input).collect();
    let first = inputs.first().and_then(|i| i.point.get("pipeline").cloned());
    if inputs.iter().all(|i| i.point.get("pipeline") == first.as_ref()) {
        for input in &mut inputs {
            input.point.remove("pipeline");
        }
    }
    Ok(inputs)
}
