//! `qerl path`: where the artifact at an address lies.

use super::out::write as out;
use crate::store::{Artifact, Handle, Location, Store};
use crate::{Error, Result};

/// Print the folder of an artifact, or of the model or adapter that it offers
#[derive(Debug, clap::Args)]
pub struct Args {
    /// PIPELINE:STAGE or PIPELINE:STAGE@AXIS=LABEL,...
    address: String,
    /// The folder of this checkpoint: `last`, `best` or a step
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    let artifact = store.resolve(&args.address)?;
    let path = match &args.checkpoint {
        Some(name) => checkpoint(&store, &artifact, name)?,
        None => match &artifact.meta.handle {
            Handle::Model { at } | Handle::Files { at } => store.locate(&artifact, at)?,
            _ => artifact.dir.clone(),
        },
    };
    out(&format!("{}\n", path.display()))
}

/// The folder of one checkpoint.
fn checkpoint(store: &Store, artifact: &Artifact, name: &str) -> Result<std::path::PathBuf> {
    let (Handle::Adapter { adapters: all, .. } | Handle::Models { checkpoints: all }) = &artifact.meta.handle else {
        return Err(Error::usage(format!("a `{}` artifact has no checkpoints", artifact.meta.kind.name()))
            .hint("leave --checkpoint out"));
    };
    let Some(path) = all.get(name) else {
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        return Err(Error::missing(format!("there is no checkpoint `{name}`"))
            .hint(format!("checkpoints of this artifact: {}", names.join(", "))));
    };
    store.locate(artifact, &Location::Own { path: path.clone() })
}
