//! Ctrl-C: once asks the stages to checkpoint and stop, twice ends the process.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::control::Cancel;
use crate::error::Kind;
use crate::{Error, Result};

/// Sets the flag on the first SIGINT, SIGTERM or SIGHUP and calls `say`; the second exits at once with 130.
///
/// # Errors
/// When a handler is installed already.
pub fn stop_on_interrupt(cancel: &Cancel, say: impl Fn() + Send + 'static) -> Result<()> {
    let cancel = cancel.clone();
    let count = AtomicUsize::new(0);
    ctrlc::set_handler(move || {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            cancel.cancel();
            say();
        } else {
            std::process::exit(130);
        }
    })
    .map_err(|e| Error::new(Kind::Failed, "cannot listen for Ctrl-C").caused_by(e))
}
