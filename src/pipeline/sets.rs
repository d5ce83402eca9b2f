//! Data sets: an entry under `data:` (or a built-in) -> a pinned download and one `split` stage.

use serde_json::Value as Json;

use super::Resources;
use super::check::Checker;
use super::diagnostics::{Diagnostic, Diagnostics};
use super::evaluate::{Made, Parts};
use super::links::StageLink;
use super::tree::Node;
use crate::data::{BUILTINS, Builtin, Columns, DataEntry, DataSpec};
use crate::stages::{StageRef, download, split};

/// The instance name of a set's `split` stage.
pub fn split_name(name: &str) -> String {
    format!("data.{name}")
}

/// The instance name of a set's download.
pub fn download_name(name: &str) -> String {
    format!("data.{name}.download")
}

/// The `split` stage of a resolved entry and its download, where it has one.
pub fn stages(name: &str, node: &Node, schema: &Json, diagnostics: &mut Diagnostics) -> Option<(Made, Option<Made>)> {
    let full = split_name(name);
    let mut checker = Checker::new(schema, &full, node.span, diagnostics);
    let json = checker.check(node);
    if !checker.good {
        return None;
    }
    let entry: DataEntry = match serde_json::from_value(json) {
        Ok(entry) => entry,
        Err(e) => {
            diagnostics.push(Diagnostic::new(node.span, format!("`{full}`: {e}")));
            return None;
        }
    };
    let before = diagnostics.len();
    let builtin = builtin(name, &entry, node, diagnostics);
    if entry.repo.is_none() && builtin.is_none() && diagnostics.len() == before {
        let text = format!("`{full}` says neither where its rows are nor which built-in set it is");
        diagnostics.push(
            Diagnostic::new(node.span, text).help("give `repo: owner/name`, `repo: file:PATH` or `builtin: NAME`"),
        );
    }
    let repo = entry.repo.clone().or_else(|| builtin.and_then(|b| b.repo).map(str::to_owned));
    unread(&full, &entry, repo.as_deref(), node, diagnostics);
    if let Some(repo) = &repo
        && let Err(why) = check_repo(repo)
    {
        let span = node.get("repo").map_or(node.span, |n| n.span);
        diagnostics.push(Diagnostic::new(span, format!("`{full}.repo`: {why}")).help(REPO_HELP));
    }
    if entry.holdout.as_ref().is_some_and(|h| h.n == 0) {
        let place = node.get("holdout").map_or(node, |h| h.get("n").unwrap_or(h)).span;
        diagnostics
            .push(Diagnostic::new(place, format!("the hold-out of `{full}` is empty")).help("n must be 1 or more"));
    }
    if diagnostics.len() > before {
        return None;
    }
    // Evaluation and training read different parts where the source keeps them apart.
    let apart = entry.split.is_none() && builtin.is_some_and(|b| b.eval_split != b.train_split);
    let parts = Parts { holdout: apart || entry.holdout.is_some(), eval: if apart { "holdout" } else { "all" } };
    // The rows of other configurations need not be fetched.
    let hub_config = entry.config.clone().or_else(|| {
        let own = builtin.filter(|_| entry.repo.is_none());
        own.and_then(|b| b.config).map(str::to_owned)
    });
    let DataEntry { revision, holdout, config, split, columns, template, system, max_prompt_tokens, n, seed, .. } =
        entry;
    let builtin = builtin.map(|b| b.name.to_owned());
    // `split` reads the template's file.
    let template_text = None;
    let spec =
        DataSpec { builtin, config, split, columns, template, template_text, system, max_prompt_tokens, n, seed };
    let source = repo.as_ref().map(|_| StageRef("source".to_owned()));
    let links = source.iter().map(|slot| StageLink {
        slot: slot.0.clone(),
        target: download_name(name),
        at: Vec::new(),
        checkpoint: "last".to_owned(),
        span: node.span,
    });
    let links: Vec<StageLink> = links.collect();
    let made = |config: Result<Json, serde_json::Error>, stages| {
        // These configurations hold nothing that JSON cannot.
        let config = config.unwrap_or_default();
        Made { config, stages, data: Vec::new(), needs: Vec::new(), resources: Resources::default(), parts }
    };
    let split = made(serde_json::to_value(split::Config { source, spec, holdout }), links);
    let download = repo.map(|repo| {
        let revision = revision.unwrap_or_else(|| "main".to_owned());
        let config = download::Config {
            config: hub_config.filter(|_| !repo.contains(':')),
            repo,
            revision,
            dataset: true,
            files: Vec::new(),
            pins: Default::default(),
            asked: None,
        };
        made(serde_json::to_value(config), Vec::new())
    });
    Some((split, download))
}

/// What can stand in `repo`.
pub const REPO_HELP: &str = "write owner/name, file:PATH, run:PIPELINE:STAGE or (for a model) bundled";

/// Whether `repo` is a hub's name, a local source or an address of this store.
pub fn check_repo(repo: &str) -> Result<(), String> {
    if let Some(address) = repo.strip_prefix("run:") {
        return crate::store::parse_address(address).map(|_| ()).map_err(|e| e.message().to_owned());
    }
    if repo.starts_with("file:") || repo.contains("${secrets.") {
        return Ok(());
    }
    let part = |p: &str| {
        !p.is_empty()
            && !p.starts_with(['-', '.'])
            && p.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    if repo.split('/').count() <= 2 && repo.split('/').all(part) {
        return Ok(());
    }
    Err(format!("`{}` is not the name of a hub repository", super::names::shown(repo)))
}

/// The built-in set that an entry refines.
fn builtin(name: &str, entry: &DataEntry, node: &Node, diagnostics: &mut Diagnostics) -> Option<&'static Builtin> {
    let wanted = entry.builtin.as_deref().unwrap_or(name);
    let found = BUILTINS.iter().find(|b| b.name == wanted);
    if found.is_none() && entry.builtin.is_some() {
        let span = node.get("builtin").map_or(node.span, |n| n.span);
        let diagnostic =
            Diagnostic::new(span, format!("there is no built-in data set `{}`", super::names::shown(wanted)));
        diagnostics.push(diagnostic.nearest(wanted, BUILTINS.iter().map(|b| b.name)));
    }
    found
}

/// Keys that this entry gives and nobody would read.
fn unread(full: &str, entry: &DataEntry, repo: Option<&str>, node: &Node, diagnostics: &mut Diagnostics) {
    let columns = entry.columns != Columns::default();
    let revision = ("revision", entry.revision.is_some());
    let (why, given) = match repo {
        Some(repo) => {
            let generated = [("n", entry.n.is_some()), ("seed", entry.seed.is_some())];
            let local = if repo.contains(':') { vec![revision] } else { Vec::new() };
            ("its rows come from a repository", [generated.as_slice(), &local].concat())
        }
        None => {
            let source = [("config", entry.config.is_some()), ("split", entry.split.is_some()), ("columns", columns)];
            ("this set is generated", [source.as_slice(), &[revision]].concat())
        }
    };
    for (key, _) in given.iter().filter(|(_, given)| *given) {
        let span = node.get(key).map_or(node.span, |n| n.span);
        let why = if *key == "revision" && repo.is_some() { "only a repository of the hub has revisions" } else { why };
        diagnostics.push(Diagnostic::new(span, format!("`{full}.{key}` would not be read")).label(why));
    }
}
