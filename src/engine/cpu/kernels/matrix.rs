//! The weight of a linear layer, packed once at load and multiplied from that form.

use super::bf16::{self, Bf16};
use super::dense::{Columns, Rows};
use super::four_bit::{self, E2M1, FourBit, NF4};
use super::gemm::Factor;
use super::isa::Isa;
use super::micro::{NR, Start};
use super::panel::{Left, Output, Source, products};
use super::pool::Pool;
use super::scale::{Global, Scales};

/// What the weights were given in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    Bf16,
    Nvfp4,
    Mxfp4,
    Nf4,
}

#[derive(Clone, Debug)]
enum Storage {
    /// Row-major.
    Dense(Vec<f32>),
    Bf16(Bf16),
    FourBit(FourBit),
}

/// W `[n, k]`: n output features, k input features. Products obey the chain rule (see the module's header).
#[derive(Clone, Debug)]
pub struct Matrix {
    n: usize,
    k: usize,
    format: Format,
    storage: Storage,
}

impl Matrix {
    /// From row-major f32, kept as it is.
    ///
    /// # Panics
    /// As all constructors: where a slice has not the length that the shape asks for.
    pub fn from_f32(w: Vec<f32>, n: usize, k: usize) -> Self {
        assert_eq!(w.len(), n * k, "f32 weights");
        Self { n, k, format: Format::F32, storage: Storage::Dense(w) }
    }

    /// From row-major bf16 bits.
    pub fn from_bf16(w: &[u16], n: usize, k: usize) -> Self {
        assert_eq!(w.len(), n * k, "bf16 weights");
        Self { n, k, format: Format::Bf16, storage: Storage::Bf16(Bf16::new(w, n, k)) }
    }

    /// NVFP4 with scales `f32(e4m3) * multiplier` (ModelOpt's `weight_scale_2`). `packed` is `[n, k/2]`, low nibble
    /// first, `scales` is `[n, k/16]`; k is a multiple of 16. The E4M3 code of NaN must not occur.
    pub fn from_nvfp4(packed: &[u8], scales: &[u8], multiplier: f32, n: usize, k: usize) -> Self {
        Self::nvfp4(packed, scales, Global::multiplier(multiplier), n, k)
    }

    /// NVFP4 with scales `f32(e4m3) / global_scale`, correctly rounded (compressed-tensors); otherwise as
    /// [`Matrix::from_nvfp4`].
    pub fn from_nvfp4_divided(packed: &[u8], scales: &[u8], global_scale: f32, n: usize, k: usize) -> Self {
        Self::nvfp4(packed, scales, Global::divisor(global_scale), n, k)
    }

    fn nvfp4(packed: &[u8], scales: &[u8], global: Global, n: usize, k: usize) -> Self {
        let scales = Scales::E4m3 { bytes: strips(scales, 16, n, k), global };
        let scales = if global.is_tame() { scales } else { scales.widened() };
        Self::e2m1(Format::Nvfp4, packed, scales, 16, [n, k])
    }

    /// MXFP4: `packed` `[n, k/2]`, low nibble first, `scales` `[n, k/32]` with value 2^(byte - 127); k is a multiple
    /// of 32. The E8M0 code of NaN (255) must not occur.
    pub fn from_mxfp4(packed: &[u8], scales: &[u8], n: usize, k: usize) -> Self {
        let bytes = strips(scales, 32, n, k);
        Self::e2m1(Format::Mxfp4, packed, Scales::E8m0 { bytes }, 32, [n, k])
    }

    fn e2m1(format: Format, packed: &[u8], scales: Scales, group: usize, [n, k]: [usize; 2]) -> Self {
        assert_eq!(packed.len(), n * (k / 2), "packed codes");
        let code = |row: usize, column: usize| packed[row * (k / 2) + column / 2] >> (column % 2 * 4) & 15;
        let weights = FourBit::new([n, k], group, E2M1, scales, code);
        Self { n, k, format, storage: Storage::FourBit(weights) }
    }

    /// NF4 as bitsandbytes stores it: `codes` has two codes a byte, the first in the HIGH nibble, `absmax` one f32
    /// per block of 64, both over the flattened matrix (a block may straddle rows, the last one may be partial).
    /// Where k has no factor 8 in common with the blocks, the weights are kept in f32.
    pub fn from_nf4(codes: &[u8], absmax: &[f32], n: usize, k: usize) -> Self {
        assert_eq!(codes.len(), (n * k).div_ceil(2), "NF4 codes");
        assert_eq!(absmax.len(), (n * k).div_ceil(64), "NF4 absmax");
        let code = |row: usize, column: usize| {
            let i = row * k + column;
            codes[i / 2] >> (4 - i % 2 * 4) & 15
        };
        // Block boundaries fall on multiples of this in every row.
        let group = 1usize << k.trailing_zeros().min(6);
        let storage = if k == 0 || group < 8 {
            let value = |i: usize| NF4[usize::from(code(0, i))] * absmax[i / 64];
            Storage::Dense((0..n * k).map(value).collect())
        } else {
            let groups = k / group;
            let mut values = vec![0f32; n.div_ceil(NR) * groups * NR];
            for row in 0..n {
                for g in 0..groups {
                    values[FourBit::scale_index(groups, row, g)] = absmax[(row * k + g * group) / 64];
                }
            }
            Storage::FourBit(FourBit::new([n, k], group, NF4, Scales::F32 { values }, code))
        };
        Self { n, k, format: Format::Nf4, storage }
    }

    /// `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// Bytes that the weights take.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Dense(w) => w.len() * 4,
            Storage::Bf16(w) => w.bytes(),
            Storage::FourBit(w) => w.bytes(),
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The row-major weights, for training; `None` for every format but F32.
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        match (&mut self.storage, self.format) {
            (Storage::Dense(w), Format::F32) => Some(w),
            _ => None,
        }
    }

    /// The row-major weights; `None` for every format but F32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match (&self.storage, self.format) {
            (Storage::Dense(w), Format::F32) => Some(w),
            _ => None,
        }
    }

    /// Row `row` in f32, the values that products use, bit for bit. `out` is `[k]`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of {}", self.n);
        assert_eq!(out.len(), self.k, "row length");
        match &self.storage {
            Storage::Dense(w) => out.copy_from_slice(&w[row * self.k..][..self.k]),
            Storage::Bf16(w) => w.row(row, out),
            Storage::FourBit(w) => w.row(row, out),
        }
    }

    /// `y = x W^T`, or `y += x W^T` with `add`. x is `[m, k]`, y `[m, n]`.
    pub fn product(&self, pool: &Pool, x: &[f32], m: usize, y: &mut [f32], add: bool) {
        Self::products(pool, x, m, &mut [(self, y)], add, None);
    }

    /// Several products of one x at once (q, k and v; gate and up): one job, packed once.
    /// `more`: LoRA's first factors W `[n, k]` and where `x W^T` `[m, n]` goes.
    pub fn products(
        pool: &Pool,
        x: &[f32],
        m: usize,
        outputs: &mut [(&Self, &mut [f32])],
        add: bool,
        more: Option<(Factor<'_>, &mut [f32])>,
    ) {
        Self::products_with(pool, Isa::best(), x, m, outputs, add, more);
    }

    pub(super) fn products_with(
        pool: &Pool,
        isa: Isa,
        x: &[f32],
        m: usize,
        outputs: &mut [(&Self, &mut [f32])],
        add: bool,
        more: Option<(Factor<'_>, &mut [f32])>,
    ) {
        let Some(k) = outputs.first().map(|(w, _)| w.k) else { return };
        assert_eq!(x.len(), m * k, "x is [m, k]");
        for (w, y) in outputs.iter() {
            assert_eq!(w.k, k, "input features differ");
            assert_eq!(y.len(), m * w.n, "y is [m, n]");
        }
        let dense: Vec<_> = outputs.iter().map(|(w, _)| w.dense_rows()).collect();
        let mut jobs: Vec<_> = outputs
            .iter_mut()
            .zip(&dense)
            .map(|((w, y), dense)| {
                let source: &dyn Source = match (&w.storage, dense) {
                    (Storage::Bf16(w), _) => w,
                    (Storage::FourBit(w), _) => w,
                    (Storage::Dense(_), dense) => dense,
                };
                Output { left: 0, source, n: w.n, c: y, ldc: w.n, start: if add { Start::Old } else { Start::Zero } }
            })
            .collect();
        let source;
        if let Some((factor, c)) = more
            && k > 0
        {
            source = factor.source(k);
            let (source, n) = (&*source.0, source.1);
            assert_eq!(c.len(), m * n, "the further result is [m, n]");
            jobs.push(Output { left: 0, source, n, c, ldc: n, start: Start::Zero });
        }
        let left = Left { data: x, stride: k, transposed: false, alpha: 1.0 };
        products(pool, isa, [m, k], &[left], &mut jobs);
    }

    fn dense_rows(&self) -> Rows<'_> {
        let data: &[f32] = if let Storage::Dense(w) = &self.storage { w } else { &[] };
        Rows { data, stride: self.k, n: self.n }
    }

    /// `dx = dy W`, or `dx += dy W` with `add`. dy is `[m, n]`, dx `[m, k]`.
    pub fn product_transposed(&self, pool: &Pool, dy: &[f32], m: usize, dx: &mut [f32], add: bool) {
        self.product_transposed_with(pool, Isa::best(), dy, m, dx, add);
    }

    pub(super) fn product_transposed_with(
        &self,
        pool: &Pool,
        isa: Isa,
        dy: &[f32],
        m: usize,
        dx: &mut [f32],
        add: bool,
    ) {
        assert_eq!(dy.len(), m * self.n, "dy is [m, n]");
        assert_eq!(dx.len(), m * self.k, "dx is [m, k]");
        let (dense, bits, codes);
        let source: &dyn Source = match &self.storage {
            Storage::Dense(w) => {
                dense = Columns { data: w, stride: self.k, n: self.k };
                &dense
            }
            Storage::Bf16(w) => {
                bits = bf16::Transposed(w);
                &bits
            }
            Storage::FourBit(w) => {
                codes = four_bit::Transposed(w);
                &codes
            }
        };
        let left = Left { data: dy, stride: self.n, transposed: false, alpha: 1.0 };
        let start = if add { Start::Old } else { Start::Zero };
        let output = Output { left: 0, source, n: self.k, c: dx, ldc: self.k, start };
        products(pool, isa, [m, self.n], &[left], &mut [output]);
    }
}

/// Scale bytes `[n, k / group]` in strips of 32 rows; rows beyond n get 0.
fn strips(scales: &[u8], group: usize, n: usize, k: usize) -> Vec<u8> {
    assert!(k.is_multiple_of(group), "{k} columns are not a multiple of the group of {group}");
    let groups = k / group;
    assert_eq!(scales.len(), n * groups, "scales");
    let mut out = vec![0; n.div_ceil(NR) * groups * NR];
    for row in 0..n {
        for g in 0..groups {
            out[FourBit::scale_index(groups, row, g)] = scales[row * groups + g];
        }
    }
    out
}
