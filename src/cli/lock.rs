//! `qerl lock`: pins the revisions of a pipeline in qerl.lock beside it.

use super::out::write as out;
use super::pipeline_args::PipelineArgs;
use crate::control::Cancel;
use crate::hub::Hub;
use crate::plan::bytes;
use crate::plan::lockfile::LockFile;
use crate::run::{Lines, Update, pin, requests, stop_on_interrupt};
use crate::store::Store;
use crate::{Error, Result};

/// Pin the revisions that a pipeline downloads in qerl.lock
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Ask the hub again: for one repository, or for all
    #[arg(long, value_name = "REPO", num_args = 0..=1)]
    update: Option<Option<String>>,
}

pub fn run(args: &Args) -> Result<()> {
    let graph = args.pipeline.load()?;
    let store = Store::from_env()?;
    let wanted = requests(&graph, &(0..graph.instances.len()).collect());
    let update = match &args.update {
        None => Update::Missing,
        Some(None) => Update::All,
        Some(Some(repo)) => {
            if !wanted.iter().any(|request| request.repo == *repo) {
                let repos: Vec<&str> = wanted.iter().map(|r| r.repo.as_str()).collect();
                return Err(Error::usage(format!("--update: the pipeline downloads no `{repo}`"))
                    .hint(format!("it downloads: {}", repos.join(", "))));
            }
            Update::Repo(repo.clone())
        }
    };
    let hub = Hub::from_env()?;
    let path = LockFile::path_beside(&graph.file);
    let cancel = Cancel::new();
    stop_on_interrupt(&cancel, || {})?;
    let listener = Lines::new(std::io::stderr());
    let (lock, changed) = pin(&wanted, &path, &update, &store, &hub, &listener, &cancel)?;
    let mut text = String::new();
    for request in &wanted {
        if let Some(pin) = lock.get(request) {
            let size: u64 = pin.files.iter().map(|file| file.size).sum();
            let new = if changed.contains(request) { "  (new)" } else { "" };
            text += &format!("{request}  {}  {} files, {}{new}\n", pin.commit, pin.files.len(), bytes(size));
        }
    }
    if wanted.is_empty() {
        text += "the pipeline downloads nothing from a hub\n";
    }
    out(&text)
}
