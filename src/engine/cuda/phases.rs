//! Where the device's time goes: marks in the stream, each the start of a phase that lasts until the next one.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaEvent, sys};

use super::gpu::{Gpu, device_error};
use crate::{Error, Result};

/// What a stretch of a pass is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Weights to bf16.
    Dequantize,
    /// Products with the base weights.
    Products,
    /// Products with the adapter's matrices.
    Adapter,
    AttentionForward,
    AttentionBackward,
    /// Norms, rotary embeddings, SiLU, residuals, biases.
    Rows,
    /// Log-probs and entropies over the vocabulary, and back.
    Head,
    Optimizer,
    /// The host's work between passes.
    Outside,
}

impl Phase {
    /// As reports write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dequantize => "dequantize",
            Self::Products => "products",
            Self::Adapter => "adapter",
            Self::AttentionForward => "attention_forward",
            Self::AttentionBackward => "attention_backward",
            Self::Rows => "rows",
            Self::Head => "head",
            Self::Optimizer => "optimizer",
            Self::Outside => "outside",
        }
    }
}

/// Marks nothing until it is switched on.
#[derive(Default)]
pub struct Phases {
    on: AtomicBool,
    marks: Mutex<Vec<(Phase, CudaEvent)>>,
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Phases({})", self.on.load(Ordering::Relaxed))
    }
}

fn lost<T>(_: T) -> Error {
    Error::failed("a pass panicked while its phases were timed")
}

impl Gpu {
    /// From here on the stream does this.
    pub fn phase(&self, phase: Phase) -> Result<()> {
        let phases = self.phases();
        if !phases.on.load(Ordering::Relaxed) {
            return Ok(());
        }
        let event = self
            .stream()
            .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(|e| device_error("mark a phase", e))?;
        phases.marks.lock().map_err(lost)?.push((phase, event));
        Ok(())
    }

    /// Starts to time phases anew.
    pub fn start_phases(&self) -> Result<()> {
        self.phases().marks.lock().map_err(lost)?.clear();
        self.phases().on.store(true, Ordering::Relaxed);
        self.phase(Phase::Outside)
    }

    /// Stops, waits for the device, and gives the milliseconds of each phase.
    pub fn end_phases(&self) -> Result<Vec<(Phase, f64)>> {
        self.phase(Phase::Outside)?;
        self.phases().on.store(false, Ordering::Relaxed);
        self.synchronize()?;
        let marks = std::mem::take(&mut *self.phases().marks.lock().map_err(lost)?);
        let mut spans = Vec::with_capacity(marks.len());
        for pair in marks.windows(2) {
            let ms = pair[0].1.elapsed_ms(&pair[1].1).map_err(|e| device_error("time a phase", e))?;
            spans.push((pair[0].0, f64::from(ms)));
        }
        Ok(sums(&spans))
    }
}

/// Spans of one phase together, in the phases' order.
fn sums(spans: &[(Phase, f64)]) -> Vec<(Phase, f64)> {
    let mut all = std::collections::BTreeMap::new();
    for &(phase, ms) in spans {
        *all.entry(phase).or_insert(0.0) += ms;
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_a_phase_are_added() {
        let spans = [(Phase::Head, 1.0), (Phase::Rows, 2.0), (Phase::Head, 0.5)];
        assert_eq!(sums(&spans), [(Phase::Rows, 2.0), (Phase::Head, 1.5)]);
    }
}
