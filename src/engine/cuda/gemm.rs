//! Matrix products: cuBLASLt for bf16 operands that suit it, our own kernel for everything else.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::fmt;
use std::sync::Mutex;

use cudarc::cublaslt::{result, sys};

use super::compile::Width;
use super::gpu::{Buffer, Gpu, Grid, Ptr, args};
use crate::error::Kind;
use crate::{Error, Result};

const WORKSPACE: usize = 32 << 20;

/// How an operand's entries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// As activations are.
    Act,
    F32,
}

/// Entry (i, j) lies `i * row + j * column` elements behind `ptr`.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub ptr: Ptr,
    pub elem: Elem,
    pub row: usize,
    pub column: usize,
}

impl Operand {
    /// Row-major activations.
    pub fn act(ptr: Ptr, stride: usize) -> Self {
        Self { ptr, elem: Elem::Act, row: stride, column: 1 }
    }

    /// Row-major f32.
    pub fn f32(ptr: Ptr, stride: usize) -> Self {
        Self { ptr, elem: Elem::F32, row: stride, column: 1 }
    }

    /// The transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }
}

impl Gpu {
    /// `c = beta c + alpha a b`: a `[m, k]`, b `[k, n]`, c `[m, n]` (its columns one apart). f32 sums.
    pub fn gemm(&self, [m, n, k]: [usize; 3], alpha: f32, a: Operand, b: Operand, beta: f32, c: Operand) -> Result<()> {
        if m == 0 || n == 0 {
            return Ok(());
        }
        if let Some(blas) = self.blas()
            && blas.suits([m, n, k], a, b, c)
        {
            let clock = self.clock()?;
            blas.product(self, [m, n, k], alpha, a, b, beta, c)?;
            return self.stop("cublasLt", clock);
        }
        let name = match (a.elem, b.elem, c.elem) {
            (Elem::Act, Elem::Act, Elem::Act) => "gemm_aaa",
            (Elem::Act, Elem::Act, Elem::F32) => "gemm_aaf",
            (Elem::Act, Elem::F32, Elem::Act) => "gemm_afa",
            (Elem::Act, Elem::F32, Elem::F32) => "gemm_aff",
            (Elem::F32, Elem::Act, Elem::Act) => "gemm_faa",
            (Elem::F32, Elem::Act, Elem::F32) => "gemm_faf",
            (Elem::F32, Elem::F32, Elem::Act) => "gemm_ffa",
            (Elem::F32, Elem::F32, Elem::F32) => "gemm_fff",
        };
        let stride = |x: usize| x as i64;
        self.launch(
            name,
            Grid::new([n.div_ceil(64), m.div_ceil(64), 1], 256),
            args![
                c.ptr,
                stride(c.row),
                a.ptr,
                stride(a.row),
                stride(a.column),
                b.ptr,
                stride(b.row),
                stride(b.column),
                m as i32,
                n as i32,
                k as i32,
                alpha,
                beta
            ],
        )
    }
}

/// Shapes, strides and layouts of a product: what its algorithm depends on.
type Key = ([usize; 3], [usize; 3], [bool; 2], Elem);

/// Descriptors and the chosen algorithm.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each was made once by the library and is destroyed once.
        unsafe {
            let _ = result::destroy_matrix_layout(self.a);
            let _ = result::destroy_matrix_layout(self.b);
            let _ = result::destroy_matrix_layout(self.c);
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

/// A handle, a workspace and the plans so far.
pub(super) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    plans: Mutex<HashMap<Key, Plan>>,
}

// SAFETY: the handle may be used from any thread; the plans are behind a lock.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CublasLt")
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if let Ok(mut plans) = self.plans.lock() {
            plans.clear();
        }
        // SAFETY: made once, destroyed once, its plans are gone.
        unsafe {
            let _ = result::destroy_handle(self.handle);
        }
    }
}

fn blas_error(what: &str, error: result::CublasError) -> Error {
    Error::new(Kind::Device, format!("cuBLASLt cannot {what}: {:?}", error.0))
}

impl CublasLt {
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let handle = result::create_handle().map_err(|e| blas_error("start", e))?;
        Ok(Self { handle, workspace: gpu.alloc(WORKSPACE)?, plans: Mutex::new(HashMap::new()) })
    }

    /// bf16 operands with one unit stride each, aligned to 16 bytes.
    fn suits(&self, [m, n, k]: [usize; 3], a: Operand, b: Operand, c: Operand) -> bool {
        let bf16 = a.elem == Elem::Act && b.elem == Elem::Act;
        let aligned = |o: Operand| {
            let (unit, other) = if o.column == 1 { (o.column, o.row) } else { (o.row, o.column) };
            let bytes = if o.elem == Elem::Act { 2 } else { 4 };
            unit == 1 && other * bytes % 16 == 0 && o.ptr.0.is_multiple_of(16)
        };
        bf16 && c.column == 1 && aligned(a) && aligned(b) && aligned(c) && m * n * k >= 1 << 15 && k >= 16
    }

    /// Column-major on its side: C^T = B^T A^T.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    fn product(
        &self,
        gpu: &Gpu,
        shape: [usize; 3],
        alpha: f32,
        a: Operand,
        b: Operand,
        beta: f32,
        c: Operand,
    ) -> Result<()> {
        debug_assert_eq!(gpu.width(), Width::Bf16);
        let transposed = |o: Operand| o.column != 1;
        let stride = |o: Operand| if o.column == 1 { o.row } else { o.column };
        let key: Key = (shape, [stride(a), stride(b), c.row], [transposed(a), transposed(b)], c.elem);
        let mut plans = self.plans.lock().map_err(|_| Error::failed("a product panicked"))?;
        let plan = match plans.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(self.plan(key)?),
        };
        // SAFETY: the descriptors are alive and describe the operands, which lie in live buffers; the workspace is used
        // by one product at a time, since all run on one stream.
        unsafe {
            result::matmul(
                self.handle,
                plan.operation,
                (&raw const alpha).cast::<c_void>(),
                (&raw const beta).cast::<c_void>(),
                b.ptr.0 as *const c_void,
                plan.b,
                a.ptr.0 as *const c_void,
                plan.a,
                c.ptr.0 as *const c_void,
                plan.c,
                c.ptr.0 as *mut c_void,
                plan.c,
                &raw const plan.algorithm,
                self.workspace.ptr().0 as *mut c_void,
                WORKSPACE,
                gpu.stream().cu_stream().cast(),
            )
        }
        .map_err(|e| blas_error(&format!("multiply {shape:?}"), e))
    }

    fn plan(&self, ([m, n, k], [lda, ldb, ldc], [ta, tb], elem): Key) -> Result<Plan> {
        let wrong = |e| blas_error(&format!("plan a product of {m} x {n} x {k}"), e);
        let bf16 = sys::cudaDataType_t::CUDA_R_16BF;
        let c_type = if elem == Elem::Act { bf16 } else { sys::cudaDataType_t::CUDA_R_32F };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let operation = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).map_err(wrong)?;
        // Row-major [k, n] is column-major [n, k]: no transpose there; row-major [n, k] needs one.
        let side = |transposed: bool, inner: usize, outer: usize, stride: usize| {
            let (rows, columns) = if transposed { (inner, outer) } else { (outer, inner) };
            result::create_matrix_layout(bf16, rows as u64, columns as u64, stride as i64)
        };
        // B [k, n]: the first operand is B^T [n, k]. A [m, k]: the second is A^T [k, m].
        let b = side(tb, k, n, ldb).map_err(wrong)?;
        let a = side(ta, m, k, lda).map_err(wrong)?;
        let c = result::create_matrix_layout(c_type, n as u64, m as u64, ldc as i64).map_err(wrong)?;
        let preference = result::create_matmul_pref().map_err(wrong)?;
        let op = |transposed: bool| i32::from(transposed); // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1
        let (op_b, op_a) = (op(tb), op(ta));
        // SAFETY: the objects were made above; the values have the sizes that the attributes ask for.
        let found = unsafe {
            use sys::cublasLtMatmulDescAttributes_t as Attribute;
            result::set_matmul_desc_attribute(
                operation,
                Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const op_b).cast(),
                4,
            )
            .map_err(wrong)?;
            result::set_matmul_desc_attribute(
                operation,
                Attribute::CUBLASLT_MATMUL_DESC_TRANSB,
                (&raw const op_a).cast(),
                4,
            )
            .map_err(wrong)?;
            let room = WORKSPACE;
            result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const room).cast(),
                size_of::<usize>(),
            )
            .map_err(wrong)?;
            let found = result::get_matmul_algo_heuristic(self.handle, operation, b, a, c, c, preference);
            let _ = result::destroy_matmul_pref(preference);
            found.map_err(wrong)?
        };
        Ok(Plan { operation, a, b, c, algorithm: found.algo })
    }
}
