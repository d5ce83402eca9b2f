//! The arguments that every subcommand with a pipeline file shares, and how its errors are shown.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use crate::pipeline::{self, Graph, Options};
use crate::plan::Versions;
use crate::{Error, Result};

/// A pipeline file and what is changed or chosen from the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct PipelineArgs {
    /// The pipeline file
    pub file: PathBuf,
    #[command(flatten)]
    pub choice: Choice,
}

/// What is changed or chosen from the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Choice {
    /// Set a value: `train.steps=20`, `vars.model=bundled`, `sweep.seed=[1,2]` (YAML rules; may be repeated)
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    /// Only these points of the axes: `variant=nvfp4-aqn,seed=1` (repeated: any of them)
    #[arg(long, value_name = "AXIS=LABEL,...")]
    pub only: Vec<String>,
    /// Apply one of the file's profiles
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
}

/// What becomes of long work that an older qerl finished.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct VersionArgs {
    /// Use finished artifacts of older stage implementations
    #[arg(long, conflicts_with = "rerun")]
    keep_old: bool,
    /// Make artifacts of older stage implementations anew
    #[arg(long)]
    rerun: bool,
}

impl VersionArgs {
    pub fn choice(self) -> Versions {
        match (self.keep_old, self.rerun) {
            (true, _) => Versions::KeepOld,
            (_, true) => Versions::Rerun,
            _ => Versions::Ask,
        }
    }
}

impl PipelineArgs {
    /// Reads and expands the file; an error holds every diagnostic.
    pub fn load(&self) -> Result<Graph> {
        self.choice.load(&self.file)
    }
}

impl Choice {
    pub fn options(&self) -> Options {
        Options { sets: self.sets.clone(), only: self.only.clone(), profile: self.profile.clone() }
    }

    /// The same for the record of a run.
    pub fn overrides(&self) -> crate::run::Overrides {
        crate::run::Overrides { sets: self.sets.clone(), only: self.only.clone(), profile: self.profile.clone() }
    }

    /// Reads and expands `file`; an error holds every diagnostic, in colour where stderr shows it.
    pub fn load(&self, file: &Path) -> Result<Graph> {
        pipeline::load(file, &self.options()).map_err(shown)
    }
}

/// The error that `main` prints: rendered in colour on a terminal without `NO_COLOR`.
pub fn shown(diagnostics: pipeline::Diagnostics) -> Error {
    if colour() {
        let n = diagnostics.len();
        let what = if n == 1 { "1 error".to_owned() } else { format!("{n} errors") };
        return Error::usage(format!("the pipeline is not valid ({what})\n{}", diagnostics.render(true)));
    }
    diagnostics.into()
}

fn colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
