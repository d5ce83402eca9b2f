//! `qerl schema`: the JSON Schema of the pipeline file, for editors.

use super::out::write as out;
use crate::{Error, Result};

/// Print the JSON Schema of the pipeline file, for editors
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the options of every stage as Markdown instead
    #[arg(long)]
    markdown: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if args.markdown {
        return out(&crate::pipeline::reference());
    }
    let schema = crate::pipeline::schema();
    let text = serde_json::to_string_pretty(&schema).map_err(|e| Error::failed("cannot write JSON").caused_by(e))?;
    out(&(text + "\n"))
}
