//! Right operands in plain row-major f32.

use super::isa::Isa;
use super::micro::NR;
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
        if rows < NR {
            out[..kc * NR].fill(0.0);
        }
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 && rows == NR {
            done = kc / 16 * 16;
            assert!(self.data.len() >= (first + NR - 1) * self.stride + k0 + kc && out.len() >= kc * NR);
            for k in (0..done).step_by(16) {
                for half in [0, 16] {
                    // SAFETY: 16 rows of 16 floats in `data`, 16 lines of 16 floats in `out`: asserted above.
                    unsafe {
                        let from = self.data.as_ptr().add((first + half) * self.stride + k0 + k);
                        transpose_16(from, self.stride, out.as_mut_ptr().add(k * NR + half), NR);
                    }
                }
            }
        }
        let _ = isa;
        for r in 0..rows {
            let line = &self.data[(first + r) * self.stride + k0..][..kc];
            for (k, &value) in line.iter().enumerate().skip(done) {
                out[k * NR + r] = value;
            }
        }
    }
}

/// Transposes 16 x 16 floats.
///
/// # Safety
/// `from` must be readable and `to` writable at 16 floats in each of 16 rows of the given strides; the CPU must
/// have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose_16(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promises.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); 16];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_ps(from.add(i * from_stride));
        }
        for (i, row) in transposed_16(rows).iter().enumerate() {
            _mm512_storeu_ps(to.add(i * to_stride), *row);
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
