//! One GPU: its context, one stream, the loaded kernels, and memory that is given back in the stream's order.
//!
//! Everything runs on the one stream, so work and copies are in the order of the calls. Memory comes from the driver's
//! pool, which keeps what was freed: a new buffer costs about a microsecond.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaStream, DeviceRepr, DriverError, PinnedHostSlice,
    ValidAsZeroBits, result, sys,
};
use cudarc::nvrtc::Ptx;

use super::compile::{Width, cached};
use super::gemm::CublasLt;
use super::library::Library;
use super::phases::Phases;
use super::source::SOURCES;
use crate::error::Kind;
use crate::{Error, Result};

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

/// Blocks, threads of a block, bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: [usize; 3],
    pub threads: usize,
    pub shared: usize,
}

impl Grid {
    pub fn new(blocks: [usize; 3], threads: usize) -> Self {
        Self { blocks, threads, shared: 0 }
    }

    /// A block per row.
    pub fn rows(rows: usize, width: usize) -> Self {
        Self::new([rows, 1, 1], width.next_multiple_of(32).clamp(32, 512))
    }

    /// For loops over `n` elements with any number of threads.
    pub fn each(n: usize) -> Self {
        Self::new([n.div_ceil(256).clamp(1, 1 << 16), 1, 1], 256)
    }

    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared: bytes, ..self }
    }
}

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
    phases: Phases,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({}, {:?})", self.context.ordinal(), self.width)
    }
}

/// Every kernel, by the unit that holds it.
const KERNELS: &[(&str, &[&str])] = &[
    (
        "rows.cu",
        &[
            "embed",
            "row_norm",
            "add_norm",
            "head_norm",
            "norm_backward",
            "head_norm_backward",
            "norm_weight_sums",
            "head_norm_weight_sums",
            "column_sums",
            "add_partial",
            "rope",
            "silu_mul",
            "silu_mul_backward",
            "add_act",
            "add_bias",
            "to_act",
            "add_floats",
            "gather",
            "scatter",
            "embedding_backward",
        ],
    ),
    ("gemm.cu", &["gemm_aaa", "gemm_aaf", "gemm_afa", "gemm_aff", "gemm_faa", "gemm_faf", "gemm_ffa", "gemm_fff"]),
    ("attention.cu", &["attention_forward"]),
    ("attention_backward.cu", &["attention_delta", "attention_backward_q", "attention_backward_kv"]),
    ("flash_forward.cu", &["flash_forward_64", "flash_forward_128"]),
    (
        "flash_backward.cu",
        &[
            "flash_delta_64",
            "flash_delta_128",
            "flash_backward_q_64",
            "flash_backward_q_128",
            "flash_backward_kv_64",
            "flash_backward_kv_128",
        ],
    ),
    ("head.cu", &["score", "score_backward"]),
    ("sample.cu", &["sample"]),
    ("decode.cu", &["cache_write", "decode_slots", "decode_advance", "copy_pages", "decode_attention"]),
    ("dequantize.cu", &["dequantize_nvfp4", "dequantize_mxfp4", "dequantize_nf4"]),
    ("optimizer.cu", &["square_sums", "adamw", "round_moments"]),
    ("fill.cu", &["fill_bits", "fill_bytes", "fill_act", "fill_floats"]),
];

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
        let mut gpu = Self {
            context,
            stream,
            functions: HashMap::new(),
            width,
            meter: Arc::new(Meter::default()),
            blas: None,
            phases: Phases::default(),
        };
        gpu.load(&target)?;
        super::flash::allow(&gpu)?;
        if width == Width::Bf16 && Library::CublasLt.find().is_some() {
            gpu.blas = Some(CublasLt::new(&gpu)?);
        }
        Ok(gpu)
    }

    fn load(&mut self, target: &str) -> Result<()> {
        // Units without a kernel in the list are not used yet: only the checks compile them.
        let used = |name: &str| KERNELS.iter().any(|(file, _)| *file == name);
        let units: Vec<_> = SOURCES.iter().filter(|s| s.arch.includes(target) && used(s.name)).collect();
        let width = self.width;
        // Compilation takes a tenth of a second each: at the same time.
        let codes: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
            let jobs: Vec<_> = units.iter().map(|unit| scope.spawn(move || cached(unit, target, width))).collect();
            let lost = |_| Err(Error::failed("a kernel's compilation panicked"));
            jobs.into_iter().map(|job| job.join().unwrap_or_else(lost)).collect()
        });
        for (unit, code) in units.iter().zip(codes) {
            let what = format!("load {}", unit.name);
            let module = self.context.load_module(Ptx::from_binary(code?)).map_err(|e| device_error(&what, e))?;
            for &name in KERNELS.iter().filter(|(file, _)| *file == unit.name).flat_map(|(_, names)| *names) {
                let what = format!("find the kernel {name}");
                let function = module.load_function(name).map_err(|e| device_error(&what, e))?;
                self.functions.insert(name, function);
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

    /// Gives a kernel to the stream.
    pub fn launch(&self, name: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        let function = self.functions.get(name).ok_or_else(|| Error::failed(format!("there is no kernel {name}")))?;
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| (&raw const arg.0).cast_mut().cast()).collect();
        let [x, y, z] = grid.blocks.map(|n| n as u32);
        // SAFETY: the arguments are as many and as wide as the kernel declares (its tests launch each), and point to
        // buffers that live until the stream has passed this launch.
        unsafe {
            result::launch_kernel(
                function.cu_function(),
                (x, y, z),
                (grid.threads as u32, 1, 1),
                grid.shared as u32,
                self.stream.cu_stream(),
                &mut pointers,
            )
        }
        .map_err(|e| device_error(&format!("launch {name} as {grid:?}"), e))?;
        if debug_each() {
            self.stream.synchronize().map_err(|e| device_error(&format!("run {name} as {grid:?} with {args:?}"), e))?;
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
        !debug_each()
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
pub struct Graph(CudaGraph);

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
