//! The problem sets that `qerl eval` reads, by name and path.

use std::path::{Path, PathBuf};

use crate::cli::model_arg::{absolute, artifact};
use crate::data::{BUILTINS, Columns, DataSpec, builtin};
use crate::stages::{Kind, StageRef, split};
use crate::store::{Artifact, Handle, Location};
use crate::{Error, Result};

/// How the sets are read and put to the model; for all of them.
#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// Columns of the sets: prompt=NAME,answer=NAME,solution=NAME,id=NAME
    #[arg(long, value_name = "FIELD=NAME", value_delimiter = ',')]
    columns: Vec<String>,
    /// Configuration (subset) of a folder of the hub
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
    /// Split; a built-in set's own by default
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Prompt template: qerl_think, boxed, plain, or a file
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// System prompt instead of the template's own
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

/// One set on the command line.
#[derive(Debug)]
pub(super) struct SetName {
    pub label: String,
    pub spec: DataSpec,
    /// None for generated sets.
    pub path: Option<PathBuf>,
    /// Which part of it is wanted.
    pub part: &'static str,
}

impl SetArgs {
    /// `NAME=PATH`, a path, or a generated set's name. `evaluated`: for questions, not for examples.
    pub fn name(&self, text: &str, evaluated: bool) -> Result<SetName> {
        let path = Path::new(text);
        let (label, path) = match text.split_once('=') {
            _ if path.exists() => (stem(path), Some(path.to_owned())),
            Some((name, path)) if !name.is_empty() && Path::new(path).exists() => {
                (name.to_owned(), Some(PathBuf::from(path)))
            }
            Some((_, path)) => return Err(Error::missing(format!("there is no file or folder {path}"))),
            None => (text.to_owned(), None),
        };
        let known = builtin(&label);
        let generated = known.is_some_and(|set| set.repo.is_none());
        if path.is_none() && !generated {
            return Err(not_here(text));
        }
        let is_builtin = known.is_some() && (path.is_none() || text.contains('='));
        let known = known.filter(|_| is_builtin);
        let usual = match known {
            Some(set) if evaluated => Some(set.eval_split),
            Some(set) => Some(set.train_split),
            None => None,
        };
        let spec = DataSpec {
            builtin: known.map(|set| set.name.to_owned()),
            config: self.config.clone(),
            split: self.split.clone().or_else(|| usual.map(str::to_owned)),
            columns: self.columns()?,
            template: self.template.clone(),
            system: self.system.clone(),
            ..DataSpec::default()
        };
        let part = match spec.split.as_deref() {
            Some("holdout") if path.is_none() => "holdout",
            Some("train") if path.is_none() => "train",
            _ => "all",
        };
        Ok(SetName { label, spec, path, part })
    }

    fn columns(&self) -> Result<Columns> {
        let mut columns = Columns::default();
        for pair in &self.columns {
            let field = pair.split_once('=').and_then(|(field, name)| {
                let place = match field {
                    "prompt" => &mut columns.prompt,
                    "answer" => &mut columns.answer,
                    "solution" => &mut columns.solution,
                    "id" => &mut columns.id,
                    _ => return None,
                };
                *place = Some(name.to_owned());
                Some(())
            });
            if field.is_none() {
                return Err(Error::usage(format!("--columns {pair} is not FIELD=NAME"))
                    .hint("fields are prompt, answer, solution and id"));
            }
        }
        Ok(columns)
    }
}

impl SetName {
    /// The configuration of the `split` stage that reads it.
    pub fn config(&self) -> split::Config {
        let source = self.path.is_some().then(|| StageRef("source".to_owned()));
        split::Config { source, spec: self.spec.clone(), holdout: None }
    }

    /// Its files.
    pub fn source(&self) -> Result<Option<Artifact>> {
        let Some(path) = &self.path else { return Ok(None) };
        let path = absolute(path)?;
        Ok(Some(artifact(&path, Kind::Download, Handle::Files { at: Location::Local { path: path.clone() } })))
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into_owned())
}

fn not_here(name: &str) -> Error {
    let repo = builtin(name).and_then(|set| set.repo);
    let hint = match repo {
        Some(repo) => format!(
            "{name} is {repo} on the hub: a pipeline's eval stage downloads it; here name its files, --data {name}=PATH"
        ),
        None => {
            let names: Vec<&str> = BUILTINS.iter().map(|set| set.name).collect();
            format!("name a file, or one of the sets as NAME=PATH: {}", names.join(", "))
        }
    };
    Error::missing(format!("the data set {name} is not here")).hint(hint)
}
