//! `qerl cache`: what the store holds, whether it is sound, and how it shrinks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

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
    #[command(visible_alias = "list")]
    Ls {
        #[arg(long, help = "Print JSON")]
        json: bool,
    },
    /// Read every byte again; damaged artifacts are set aside and made anew by the next run
    Verify {
        /// Only these: an address, or a fingerprint or the beginning of one
        artifacts: Vec<String>,
    },
    /// Say what is not kept, and with --yes remove it; kept is what the given pipelines use, or the newest artifact of
    /// every instance, and always what a run uses right now
    Gc {
        /// Keep only what these pipeline files use now
        #[arg(long = "keep", value_name = "FILE")]
        pipelines: Vec<PathBuf>,
        /// Leave alone what was made or used within this time: 12h, 30d, 8w
        #[arg(long, value_name = "AGE", value_parser = age)]
        older_than: Option<Duration>,
        /// Remove it; without this the list is all that happens
        #[arg(long, conflicts_with = "dry_run")]
        yes: bool,
        /// Only list, which is what happens without --yes
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Remove artifacts
    #[command(visible_alias = "remove")]
    Rm {
        /// An address, or a fingerprint or the beginning of one
        #[arg(required = true)]
        artifacts: Vec<String>,
    },
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    match &args.command {
        Command::Ls { json } => list(&store, *json),
        Command::Verify { artifacts } => verify(&store, artifacts),
        Command::Gc { pipelines, older_than, yes, dry_run: _ } => gc(&store, pipelines, *older_than, *yes),
        Command::Rm { artifacts } => remove(&store, artifacts),
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

/// `12h`, `30d`, `8w`.
fn age(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("`{text}` is no age: write 12h, 30d or 8w");
    let (number, unit) = text.split_at(text.len() - text.chars().next_back().map_or(0, char::len_utf8));
    let hours = match unit {
        "h" => 1,
        "d" => 24,
        "w" => 7 * 24,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(hours * 3600).map(Duration::from_secs).ok_or_else(wrong)
}

fn gc(store: &Store, pipelines: &[PathBuf], older_than: Option<Duration>, yes: bool) -> Result<()> {
    let dry_run = !yes;
    let mut keep = kept(store, pipelines)?;
    keep.extend(crate::run::record::in_use(store)?);
    if let Some(least) = older_than {
        keep.extend(store.used_within(least)?);
    }
    let removed = store.gc(&keep, dry_run)?;
    let mut text = String::new();
    for item in &removed {
        text += &format!("{:>10}  {}\n", bytes(item.bytes), item.what);
    }
    let total = removed.iter().map(|item| item.bytes).sum();
    text += &match (dry_run, removed.is_empty()) {
        (true, false) => format!("{} items, {} would be removed: add --yes to do so\n", removed.len(), bytes(total)),
        (true, true) => "nothing would be removed\n".to_owned(),
        (false, _) => format!("{} items, {} removed\n", removed.len(), bytes(total)),
    };
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
            Error::missing(format!("nothing finished is stored for `{name}`")).hint("`qerl cache ls` shows addresses")
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
            "give an address (PIPELINE:STAGE@...) or at least four digits of a fingerprint from `qerl cache ls`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        assert_eq!(age("12h"), Ok(Duration::from_secs(43_200)));
        assert_eq!(age("2w"), Ok(Duration::from_secs(14 * 86_400)));
        for wrong in ["", "d", "12", "-1d", "1.5d", "12é", "99999999999999999999w", "9999999999999999999w"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
