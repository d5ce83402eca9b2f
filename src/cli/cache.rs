//! `qerl cache`: what the store holds, whether it is sound, and how it shrinks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::out::write as out;
use super::pipeline_args::Choice;
use crate::plan::keys::{Surroundings, base_dir};
use crate::plan::{self, Action, bytes};
use crate::store::{Lookup, Store, is_fingerprint, short};
use crate::{Error, Result};

/// List, verify and remove finished artifacts
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List artifacts, oldest first
    List {
        #[arg(long, help = "Print JSON")]
        json: bool,
    },
    /// Read every byte again; damaged artifacts are set aside and made anew by the next run
    Verify {
        /// Only these: an address, or a fingerprint or the beginning of one
        artifacts: Vec<String>,
    },
    /// Remove what is not kept: keeps what the given pipelines use, or the newest artifact of every instance
    Gc {
        /// Keep only what these pipeline files use now
        #[arg(long = "keep", value_name = "FILE")]
        pipelines: Vec<PathBuf>,
        /// Say what would go, and remove nothing
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Remove artifacts
    Remove {
        /// An address, or a fingerprint or the beginning of one
        #[arg(required = true)]
        artifacts: Vec<String>,
    },
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    match &args.command {
        Command::List { json } => list(&store, *json),
        Command::Verify { artifacts } => verify(&store, artifacts),
        Command::Gc { pipelines, dry_run } => gc(&store, pipelines, *dry_run),
        Command::Remove { artifacts } => remove(&store, artifacts),
    }
}

fn list(store: &Store, json: bool) -> Result<()> {
    let (good, bad) = store.list()?;
    let mut text = String::new();
    let mut total = 0;
    let mut rows = Vec::new();
    for artifact in &good {
        let meta = &artifact.meta;
        let size: u64 = meta.files.values().map(|f| f.size).sum();
        total += size;
        let name = format!("{}:{}", meta.provenance.pipeline, meta.provenance.instance);
        if json {
            rows.push(serde_json::json!({
                "fingerprint": meta.fingerprint, "address": name, "kind": meta.kind.name(), "bytes": size,
                "started": meta.provenance.started, "wall_seconds": meta.provenance.wall_seconds,
                "path": artifact.dir, "summary": meta.summary,
            }));
        } else {
            let date = meta.provenance.started.get(..16).unwrap_or_default().replace('T', " ");
            text += &format!("{}  {date}  {:>10}  {name}\n", short(&meta.fingerprint), bytes(size));
        }
    }
    if json {
        let all = serde_json::json!({"artifacts": rows, "damaged": bad, "bytes": total});
        text = serde_json::to_string_pretty(&all).map_err(|e| Error::failed("cannot write JSON").caused_by(e))? + "\n";
    } else {
        for fingerprint in &bad {
            text += &format!("{}  damaged\n", short(fingerprint));
        }
        text += &format!("{} artifacts, {} in {}\n", good.len(), bytes(total), store.root.display());
    }
    out(&text)
}

fn verify(store: &Store, artifacts: &[String]) -> Result<()> {
    let chosen = if artifacts.is_empty() { store.fingerprints()? } else { find_all(store, artifacts)? };
    let mut bad = 0;
    let mut text = String::new();
    for fingerprint in &chosen {
        // A writer that holds the lock replaces the entry anyway.
        let Some(held) = store.try_lock(fingerprint, "cache verify")? else { continue };
        match store.verify(fingerprint)? {
            Lookup::Hit(_) | Lookup::Missing => {}
            Lookup::Bad(why) => {
                bad += 1;
                let place = store.quarantine(fingerprint, &held)?;
                text += &format!("{}: {why}; set aside in {}\n", short(fingerprint), place.display());
            }
        }
    }
    text += &format!("{} artifacts read, {bad} damaged\n", chosen.len());
    out(&text)?;
    if bad > 0 {
        return Err(Error::new(crate::error::Kind::Integrity, format!("{bad} artifacts were damaged"))
            .hint("the next `qerl run` makes them anew"));
    }
    Ok(())
}

fn gc(store: &Store, pipelines: &[PathBuf], dry_run: bool) -> Result<()> {
    let keep = kept(store, pipelines)?;
    let removed = store.gc(&keep, dry_run)?;
    let mut text = String::new();
    for item in &removed {
        text += &format!("{:>10}  {}\n", bytes(item.bytes), item.what);
    }
    let total = removed.iter().map(|item| item.bytes).sum();
    let verb = if dry_run { "would be removed" } else { "removed" };
    text += &format!("{} items, {} {verb}\n", removed.len(), bytes(total));
    out(&text)
}

/// What the pipelines use as they stand, or without any the newest artifact of every instance that was ever run.
fn kept(store: &Store, pipelines: &[PathBuf]) -> Result<BTreeSet<String>> {
    let mut keep = BTreeSet::new();
    if pipelines.is_empty() {
        for pipeline in store.pipelines()? {
            keep.extend(store.names(&pipeline)?.into_values());
        }
        return Ok(keep);
    }
    for file in pipelines {
        let graph = Choice::default().load(file)?;
        let lock = plan::read_lock(&graph)?;
        let around = Surroundings {
            graph: &graph,
            store,
            lock: &lock,
            base_dir: base_dir(&graph),
            backend: crate::engine::cuda::device::chosen()?.backend()?,
        };
        let options = plan::Options { versions: plan::Versions::KeepOld, ..plan::Options::default() };
        for entry in plan::plan(&around, &options)?.entries {
            match entry.action {
                Action::Cached(artifact) => {
                    keep.insert(artifact.meta.fingerprint);
                }
                // Checkpoints of unfinished work are kept under the fingerprint that it will have.
                Action::Run(_) | Action::Same(_) => keep.extend(entry.fingerprint),
            }
        }
    }
    Ok(keep)
}

fn remove(store: &Store, artifacts: &[String]) -> Result<()> {
    let mut total = 0;
    let chosen = find_all(store, artifacts)?;
    for fingerprint in &chosen {
        total += store.remove(fingerprint)?;
    }
    out(&format!("{} artifacts, {} removed\n", chosen.len(), bytes(total)))
}

fn find_all(store: &Store, names: &[String]) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    for name in names {
        found.insert(find(store, name)?);
    }
    Ok(found.into_iter().collect())
}

/// An address, a fingerprint, or the beginning of exactly one.
fn find(store: &Store, name: &str) -> Result<String> {
    if name.contains(':') {
        let address = crate::store::parse_address(name)?;
        let found = store.named(&address.pipeline, &address.instance())?;
        return found.ok_or_else(|| {
            Error::missing(format!("nothing finished is stored for `{name}`")).hint("`qerl cache list` shows addresses")
        });
    }
    let hex = name.len() >= 4 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let all = if hex { store.fingerprints()? } else { Vec::new() };
    let mut hits = all.into_iter().filter(|f| f.starts_with(name) && is_fingerprint(f));
    match (hits.next(), hits.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            Err(Error::usage(format!("several fingerprints begin with `{name}`")).hint("give more digits"))
        }
        _ => Err(Error::missing(format!("no artifact `{name}`")).hint(
            "give an address (PIPELINE:STAGE@...) or at least four digits of a fingerprint from `qerl cache list`",
        )),
    }
}
