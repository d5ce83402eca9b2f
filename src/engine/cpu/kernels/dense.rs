//! Right operands in plain row-major f32.

use std::ops::Range;

use super::isa::Isa;
use super::line::{Floats, flat, flat_mut};
use super::micro::{MR, NR, Target, tile};
use super::panel::Source;

/// B `[k, n]`, row-major.
pub(super) struct Columns<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub n: usize,
}

impl Source for Columns<'_> {
    fn fill(&self, _: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        let column = strip * NR;
        let cols = (self.n - column).min(NR);
        for (k, out) in out.as_chunks_mut::<NR>().0.iter_mut().enumerate().take(kc) {
            let line = &self.data[(k0 + k) * self.stride + column..][..cols];
            if let Ok(line) = <&[f32; NR]>::try_from(line) {
                *out = *line;
            } else {
                out[..cols].copy_from_slice(line);
                out[cols..].fill(0.0);
            }
        }
    }
}

/// B `[k, n]` given as its transpose: `data` is `[n, k]`, row-major.
pub(super) struct Rows<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub n: usize,
}

impl Source for Rows<'_> {
    fn fill(&self, isa: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        let first = strip * NR;
        let rows = (self.n - first).min(NR);
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 {
            let lines = &self.data[first * self.stride + k0..][..(rows - 1) * self.stride + kc];
            // SAFETY: the CPU has `isa`, since `Isa::all` lists only such; `rows` lines of kc floats.
            return unsafe { transpose_avx512(lines, self.stride, rows, out.as_chunks_mut().0, kc) };
        }
        let _ = isa;
        if rows < NR {
            out[..kc * NR].fill(0.0);
        }
        for r in 0..rows {
            let line = &self.data[(first + r) * self.stride + k0..][..kc];
            for (k, &value) in line.iter().enumerate() {
                out[k * NR + r] = value;
            }
        }
    }
}

/// `out [kc][32]` = the transpose of `rows` lines of kc floats, `stride` apart; columns beyond `rows` become 0.
///
/// # Safety
/// `data` must hold the lines; the CPU must have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_avx512(data: &[f32], stride: usize, rows: usize, out: &mut [[f32; NR]], kc: usize) {
    use std::arch::x86_64::*;
    debug_assert!((1..=NR).contains(&rows) && data.len() >= (rows - 1) * stride + kc);
    for (i, out) in out[..kc].chunks_mut(16).enumerate() {
        let mask = u16::MAX >> (16 - out.len());
        for half in [0, 16] {
            let count = rows.saturating_sub(half).min(16);
            let mut lines = [_mm512_setzero_ps(); 16];
            // SAFETY: floats of line half + r, those beyond kc masked.
            let load = |r| unsafe { _mm512_maskz_loadu_ps(mask, data.as_ptr().add((half + r) * stride + i * 16)) };
            if count == 16 {
                // Apart, so that the lines stay in registers.
                for (r, line) in lines.iter_mut().enumerate() {
                    *line = load(r);
                }
            } else {
                for (r, line) in lines.iter_mut().enumerate().take(count) {
                    *line = load(r);
                }
            }
            let lines = if count == 0 { lines } else { transposed_16(lines) };
            for (out, column) in out.iter_mut().zip(lines) {
                // SAFETY: a half of 32 floats.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(half), column) };
            }
        }
    }
}

/// W `[n, k]` of few, often read rows, laid out once as the panels `[n/32][k][32]` that [`Rows`] makes on the way.
#[derive(Clone, Debug)]
pub struct Panels {
    n: usize,
    k: usize,
    lines: Vec<Floats>,
}

impl Panels {
    /// From row-major f32.
    ///
    /// # Panics
    /// Where `rows` has not n * k values.
    pub fn new(rows: &[f32], n: usize, k: usize) -> Self {
        assert_eq!(rows.len(), n * k, "rows of panels");
        let mut lines = vec![Floats::ZERO; n.div_ceil(NR) * k * NR / 16];
        let source = Rows { data: rows, stride: k, n };
        if k > 0 {
            for (strip, panel) in flat_mut(&mut lines).chunks_exact_mut(k * NR).enumerate() {
                source.fill(Isa::best(), strip, 0, k, panel);
            }
        }
        Self { n, k, lines }
    }

    /// `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    fn panel(&self, strip: usize) -> &[f32] {
        &flat(&self.lines)[strip * self.k * NR..][..self.k * NR]
    }
}

impl Source for Panels {
    fn fill(&self, _: Isa, strip: usize, k0: usize, kc: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.panel(strip)[k0 * NR..][..kc * NR]);
    }

    fn direct_rows(&self, _: Isa) -> usize {
        MR
    }

    unsafe fn direct(&self, isa: Isa, strips: Range<usize>, a: &[f32], m: usize, target: Target) {
        let Target { c, ldc, n, start } = target;
        for strip in strips {
            let (cols, c) = ((n - strip * NR).min(NR), c.wrapping_add(strip * NR));
            // SAFETY: the strips of C by the caller's promise.
            unsafe { tile(isa, [m, cols, self.k], a, m, self.panel(strip), c, ldc, start, std::ptr::null()) };
        }
    }
}

/// Transposes 16 x 16 lanes in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transposed_16(rows: [std::arch::x86_64::__m512; 16]) -> [std::arch::x86_64::__m512; 16] {
    use std::arch::x86_64::*;
    let zero = _mm512_setzero_ps();
    let (mut pairs, mut quads) = ([zero; 16], [zero; 16]);
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for i in 0..4 {
        for j in 0..2 {
            let (x, y) = (_mm512_castps_pd(pairs[4 * i + j]), _mm512_castps_pd(pairs[4 * i + 2 + j]));
            quads[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            quads[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    }
    // quads[4 i + c] holds, in its 128-bit lane l, column 4 l + c of rows 4 i to 4 i + 3.
    let mut out = [zero; 16];
    for c in 0..4 {
        let [a, b, d, e] = [quads[c], quads[4 + c], quads[8 + c], quads[12 + c]];
        let (low_ab, high_ab) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        let (low_de, high_de) = (_mm512_shuffle_f32x4::<0x44>(d, e), _mm512_shuffle_f32x4::<0xee>(d, e));
        out[c] = _mm512_shuffle_f32x4::<0x88>(low_ab, low_de);
        out[4 + c] = _mm512_shuffle_f32x4::<0xdd>(low_ab, low_de);
        out[8 + c] = _mm512_shuffle_f32x4::<0x88>(high_ab, high_de);
        out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(high_ab, high_de);
    }
    out
}
