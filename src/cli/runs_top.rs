//! `qerl runs top`: finished points from the best to the worst by one figure.

use serde_json::Value;

use super::out::write as out;
use crate::eval::files;
use crate::rl::metrics;
use crate::stages::Kind;
use crate::store::Store;
use crate::{Error, Result};

/// List finished points by a figure: STAGE.DATA.pass1 of an evaluation, STAGE.METRIC of a training
#[derive(Debug, clap::Args)]
pub struct Args {
    /// `after.arith.holdout.pass1`, or `eval.arith.pass1` for every evaluation; also truncated, no_answer, mean_tokens,
    /// pass@K, maj@K; `train.reward`, `train.entropy`, ... are means over a training's last 10 steps
    #[arg(long, value_name = "STAGE.FIGURE")]
    metric: String,
    /// Only this pipeline
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
    /// Lowest first
    #[arg(long)]
    ascending: bool,
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Steps at the end of a training that a figure is the mean of.
const LAST: usize = 10;

pub fn run(args: &Args) -> Result<()> {
    let Some((stage, figure)) = args.metric.split_once('.').filter(|(s, f)| !s.is_empty() && !f.is_empty()) else {
        return Err(Error::usage(format!("`{}` is not STAGE.FIGURE", args.metric))
            .hint("write --metric after.arith.holdout.pass1 or --metric train.reward"));
    };
    let store = Store::from_env()?;
    let pipelines = args.pipeline.clone().map_or_else(|| store.pipelines(), |name| Ok(vec![name]))?;
    let mut found: Vec<(String, f64)> = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    for pipeline in &pipelines {
        for (instance, fingerprint) in store.names(pipeline)? {
            // A damaged entry is no reason to hide the others.
            let Ok(Some(artifact)) = store.get(&fingerprint) else { continue };
            let kind = artifact.meta.kind;
            if instance.split('@').next() != Some(stage) && kind.name() != stage {
                continue;
            }
            let all = match kind {
                Kind::Eval => of_eval(&files::read_summary(&artifact.dir)?),
                Kind::Train | Kind::Sft => of_training(&artifact.dir.join("metrics.jsonl"))?,
                _ => continue,
            };
            known.extend(all.iter().map(|(name, _)| name.clone()));
            let value = all.into_iter().find(|(name, value)| name == figure && value.is_finite());
            found.extend(value.map(|(_, value)| (format!("{pipeline}:{instance}"), value)));
        }
    }
    if found.is_empty() {
        let hint = if known.is_empty() {
            format!("no finished stage or kind of stage is called `{stage}`")
        } else {
            format!("figures there: {}", known.into_iter().take(40).collect::<Vec<_>>().join(", "))
        };
        return Err(Error::missing(format!("nothing finished has `{}`", args.metric)).hint(hint));
    }
    found.sort_by(|a, b| if args.ascending { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) });
    let shown = found.iter().take(args.limit);
    if args.json {
        let rows: Vec<Value> =
            shown.map(|(name, value)| serde_json::json!({"address": name, "value": value})).collect();
        return out(&format!("{}\n", Value::Array(rows)));
    }
    let lines: String =
        shown.enumerate().map(|(i, (name, value))| format!("{:>3}  {value:>10.4}  {name}\n", i + 1)).collect();
    out(&lines)
}

/// `DATA.pass1` and what else an evaluation found.
fn of_eval(summary: &crate::eval::Summary) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for set in &summary.sets {
        let mut add = |name: &str, value: f64| all.push((format!("{}.{name}", set.data), value));
        add("pass1", set.accuracy);
        add("truncated", set.truncated);
        add("no_answer", set.no_answer);
        add("mean_tokens", set.mean_tokens);
        set.pass_at.iter().for_each(|(k, v)| add(&format!("pass@{k}"), *v));
        set.maj_at.iter().for_each(|(k, v)| add(&format!("maj@{k}"), *v));
    }
    all
}

/// Means over a training's last steps.
fn of_training(path: &std::path::Path) -> Result<Vec<(String, f64)>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let records = metrics::read(path)?;
    let tail = &records[records.len().saturating_sub(LAST)..];
    let names: std::collections::BTreeSet<&String> = tail.iter().flat_map(|r| r.keys()).collect();
    let mean = |name: &&String| {
        let values: Vec<f64> = tail.iter().filter_map(|r| r.get(*name).and_then(Value::as_f64)).collect();
        (!values.is_empty()).then(|| ((*name).clone(), crate::eval::stats::mean(&values)))
    };
    Ok(names.iter().filter_map(mean).collect())
}
