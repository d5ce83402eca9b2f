//! What leaves the stream without anybody waiting: copies to the host, and recorded graphs of launches.

use std::fmt;

use cudarc::driver::{CudaEvent, CudaGraph, DeviceRepr, PinnedHostSlice, ValidAsZeroBits, result};

use super::{Gpu, Plain, Ptr, debug_each, device_error};
use crate::Result;

/// Page-locked memory that copies from the device land in without anybody waiting.
pub struct Landing<T> {
    memory: PinnedHostSlice<T>,
    arrived: Option<(CudaEvent, usize)>,
}

impl<T> fmt::Debug for Landing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Landing")
    }
}

impl Gpu {
    /// Room for `n` values.
    pub fn landing<T: Plain + DeviceRepr + ValidAsZeroBits>(&self, n: usize) -> Result<Landing<T>> {
        // SAFETY: only what a copy has written is read. Flag 0: memory that the CPU reads fast.
        let memory = unsafe { self.context.alloc_pinned_with_flags(n, 0) }
            .map_err(|e| device_error("get page-locked memory", e))?;
        Ok(Landing { memory, arrived: None })
    }

    /// Whether graphs may be recorded.
    pub fn records(&self) -> bool {
        !debug_each() && !self.is_timed()
    }
}

impl<T: Plain + DeviceRepr + ValidAsZeroBits> Landing<T> {
    /// Starts a copy of `n` values; what was sent before must have been waited for.
    pub fn send(&mut self, gpu: &Gpu, from: Ptr, n: usize) -> Result<()> {
        let memory = self.memory.as_mut_ptr().map_err(|e| device_error("use page-locked memory", e))?;
        let n = n.min(self.memory.len());
        // SAFETY: the memory holds `n` values and lives until the copy is waited for or the stream is gone.
        unsafe {
            let out = std::slice::from_raw_parts_mut(memory, n);
            result::memcpy_dtoh_async(out, from.0, gpu.stream.cu_stream())
        }
        .map_err(|e| device_error("copy from the GPU", e))?;
        let event = gpu.stream.record_event(None).map_err(|e| device_error("mark a copy", e))?;
        self.arrived = Some((event, n));
        Ok(())
    }

    /// Waits for the copy and gives its values.
    pub fn wait(&self) -> Result<Vec<T>> {
        let Some((event, n)) = &self.arrived else { return Ok(Vec::new()) };
        event.synchronize().map_err(|e| device_error("finish the GPU's work", e))?;
        let all = self.memory.as_slice().map_err(|e| device_error("use page-locked memory", e))?;
        Ok(all[..*n].to_vec())
    }
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        // A copy on its way must not land in freed memory.
        if let Some((event, _)) = &self.arrived {
            let _ = event.synchronize();
        }
    }
}

/// A recorded sequence of launches.
pub struct Graph(pub(super) CudaGraph);

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

impl Graph {
    pub fn launch(&self) -> Result<()> {
        self.0.launch().map_err(|e| device_error("run a recorded graph", e))
    }
}
