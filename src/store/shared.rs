//! A store that a Unix group shares: whatever one member makes, every other can use, replace and remove.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::Mode;

use crate::{Error, Result};

/// Set-group-id: what is made below belongs to the folder's group, not to the maker's first one.
const SET_GROUP: u32 = 0o2000;

/// Makes the store's folder where there is none, and has everything that this process writes be writable for its
/// group. An existing folder keeps its owner; where it is ours, it gets the set-group-id bit.
pub(super) fn prepare(root: &Path) -> Result<()> {
    rustix::process::umask(Mode::WOTH);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o775);
    builder.create(root).map_err(|e| {
        let hint = "QERL_STORE names the folder of a shared store: its parent must exist and be writable for you";
        Error::io("create the shared store", root, e).hint(hint)
    })?;
    let meta = std::fs::metadata(root).map_err(|e| Error::io("read", root, e))?;
    if meta.mode() & SET_GROUP == 0 && rustix::process::geteuid().as_raw() == meta.uid() {
        let mode = std::fs::Permissions::from_mode(meta.mode() | SET_GROUP | 0o070);
        std::fs::set_permissions(root, mode).map_err(|e| Error::io("share", root, e))?;
    }
    Ok(())
}
