//! Connections that live and bring next to nothing.

use std::time::{Duration, Instant};

use super::http::{Failure, passing};

/// Notices a connection that lives but brings next to nothing.
pub(super) struct Pace {
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// Bytes per second below which a new connection is worth trying.
    const LEAST: f64 = 256.0;

    pub(super) fn new(stall: Duration) -> Self {
        Self { window: stall.saturating_mul(3), since: Instant::now(), bytes: 0 }
    }

    pub(super) fn saw(&mut self, bytes: usize) -> Result<(), Failure> {
        self.bytes += bytes as u64;
        let passed = self.since.elapsed();
        if passed < self.window {
            return Ok(());
        }
        if (self.bytes as f64) < Self::LEAST * passed.as_secs_f64() {
            return Err(passing("the connection has become too slow"));
        }
        (self.since, self.bytes) = (Instant::now(), 0);
        Ok(())
    }
}
