//! Launches of kernels.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::{Arg, Gpu, Grid, debug_each, device_error};
use crate::{Error, Result};

impl Gpu {
    /// Gives a kernel to the stream.
    pub fn launch(&self, name: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| (&raw const arg.0).cast_mut().cast()).collect();
        self.submit(name, grid, &mut pointers, false)
    }

    /// As [`Gpu::launch`], of a kernel that waits for the one before by itself: it may start while that one still runs.
    pub fn launch_chained(&self, name: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| (&raw const arg.0).cast_mut().cast()).collect();
        self.submit(name, grid, &mut pointers, true)
    }

    /// As [`Gpu::launch_chained`], of a kernel that takes one struct by value.
    pub fn launch_struct<T: Copy>(&self, name: &'static str, grid: Grid, args: &T) -> Result<()> {
        self.submit(name, grid, &mut [std::ptr::from_ref(args).cast_mut().cast()], true)
    }

    fn submit(&self, name: &'static str, grid: Grid, pointers: &mut [*mut c_void], chained: bool) -> Result<()> {
        let function = self.functions.get(name).ok_or_else(|| Error::failed(format!("there is no kernel {name}")))?;
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let [x, y, z] = grid.blocks.map(|n| n as u32);
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: grid.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared as u32,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut overlap,
            numAttrs: u32::from(chained && self.chains),
        };
        let clock = self.clock()?;
        // SAFETY: the arguments are as many and as wide as the kernel declares (its tests launch each), and point to
        // buffers that live until the stream has passed this launch; the driver copies them before it returns.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.cu_function(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
            .result()
        }
        .map_err(|e| device_error(&format!("launch {name} as {grid:?}"), e))?;
        self.stop(name, clock)?;
        if debug_each() {
            self.stream.synchronize().map_err(|e| device_error(&format!("run {name} as {grid:?}"), e))?;
        }
        Ok(())
    }

    /// Allows a kernel more dynamic shared memory than 48 KiB.
    pub fn allow_shared(&self, name: &'static str, bytes: usize) -> Result<()> {
        if bytes <= 48 << 10 {
            return Ok(());
        }
        let function = self.functions.get(name).ok_or_else(|| Error::failed(format!("there is no kernel {name}")))?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function
            .set_attribute(attribute, bytes as i32)
            .map_err(|e| device_error(&format!("give {name} {bytes} bytes of shared memory"), e))
    }
}
