//! General dense product, for LoRA and weight gradients.

use super::dense::{Columns, Panels, Rows};
use super::isa::Isa;
use super::micro::Start;
use super::panel::{Left, Output, Source, products};
use super::pool::Pool;

/// A row-major matrix with a row stride, used as it is or transposed.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    data: &'a [f32],
    stride: usize,
    transposed: bool,
}

impl<'a> Operand<'a> {
    /// Rows start `stride` floats apart.
    pub fn new(data: &'a [f32], stride: usize) -> Self {
        Self { data, stride, transposed: false }
    }

    /// The transpose: `data` is stored `[columns, rows]`.
    #[must_use]
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// `C = alpha * A B + beta * C` with A `[m, k]`, B `[k, n]`, C `[m, n]` with row stride `ldc`. With `beta` 0 the old
/// C is not read. Obeys the chain rule, `beta * C` being the start of each chain.
///
/// # Panics
/// Where a slice is shorter than its shape.
pub fn gemm(
    pool: &Pool,
    shape: [usize; 3],
    alpha: f32,
    a: Operand<'_>,
    b: Operand<'_>,
    beta: f32,
    (c, ldc): (&mut [f32], usize),
) {
    gemm_with(pool, Isa::best(), shape, alpha, a, b, beta, (c, ldc));
}

#[expect(clippy::too_many_arguments, reason = "the arguments of a gemm")]
pub(super) fn gemm_with(
    pool: &Pool,
    isa: Isa,
    [m, n, k]: [usize; 3],
    alpha: f32,
    a: Operand<'_>,
    b: Operand<'_>,
    beta: f32,
    (c, ldc): (&mut [f32], usize),
) {
    let (lines, wide) = if b.transposed { (n, k) } else { (k, n) };
    assert!(lines == 0 || wide == 0 || b.data.len() >= (lines - 1) * b.stride + wide, "right operand too short");
    assert!(b.stride >= wide || lines <= 1, "row stride below the row's length");
    if m == 0 || n == 0 {
        return;
    }
    assert!(c.len() >= (m - 1) * ldc + n, "result too short");
    if beta != 0.0 && beta != 1.0 {
        for row in c.chunks_mut(ldc).take(m) {
            row[..n].iter_mut().for_each(|value| *value *= beta);
        }
    }
    let (rows, columns);
    let source: &dyn Source = if b.transposed {
        rows = Rows { data: b.data, stride: b.stride, n };
        &rows
    } else {
        columns = Columns { data: b.data, stride: b.stride, n };
        &columns
    };
    let left = Left { data: a.data, stride: a.stride, transposed: a.transposed, alpha };
    let start = if beta == 0.0 { Start::Zero } else { Start::Old };
    products(pool, isa, [m, k], &[left], &mut [Output { left: 0, source, n, c, ldc, start }]);
}

/// A right operand `W^T` of few rows: LoRA's.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// W `[n, k]`, row-major without gaps.
    Rows(&'a [f32]),
    Panels(&'a Panels),
}

impl<'a> Factor<'a> {
    /// The operand and its n.
    pub(super) fn source(self, k: usize) -> (Box<dyn Source + 'a>, usize) {
        match self {
            Self::Rows(data) => {
                let n = data.len() / k;
                (Box::new(Rows { data, stride: k, n }), n)
            }
            Self::Panels(panels) => {
                assert_eq!(panels.shape().1, k, "columns of panels");
                (Box::new(panels), panels.shape().0)
            }
        }
    }
}

/// One of several products that share m and k: `C += alpha * A B^T`.
#[derive(Debug)]
pub struct Term<'a> {
    /// A `[m, k]`, as it is stored.
    pub a: Operand<'a>,
    pub b: Factor<'a>,
    /// C `[m, n]`, row-major without gaps.
    pub c: &'a mut [f32],
}

/// `C += alpha * A B^T` for each term in one job: LoRA's second factors of a group. As [`gemm`] with `beta` 1.
///
/// # Panics
/// As [`gemm`].
pub fn add_products(pool: &Pool, [m, k]: [usize; 2], alpha: f32, terms: &mut [Term<'_>]) {
    if k == 0 {
        return;
    }
    let lefts: Vec<_> = terms
        .iter()
        .map(|Term { a, .. }| Left { data: a.data, stride: a.stride, transposed: a.transposed, alpha })
        .collect();
    let sources: Vec<_> = terms.iter().map(|term| term.b.source(k)).collect();
    let mut outputs: Vec<_> = terms
        .iter_mut()
        .zip(&sources)
        .enumerate()
        .map(|(left, (t, (source, n)))| Output { left, source: &**source, n: *n, c: t.c, ldc: *n, start: Start::Old })
        .collect();
    products(pool, Isa::best(), [m, k], &lefts, &mut outputs);
}
