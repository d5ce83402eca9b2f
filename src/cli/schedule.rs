//! `qerl schedule`: sigma and learning rate of every optimizer step, before anything runs.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use super::pipeline_args::PipelineArgs;
use crate::pipeline::Graph;
use crate::stages::{Kind, train};
use crate::{Error, Result};

/// Show the noise and learning rate of every training step
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// How to print; a plot on a terminal and tab-separated values elsewhere where absent
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Text plots
    Plot,
    /// One line per step: stage, step, sigma, lr
    Tsv,
    /// One JSON object per training stage
    Json,
}

/// One training's values, index 0 being optimizer step 1.
#[derive(Clone, Debug, PartialEq)]
struct Curve {
    stage: String,
    sigma: Vec<f64>,
    lr: Vec<f64>,
}

pub fn run(args: &Args) -> Result<()> {
    let curves = curves(&args.pipeline.load()?)?;
    let out = std::io::stdout();
    let format = args.format.unwrap_or(if out.is_terminal() { Format::Plot } else { Format::Tsv });
    let text = match format {
        Format::Plot => plots(&curves),
        Format::Tsv => tsv(&curves),
        Format::Json => json(&curves),
    };
    match out.lock().write_all(text.as_bytes()) {
        // The reader (`head`) has seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|e| Error::io("write", "stdout", e)),
    }
}

/// The curves of every training of the pipeline.
fn curves(graph: &Graph) -> Result<Vec<Curve>> {
    let mut curves = Vec::new();
    for instance in graph.instances.iter().filter(|i| i.kind == Kind::Train) {
        let config: train::Config = serde_json::from_value(instance.config.clone())
            .map_err(|e| Error::usage(format!("{} is not a valid train stage", instance.name())).caused_by(e))?;
        let settings = config.settings().map_err(|e| e.within(instance.name()))?;
        let steps = 0..settings.stop_at;
        curves.push(Curve {
            stage: instance.name(),
            // A rollout's noise holds for all updates on it.
            sigma: steps.clone().map(|s| settings.sigma(s - s % settings.updates_per_rollout)).collect(),
            lr: steps.map(|s| settings.optimizer.learning_rate(s)).collect(),
        });
    }
    if curves.is_empty() {
        return Err(Error::usage("the pipeline has no train stage"));
    }
    Ok(curves)
}

fn tsv(curves: &[Curve]) -> String {
    let mut out = "stage\tstep\tsigma\tlr\n".to_owned();
    for curve in curves {
        for (i, (sigma, lr)) in curve.sigma.iter().zip(&curve.lr).enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}\t{}\t{sigma:e}\t{lr:e}", curve.stage, i + 1);
        }
    }
    out
}

fn json(curves: &[Curve]) -> String {
    curves
        .iter()
        .map(|c| format!("{}\n", serde_json::json!({"stage": c.stage, "sigma": c.sigma, "lr": c.lr})))
        .collect()
}

const WIDTH: usize = 72;
const HEIGHT: usize = 8;

fn plots(curves: &[Curve]) -> String {
    let mut out = String::new();
    for curve in curves {
        for (name, values) in [("sigma", &curve.sigma), ("lr", &curve.lr)] {
            let _ = writeln!(out, "{} {name}", curve.stage);
            out.push_str(&plot(values));
            let _ = writeln!(out, "{:>9} 1{:>width$}\n", "step", values.len(), width = columns(values.len()) - 1);
        }
    }
    out
}

fn columns(steps: usize) -> usize {
    steps.clamp(8, WIDTH)
}

/// Bars from 0 to the largest value, each column the value in the middle of its steps.
fn plot(values: &[f64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().copied().fold(0.0, f64::max);
    if max == 0.0 {
        return "  0 at every step\n".to_owned();
    }
    let columns = columns(values.len());
    let mut out = String::new();
    for row in (0..HEIGHT).rev() {
        match row {
            _ if row + 1 == HEIGHT => {
                let _ = write!(out, "{max:>9.2e} ");
            }
            0 => out.push_str("        0 "),
            _ => out.push_str("          "),
        }
        for column in 0..columns {
            let value = values[(2 * column + 1) * values.len() / (2 * columns)];
            let eighths = (value / max * (HEIGHT * 8) as f64).round() as usize;
            out.push(BARS[eighths.saturating_sub(row * 8).min(8)]);
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_rises_to_its_maximum_and_zero_stays_empty() {
        let text = plot(&[0.0, 0.5, 1.0, 1.0]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), HEIGHT);
        assert_eq!(lines[0], "   1.00e0     ████");
        assert_eq!(lines[HEIGHT - 1], "        0   ██████");
        assert_eq!(plot(&[0.0; 4]), "  0 at every step\n");
    }

    #[test]
    fn tsv_has_a_line_per_step() {
        let curve = Curve { stage: "train@seed=1".into(), sigma: vec![0.0, 1e-2], lr: vec![0.0, 1e-5] };
        assert_eq!(tsv(&[curve]), "stage\tstep\tsigma\tlr\ntrain@seed=1\t1\t0e0\t0e0\ntrain@seed=1\t2\t1e-2\t1e-5\n");
    }
}
