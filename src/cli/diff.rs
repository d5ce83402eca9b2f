//! `qerl diff`: what two runs have different.

use super::out::write as out;
use crate::run::diff::diff;
use crate::run::record::find_run;
use crate::store::Store;
use crate::{Error, Result};

/// Compare two runs: configurations, figures, and the questions whose verdict flipped
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run of `qerl runs ls`: its id, the beginning of it, `last` or `last~N`
    a: String,
    /// The other one
    b: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    let found = diff(&store, &find_run(&store, &args.a)?, &find_run(&store, &args.b)?)?;
    if args.json {
        let text = serde_json::to_string_pretty(&found);
        return out(&(text.map_err(|e| Error::failed("cannot write JSON").caused_by(e))? + "\n"));
    }
    out(&found.to_text())
}
