//! One GPU: its context, one stream, the loaded kernels, and memory that is given back in the stream's order.
//!
//! Everything runs on the one stream, so work and copies are in the order of the calls. Memory comes from the driver's
//! pool, which keeps what was freed: a new buffer costs about a microsecond.

mod grid;
mod kernels;
mod landing;
mod launch;
mod times;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;

use super::choose;
use super::compile::{Width, cached};
use super::gemm::CublasLt;
use super::library::Library;
use super::phases::Phases;
use super::source::SOURCES;
use crate::error::Kind;
use crate::quant::Format;
use crate::{Error, Result};

pub use grid::Grid;
pub use kernels::flash_shared;
use kernels::{FLASH, KERNELS, MATRIX_KERNELS};
pub use landing::{Graph, Landing};

/// An address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ptr(pub u64);

impl Ptr {
    pub const NULL: Self = Self(0);

    /// `bytes` further on.
    #[must_use]
    pub fn at(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// An argument of a kernel, as wide as the kernel declares it.
#[derive(Clone, Copy, Debug)]
pub struct Arg(u64);

impl From<Ptr> for Arg {
    fn from(x: Ptr) -> Self {
        Self(x.0)
    }
}
impl From<&Buffer> for Arg {
    fn from(x: &Buffer) -> Self {
        Self(x.ptr.0)
    }
}
/// `int`.
impl From<i32> for Arg {
    fn from(x: i32) -> Self {
        Self(u64::from(x as u32))
    }
}
/// `long long`.
impl From<i64> for Arg {
    fn from(x: i64) -> Self {
        Self(x as u64)
    }
}
impl From<f32> for Arg {
    fn from(x: f32) -> Self {
        Self(u64::from(x.to_bits()))
    }
}

/// The arguments of a launch.
macro_rules! args {
    ($($x:expr),* $(,)?) => { &[$($crate::engine::cuda::gpu::Arg::from($x)),*] };
}
pub(crate) use args;

/// Types whose bytes may be copied to and from a device.
///
/// # Safety
/// No padding, and every pattern of bits is a value.
pub unsafe trait Plain: Copy {}
// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: sixteen bits.
unsafe impl Plain for half::bf16 {}
// SAFETY: arrays have no padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Bytes in use, and the most that were.
#[derive(Debug, Default)]
pub struct Meter {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Meter {
    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The most since the last reset.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn reset_peak(&self) {
        self.peak.store(self.now(), Ordering::Relaxed);
    }
}

/// Device memory; freed in the order of the stream, so that work which was given to it before may still read it.
pub struct Buffer {
    ptr: Ptr,
    bytes: usize,
    stream: Arc<CudaStream>,
    meter: Arc<Meter>,
}

impl Buffer {
    pub fn ptr(&self) -> Ptr {
        self.ptr
    }

    pub fn at(&self, bytes: usize) -> Ptr {
        self.ptr.at(bytes)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.meter.now.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        // SAFETY: allocated on this stream, freed once. An error here is one of earlier work and is reported by the
        // next call that can report it.
        unsafe {
            let _ = self.stream.context().bind_to_thread();
            let _ = result::free_async(self.ptr.0, self.stream.cu_stream());
        }
    }
}

/// See the module's header.
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    functions: HashMap<&'static str, CudaFunction>,
    width: Width,
    meter: Arc<Meter>,
    blas: Option<CublasLt>,
    /// Whether launches can overlap (sm_90 and newer).
    chains: bool,
    times: Option<times::Times>,
    processors: usize,
    most_shared: usize,
    phases: Phases,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({}, {:?})", self.context.ordinal(), self.width)
    }
}

pub(super) fn device_error(what: &str, error: DriverError) -> Error {
    let text = match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("{:?}", error.0),
    };
    let out = Error::new(Kind::Device, format!("cannot {what}: {text}"));
    if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return out.hint(
            "the GPU's memory is full: close what else runs on it, or use smaller micro-batches, shorter completions or \
             a 4-bit base",
        );
    }
    out
}

impl Gpu {
    /// Opens device `ordinal` (among those that CUDA_VISIBLE_DEVICES leaves) and loads the kernels, compiling those
    /// that are not in the cache.
    ///
    /// # Errors
    /// Where a library is missing, or the device or a kernel does not load.
    pub fn open(ordinal: usize, width: Width) -> Result<Self> {
        Library::Driver.require()?;
        let context = CudaContext::new(ordinal).map_err(|e| device_error(&format!("open GPU {ordinal}"), e))?;
        // SAFETY: everything of this context runs on one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|e| device_error("make a stream", e))?;
        keep_freed_memory(&context)?;
        let target = target(&context)?;
        use sys::CUdevice_attribute as Attribute;
        let ask = |attribute| context.attribute(attribute).map_err(|e| device_error("ask a GPU for its limits", e));
        let processors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let most_shared = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        let chains = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? >= 9;
        let mut gpu = Self {
            context,
            stream,
            functions: HashMap::new(),
            width,
            meter: Arc::new(Meter::default()),
            blas: None,
            chains,
            times: times::Times::from_env(),
            phases: Phases::default(),
            processors,
            most_shared,
        };
        gpu.load(&target)?;
        gpu.allow_all_shared()?;
        super::flash::allow(&gpu)?;
        if width == Width::Bf16 && Library::CublasLt.find().is_some() {
            gpu.blas = Some(CublasLt::new(&gpu)?);
        }
        Ok(gpu)
    }

    fn load(&mut self, target: &str) -> Result<()> {
        let width = self.width;
        // Those for matrix units know bf16 alone.
        let known = || KERNELS.iter().chain(if width == Width::Bf16 { MATRIX_KERNELS } else { &[] });
        let used = |name: &str| known().any(|(file, _)| *file == name);
        let units: Vec<_> = SOURCES.iter().filter(|s| s.arch.includes(target) && used(s.name)).collect();
        // Compilation takes a tenth of a second each: at the same time.
        let codes: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
            let jobs: Vec<_> = units.iter().map(|unit| scope.spawn(move || cached(unit, target, width))).collect();
            let lost = |_| Err(Error::failed("a kernel's compilation panicked"));
            jobs.into_iter().map(|job| job.join().unwrap_or_else(lost)).collect()
        });
        for (unit, code) in units.iter().zip(codes) {
            let what = format!("load {}", unit.name);
            let module = self.context.load_module(Ptx::from_binary(code?)).map_err(|e| device_error(&what, e))?;
            for &name in known().filter(|(file, _)| *file == unit.name).flat_map(|(_, names)| *names) {
                let what = format!("find the kernel {name}");
                let function = module.load_function(name).map_err(|e| device_error(&what, e))?;
                self.functions.insert(name, function);
            }
        }
        Ok(())
    }

    /// Kernels that take more shared memory than usual get it, as far as the device has it.
    fn allow_all_shared(&self) -> Result<()> {
        if self.width == Width::F32 {
            return Ok(());
        }
        for kernel in [Format::Nvfp4, Format::Nf4].into_iter().flat_map(choose::kernels) {
            if kernel.shared() <= self.most_shared {
                self.allow_shared(kernel.name, kernel.shared())?;
            }
        }
        for (dim, name) in FLASH {
            if flash_shared(dim) <= self.most_shared {
                self.allow_shared(name, flash_shared(dim))?;
            }
        }
        Ok(())
    }

    pub fn name(&self) -> Result<String> {
        self.context.name().map_err(|e| device_error("ask a GPU for its name", e))
    }

    pub fn width(&self) -> Width {
        self.width
    }

    /// Bytes of `n` activations.
    pub fn act(&self, n: usize) -> usize {
        n * self.width.bytes()
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn phases(&self) -> &Phases {
        &self.phases
    }

    pub(super) fn blas(&self) -> Option<&CublasLt> {
        self.blas.as_ref()
    }

    /// Binds the device to the calling thread: the first thing that every entry point does.
    pub fn enter(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| device_error("use the GPU", e))
    }

    /// Bytes that are free on the device, those that this process keeps for reuse included.
    pub fn free_memory(&self) -> Result<u64> {
        let (free, _) = self.context.mem_get_info().map_err(|e| device_error("ask for free memory", e))?;
        let (mut pool, mut reserved, mut used) = (std::ptr::null_mut(), 0u64, 0u64);
        use sys::CUmemPool_attribute_enum as Attribute;
        // SAFETY: the context is bound, the pointers are valid, the attributes are 64-bit numbers.
        unsafe {
            sys::cuDeviceGetDefaultMemPool(&raw mut pool, self.context.cu_device())
                .result()
                .and_then(|()| {
                    let attribute = Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
                    sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut reserved).cast()).result()
                })
                .and_then(|()| {
                    let attribute = Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
                    sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut used).cast()).result()
                })
                .map_err(|e| device_error("ask the memory pool", e))?;
        }
        Ok(free as u64 + reserved.saturating_sub(used))
    }

    /// Uninitialized memory.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let size = bytes.max(16);
        // SAFETY: the size is not zero; every reader of the memory comes after a writer on the same stream.
        let ptr = unsafe { result::malloc_async(self.stream.cu_stream(), size) }
            .map_err(|e| device_error(&format!("get {size} bytes on the GPU"), e))?;
        self.meter.add(size as u64);
        Ok(Buffer { ptr: Ptr(ptr), bytes: size, stream: Arc::clone(&self.stream), meter: Arc::clone(&self.meter) })
    }

    pub fn alloc_floats(&self, n: usize) -> Result<Buffer> {
        self.alloc(4 * n)
    }

    /// `n` activations.
    pub fn alloc_act(&self, n: usize) -> Result<Buffer> {
        self.alloc(self.act(n))
    }

    pub fn zeros(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.alloc(bytes)?;
        self.clear(buffer.ptr(), bytes)?;
        Ok(buffer)
    }

    pub fn clear(&self, ptr: Ptr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's range lies in a live buffer.
        unsafe { result::memset_d8_async(ptr.0, 0, bytes, self.stream.cu_stream()) }
            .map_err(|e| device_error("clear memory of the GPU", e))
    }

    /// Copies to the device; `data` may go as soon as this returns.
    pub fn write<T: Plain>(&self, to: Ptr, data: &[T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: pageable memory is staged before the call returns; the range lies in a live buffer.
        unsafe { result::memcpy_htod_async(to.0, data, self.stream.cu_stream()) }
            .map_err(|e| device_error("copy to the GPU", e))
    }

    pub fn upload<T: Plain>(&self, data: &[T]) -> Result<Buffer> {
        let buffer = self.alloc(std::mem::size_of_val(data))?;
        self.write(buffer.ptr(), data)?;
        Ok(buffer)
    }

    /// Waits for the work so far and copies `out.len()` values from the device.
    pub fn read<T: Plain>(&self, from: Ptr, out: &mut [T]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies in a live buffer; pageable memory is filled when the call returns.
        unsafe { result::memcpy_dtoh_async(out, from.0, self.stream.cu_stream()) }
            .map_err(|e| device_error("copy from the GPU", e))?;
        self.synchronize()
    }

    pub fn download<T: Plain + Default>(&self, from: Ptr, n: usize) -> Result<Vec<T>> {
        let mut out = vec![T::default(); n];
        self.read(from, &mut out)?;
        Ok(out)
    }

    pub fn copy(&self, to: Ptr, from: Ptr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's ranges lie in live buffers.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream.cu_stream()) }
            .map_err(|e| device_error("copy on the GPU", e))
    }

    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(|e| device_error("finish the GPU's work", e))
    }

    /// Multiprocessors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// The most bytes of shared memory that a block may have.
    pub fn most_shared(&self) -> usize {
        self.most_shared
    }

    /// Whether `name` was loaded: units for matrix units are not in the check mode.
    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// Records what `work` gives to the stream, without running it. Nothing may be allocated or read in it.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|e| device_error("record a graph", e))?;
        let outcome = work();
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        outcome?;
        let graph = graph.map_err(|e| device_error("record a graph", e))?;
        graph.map(Graph).ok_or_else(|| Error::failed("a recorded graph is empty"))
    }
}

/// QERL_CUDA_SYNC=1: wait after every launch, so that an error names its kernel.
fn debug_each() -> bool {
    static EACH: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *EACH.get_or_init(|| std::env::var_os("QERL_CUDA_SYNC").is_some_and(|v| v == "1"))
}

/// The pool would give memory back to the driver at every synchronization.
fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    let mut pool = std::ptr::null_mut();
    let mut all = u64::MAX;
    // SAFETY: the context is bound, the pointers are valid, the attribute is a 64-bit number.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device())
            .result()
            .and_then(|()| {
                let attribute = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut all).cast()).result()
            })
            .map_err(|e| device_error("set up the GPU's memory pool", e))
    }
}

/// `sm_90a` of a compute capability: with the chip's own instructions from 9.0 on.
fn target(context: &CudaContext) -> Result<String> {
    let (major, minor) = context.compute_capability().map_err(|e| device_error("ask for the GPU's kind", e))?;
    if major < 8 {
        return Err(Error::new(Kind::Device, format!("a GPU of compute capability {major}.{minor} is too old"))
            .hint("8.0 (A100) or newer is needed; use --device cpu"));
    }
    Ok(format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" }))
}
