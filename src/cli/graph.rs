//! `qerl graph`: the stages and edges of a pipeline as a diagram.

use super::out::write as out;
use super::pipeline_args::PipelineArgs;
use crate::Result;

/// Draw the pipeline as a diagram (Mermaid or Graphviz)
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Language of the diagram
    #[arg(long, value_enum, default_value_t = Format::Mermaid)]
    format: Format,
    /// A node for every instance; without it one for every stage
    #[arg(long)]
    instances: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Mermaid,
    Dot,
}

pub fn run(args: &Args) -> Result<()> {
    let graph = args.pipeline.load()?;
    let drawing = if args.instances { graph.drawing_of_instances() } else { graph.drawing_of_stages() };
    out(&match args.format {
        Format::Mermaid => drawing.mermaid(),
        Format::Dot => drawing.dot(),
    })
}
