//! How a job says that it runs and how it ended: one small file per instance.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Frozen;
use crate::store::write_atomic;
use crate::{Error, Result};

/// Where an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stand {
    Running,
    Done,
    Failed,
    /// What it needs failed.
    Skipped,
    /// Asked to stop (a time limit, a requeue, scancel): its checkpoint is kept.
    Stopped,
}

impl Stand {
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Skipped)
    }
}

/// What stands in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    pub stand: Stand,
    /// Slurm's name of the job: `12` or `12_3`.
    pub job: String,
    pub host: String,
    pub time: String,
    /// How often it was started.
    pub starts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Marker {
    fn path(frozen: &Frozen, index: usize) -> PathBuf {
        frozen.folder().join("state").join(format!("{index}.json"))
    }

    /// None where the instance was not started.
    pub fn read(frozen: &Frozen, index: usize) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(Self::path(frozen, index)).ok()?).ok()
    }

    /// Writes where the instance of this process's job stands.
    pub fn write(frozen: &Frozen, index: usize, stand: Stand, why: Option<String>) -> Result<()> {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let job = match (var("SLURM_ARRAY_JOB_ID"), var("SLURM_ARRAY_TASK_ID")) {
            (Some(job), Some(task)) => format!("{job}_{task}"),
            _ => var("SLURM_JOB_ID").unwrap_or_default(),
        };
        let before = Self::read(frozen, index).map_or(0, |m| m.starts);
        let marker = Self {
            stand,
            job,
            host: crate::store::host_name(),
            time: jiff::Timestamp::now().to_string(),
            starts: before + u32::from(stand == Stand::Running),
            why,
        };
        let text = serde_json::to_vec(&marker).map_err(|e| Error::failed("cannot write a marker").caused_by(e))?;
        write_atomic(&Self::path(frozen, index), &text)
    }
}
