//! Finished reports, copied to where people look for them.

use std::path::{Path, PathBuf};

use crate::store::{Artifact, write_atomic};
use crate::{Error, Result};

/// `reports/out/<pipeline>`, in the current directory.
pub fn default_folder(pipeline: &str) -> PathBuf {
    let safe: String =
        pipeline.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    let safe = if safe.trim_matches('.').is_empty() { "pipeline".to_owned() } else { safe };
    Path::new("reports").join("out").join(safe)
}

/// Copies every file of the artifact but its description; gives the paths of the report files themselves.
pub fn publish(report: &Artifact, folder: &Path) -> Result<Vec<PathBuf>> {
    for name in report.meta.files.keys() {
        let from = report.dir.join(name);
        let bytes = std::fs::read(&from).map_err(|e| Error::io("read", &from, e))?;
        let to = folder.join(name);
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        write_atomic(&to, &bytes)?;
    }
    match &report.meta.handle {
        crate::store::Handle::Report { files } => Ok(files.values().map(|name| folder.join(name)).collect()),
        _ => Ok(vec![folder.to_path_buf()]),
    }
}
