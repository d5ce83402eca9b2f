//! QERL_CUDA_TIMES=1: every launch is waited for and timed, and the sums by kernel are printed at the end. Launches no
//! longer overlap, so a time holds some two microseconds of the launch itself.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cudarc::driver::{CudaEvent, sys};

use super::{Gpu, device_error};
use crate::Result;

/// By kernel: launches and milliseconds.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<BTreeMap<&'static str, (u64, f64)>>);

impl Times {
    /// Where they are asked for.
    pub(super) fn from_env() -> Option<Self> {
        std::env::var_os("QERL_CUDA_TIMES").is_some_and(|v| v == "1").then(Self::default)
    }
}

impl Drop for Times {
    fn drop(&mut self) {
        let Ok(all) = self.0.get_mut() else { return };
        let mut rows: Vec<_> = all.iter().collect();
        rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        eprintln!("{:>10} {:>9} {:>9}  kernel", "ms", "launches", "us each");
        for (name, (count, ms)) in rows {
            eprintln!("{ms:>10.2} {count:>9} {:>9.2}  {name}", 1000.0 * ms / *count as f64);
        }
    }
}

impl Gpu {
    /// Whether launches are timed one by one.
    pub fn is_timed(&self) -> bool {
        self.times.is_some()
    }

    fn mark(&self) -> Result<CudaEvent> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        self.stream.record_event(Some(flags)).map_err(|e| device_error("time a kernel", e))
    }

    /// The moment before a launch, where launches are timed.
    pub fn clock(&self) -> Result<Option<CudaEvent>> {
        self.times.as_ref().map(|_| self.mark()).transpose()
    }

    /// Counts what was launched since `clock`.
    pub fn stop(&self, name: &'static str, clock: Option<CudaEvent>) -> Result<()> {
        let (Some(times), Some(start)) = (&self.times, clock) else { return Ok(()) };
        let end = self.mark()?;
        end.synchronize().map_err(|e| device_error("time a kernel", e))?;
        let ms = start.elapsed_ms(&end).map_err(|e| device_error("time a kernel", e))?;
        if let Ok(mut all) = times.0.lock() {
            let entry = all.entry(name).or_default();
            *entry = (entry.0 + 1, entry.1 + f64::from(ms));
        }
        Ok(())
    }
}
