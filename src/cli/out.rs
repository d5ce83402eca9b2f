//! Data for stdout.

use std::io::{ErrorKind, Write};

use crate::{Error, Result};

/// Writes to stdout; a closed pipe (`| head`) is no error.
pub(super) fn write(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::io("write to", "stdout", e)),
        _ => Ok(()),
    }
}
