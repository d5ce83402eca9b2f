//! Products against naive f64 ones: every format, instruction set, odd shapes, and the chain rule.

use super::gemm::gemm_with;
use super::reference::{Numbers, dot64, near};
use super::*;

/// (n, k); k suits every format where it is a multiple of 32.
const SHAPES: [(usize, usize); 6] = [(48, 64), (33, 96), (1, 32), (200, 576), (35, 1600), (576, 192)];
/// Small ones that do not suit every format, vector or block.
const ODD: [(usize, usize); 7] = [(45, 48), (48, 48), (31, 72), (40, 33), (20, 16), (16, 8), (3, 100)];
const ROWS: [usize; 8] = [1, 2, 3, 5, 8, 9, 67, 200];

/// A matrix of each format and its exact row-major values.
fn matrices(n: usize, k: usize, numbers: &mut Numbers) -> Vec<(Matrix, Vec<f32>)> {
    let values = numbers.vec(n * k);
    let mut all = vec![(Matrix::from_f32(values.clone(), n, k), values.clone())];
    let bits: Vec<u16> = values.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let exact = bits.iter().map(|&b| f32::from_bits(u32::from(b) << 16)).collect();
    all.push((Matrix::from_bf16(&bits, n, k), exact));
    let codes: Vec<u8> = (0..n * k).map(|_| numbers.bits() as u8 & 15).collect();
    let low_first: Vec<u8> = codes.chunks(2).map(|c| c[0] | c.get(1).unwrap_or(&0) << 4).collect();
    if k.is_multiple_of(16) {
        // Normal, subnormal and negative scales, each multiplied or divided.
        let scales: Vec<u8> =
            (0..n * k / 16).map(|_| [0x30, 0x45, 0x03, 0x7e, 0xb1][numbers.bits() as usize % 5]).collect();
        for divided in [false, true] {
            let global = if divided { 1710.3f32 } else { 0.000_731 };
            let value = |i: usize| {
                let scale = scale::e4m3(scales[i / 16]);
                four_bit::E2M1[usize::from(codes[i])] * if divided { scale / global } else { scale * global }
            };
            let make = if divided { Matrix::from_nvfp4_divided } else { Matrix::from_nvfp4 };
            all.push((make(&low_first, &scales, global, n, k), (0..n * k).map(value).collect()));
        }
    }
    if k.is_multiple_of(32) {
        let scales: Vec<u8> = (0..n * k / 32).map(|_| 110 + numbers.bits() as u8 % 30).collect();
        let value = |i: usize| four_bit::E2M1[usize::from(codes[i])] * scale::e8m0(scales[i / 32]);
        all.push((Matrix::from_mxfp4(&low_first, &scales, n, k), (0..n * k).map(value).collect()));
    }
    let high_first: Vec<u8> = codes.chunks(2).map(|c| c[0] << 4 | c.get(1).unwrap_or(&0)).collect();
    let absmax: Vec<f32> = (0..(n * k).div_ceil(64)).map(|_| numbers.next().abs() + 0.1).collect();
    let value = |i: usize| four_bit::NF4[usize::from(codes[i])] * absmax[i / 64];
    all.push((Matrix::from_nf4(&high_first, &absmax, n, k), (0..n * k).map(value).collect()));
    all
}

#[test]
fn rows_are_exact() {
    let mut numbers = Numbers::new(21);
    for (n, k) in SHAPES.into_iter().chain(ODD) {
        for (matrix, values) in matrices(n, k, &mut numbers) {
            assert_eq!(matrix.shape(), (n, k));
            let mut row = vec![0.0; k];
            for r in 0..n {
                matrix.row(r, &mut row);
                assert_eq!(row, values[r * k..][..k], "{:?} {n} x {k}, row {r}", matrix.format());
            }
        }
    }
}

#[test]
fn four_bit_weights_take_about_half_a_byte() {
    for (matrix, _) in matrices(64, 576, &mut Numbers::new(20)) {
        let bits = matrix.bytes() as f64 * 8.0 / (64.0 * 576.0);
        let want = match matrix.format() {
            Format::F32 => 32.0,
            Format::Bf16 => 16.0,
            Format::Nvfp4 | Format::Nf4 => 4.5,
            Format::Mxfp4 => 4.25,
        };
        assert_eq!(bits, want, "{:?}", matrix.format());
    }
}

#[test]
fn products_agree_with_f64_in_every_format() {
    let pool = Pool::new(2);
    let mut numbers = Numbers::new(22);
    let shapes = SHAPES.into_iter().chain(ODD).chain([(1601, 48)]);
    for ((n, k), m) in shapes.zip([9, 1, 30, 3, 13].into_iter().cycle()) {
        for (matrix, w) in matrices(n, k, &mut numbers) {
            let what = format!("{:?} {n} x {k}", matrix.format());
            let (x, dy) = (numbers.vec(m * k), numbers.vec(m * n));
            for isa in Isa::all() {
                let mut y = vec![f32::NAN; m * n];
                Matrix::products_with(&pool, isa, &x, m, &mut [(&matrix, &mut y)], false, None);
                let mut dx = vec![f32::NAN; m * k];
                matrix.product_transposed_with(&pool, isa, &dy, m, &mut dx, false);
                for i in 0..m {
                    for r in 0..n {
                        let pairs = (0..k).map(|c| (x[i * k + c], w[r * k + c]));
                        near(y[i * n + r], dot64(pairs), k, &format!("{what} {isa:?} y[{i}, {r}]"));
                    }
                    for c in 0..k {
                        let pairs = (0..n).map(|r| (dy[i * n + r], w[r * k + c]));
                        near(dx[i * k + c], dot64(pairs), n, &format!("{what} {isa:?} dx[{i}, {c}]"));
                    }
                }
            }
        }
    }
}

/// Products with unit vectors show the weights that every kernel really uses.
#[test]
fn products_use_the_exact_weights_of_every_scale() {
    let pool = Pool::new(2);
    let mut numbers = Numbers::new(27);
    let (n, k) = (256, 48);
    let mut all = matrices(n, k, &mut numbers);
    let codes: Vec<u8> = (0..n * k / 2).map(|_| numbers.bits() as u8).collect();
    let scales: Vec<u8> = (0..n * k / 16).map(|i| if i % 128 == 127 { 0 } else { i as u8 }).collect();
    for (divided, global) in [(false, 3e-4), (true, 1710.3), (true, -0.7), (true, 3e-25), (false, 1e30), (true, 1e30)] {
        let make = if divided { Matrix::from_nvfp4_divided } else { Matrix::from_nvfp4 };
        let value = |i: usize| {
            let scale = scale::e4m3(scales[i / 16]);
            let code = codes[i / 2] >> (i % 2 * 4) & 15;
            four_bit::E2M1[usize::from(code)] * if divided { scale / global } else { scale * global }
        };
        all.push((make(&codes, &scales, global, n, k), (0..n * k).map(value).collect()));
    }
    let wide: Vec<u8> = (0..n * 2).map(|i| (i % 250) as u8).collect();
    let low_first: Vec<u8> = codes.iter().cycle().take(n * 32).copied().collect();
    let value =
        |i: usize| four_bit::E2M1[usize::from(low_first[i / 2] >> (i % 2 * 4) & 15)] * scale::e8m0(wide[i / 32]);
    all.push((Matrix::from_mxfp4(&low_first, &wide, n, 64), (0..n * 64).map(value).collect()));

    let unit = |size: usize| -> Vec<f32> { (0..size * size).map(|i| f32::from(i % (size + 1) == 0)).collect() };
    for (matrix, w) in &all {
        let k = matrix.shape().1;
        let (x, dy) = (unit(k), unit(n));
        for isa in Isa::all() {
            let what = format!("{:?}, {isa:?}", matrix.format());
            for m in (1..=9).chain([k]) {
                let mut y = vec![f32::NAN; m * n];
                Matrix::products_with(&pool, isa, &x[..m * k], m, &mut [(matrix, &mut y)], false, None);
                assert!((0..m * n).all(|i| y[i] == w[i % n * k + i / n]), "{what}, {m} rows");
            }
            let mut dx = vec![f32::NAN; n * k];
            matrix.product_transposed_with(&pool, isa, &dy, n, &mut dx, false);
            assert!(dx == *w, "{what}, transposed");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_on_any_threads_and_vector_unit() {
    let mut numbers = Numbers::new(23);
    let pools = [Pool::new(1), Pool::new(3)];
    for (n, k) in SHAPES.into_iter().chain(ODD) {
        for (matrix, _) in matrices(n, k, &mut numbers) {
            let (x, dy) = (numbers.vec(200 * k), numbers.vec(200 * n));
            let (y_old, dx_old) = (numbers.vec(200 * n), numbers.vec(200 * k));
            for add in [false, true] {
                let mut wants: Vec<(Isa, Vec<f32>, Vec<f32>)> = Vec::new();
                for isa in Isa::all() {
                    for (m, pool) in ROWS.iter().rev().zip(pools.iter().cycle()) {
                        let mut y = y_old[..m * n].to_vec();
                        Matrix::products_with(pool, isa, &x[..m * k], *m, &mut [(&matrix, &mut y)], add, None);
                        let mut dx = dx_old[..m * k].to_vec();
                        matrix.product_transposed_with(pool, isa, &dy[..m * n], *m, &mut dx, add);
                        if *m == 200 {
                            wants.push((isa, y, dx));
                        } else {
                            let (_, y_want, dx_want) = wants.last().unwrap();
                            let what = format!("{:?} {n} x {k}, m {m}, {isa:?}, add {add}", matrix.format());
                            assert!(y == y_want[..m * n], "product: {what}");
                            assert!(dx == dx_want[..m * k], "transposed: {what}");
                        }
                    }
                }
                if let [_, avx2, avx512] = &wants[..] {
                    assert!(avx2.1 == avx512.1 && avx2.2 == avx512.2, "AVX2 and AVX-512 differ");
                }
            }
        }
    }
}

#[test]
fn every_number_of_rows_gives_the_same_rows() {
    let pool = Pool::new(2);
    let mut numbers = Numbers::new(28);
    let (n, k) = (45, 48);
    for (matrix, _) in matrices(n, k, &mut numbers) {
        let x = numbers.vec(67 * k);
        for isa in Isa::all() {
            let mut want = vec![0.0; 67 * n];
            Matrix::products_with(&pool, isa, &x, 67, &mut [(&matrix, &mut want)], false, None);
            for m in 1..67 {
                let mut y = vec![0.0; m * n];
                Matrix::products_with(&pool, isa, &x[..m * k], m, &mut [(&matrix, &mut y)], false, None);
                assert!(y == want[..m * n], "{:?}, {isa:?}, {m} rows", matrix.format());
            }
        }
    }
}

#[test]
fn several_products_at_once_are_the_single_ones() {
    let pool = Pool::new(2);
    let mut numbers = Numbers::new(24);
    let k = 192;
    let all: Vec<Matrix> = [100, 64, 31].iter().flat_map(|&n| matrices(n, k, &mut numbers)).map(|m| m.0).collect();
    for m in [1, 2, 5, 40] {
        let x = numbers.vec(m * k);
        let mut together: Vec<Vec<f32>> = all.iter().map(|w| vec![0.0; m * w.shape().0]).collect();
        let mut outputs: Vec<(&Matrix, &mut [f32])> =
            all.iter().zip(together.iter_mut().map(Vec::as_mut_slice)).collect();
        Matrix::products(&pool, &x, m, &mut outputs, false, None);
        for (w, together) in all.iter().zip(&together) {
            let mut alone = vec![0.0; together.len()];
            w.product(&pool, &x, m, &mut alone, false);
            assert_eq!(&alone, together, "{:?}, m {m}", w.format());
        }
    }
}

#[test]
fn factors_of_an_adapter_in_one_job_are_the_single_products() {
    let pool = Pool::new(2);
    let mut numbers = Numbers::new(27);
    let (k, rank) = (192, 16);
    for base in matrices(70, k, &mut numbers).into_iter().map(|m| m.0) {
        for m in [1, 3, 8, 9, 40] {
            let (x, a) = (numbers.vec(m * k), numbers.vec(2 * rank * k));
            let (mut y, mut t) = (vec![0.0; m * 70], vec![f32::NAN; m * 2 * rank]);
            Matrix::products(&pool, &x, m, &mut [(&base, &mut y)], false, Some((Factor::Rows(&a), &mut t)));
            let panels = Panels::new(&a, 2 * rank, k);
            let (mut y_panels, mut t_panels) = (vec![0.0; m * 70], vec![f32::NAN; m * 2 * rank]);
            let more = Some((Factor::Panels(&panels), &mut t_panels[..]));
            Matrix::products(&pool, &x, m, &mut [(&base, &mut y_panels)], false, more);
            assert_eq!((&y_panels, &t_panels), (&y, &t), "panels, {m} rows");
            let (mut alone, mut first) = (vec![0.0; m * 70], vec![0.0; m * 2 * rank]);
            base.product(&pool, &x, m, &mut alone, false);
            gemm(
                &pool,
                [m, 2 * rank, k],
                1.0,
                Operand::new(&x, k),
                Operand::new(&a, k).t(),
                0.0,
                (&mut first, 2 * rank),
            );
            assert_eq!((&y, &t), (&alone, &first), "{:?}, {m} rows", base.format());

            let (b, other) = (numbers.vec(70 * rank), numbers.vec(33 * rank));
            let mut z = numbers.vec(m * 33);
            let mut z_alone = z.clone();
            let halves = [Operand::new(&t, 2 * rank), Operand::new(&t[rank..], 2 * rank)];
            let panels = Panels::new(&b, 70, rank);
            let terms = &mut [
                Term { a: halves[0], b: Factor::Panels(&panels), c: &mut y },
                Term { a: halves[1], b: Factor::Rows(&other), c: &mut z },
            ];
            add_products(&pool, [m, rank], 0.5, terms);
            gemm(&pool, [m, 70, rank], 0.5, halves[0], Operand::new(&b, rank).t(), 1.0, (&mut alone, 70));
            gemm(&pool, [m, 33, rank], 0.5, halves[1], Operand::new(&other, rank).t(), 1.0, (&mut z_alone, 33));
            assert_eq!((y, z), (alone, z_alone), "{m} rows");
        }
    }
}

#[test]
fn gemm_agrees_with_f64_for_all_transpositions_and_strides() {
    let pool = Pool::new(2);
    let mut numbers = Numbers::new(25);
    for [m, n, k] in [[1, 1, 1], [5, 7, 3], [13, 33, 17], [40, 64, 300], [65, 16, 513], [3, 5, 0], [200, 16, 1700]] {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            for (alpha, beta) in [(1.0, 0.0), (0.5, 1.0), (-2.0, 0.25)] {
                let (lda, ldb, ldc) = (if ta { m } else { k } + 3, if tb { k } else { n } + 1, n + 2);
                let a = numbers.vec(lda * if ta { k } else { m });
                let b = numbers.vec(ldb * if tb { n } else { k });
                let old = if beta == 0.0 { vec![f32::NAN; ldc * m] } else { numbers.vec(ldc * m) };
                for isa in Isa::all() {
                    let mut c = old.clone();
                    let (left, right) = (Operand::new(&a, lda), Operand::new(&b, ldb));
                    let left = if ta { left.t() } else { left };
                    let right = if tb { right.t() } else { right };
                    gemm_with(&pool, isa, [m, n, k], alpha, left, right, beta, (&mut c, ldc));
                    for i in 0..m {
                        for j in 0..ldc {
                            let (got, old) = (c[i * ldc + j], old[i * ldc + j]);
                            if j >= n {
                                assert_eq!(got.to_bits(), old.to_bits(), "beyond the row");
                                continue;
                            }
                            let products = (0..k).map(|l| {
                                let a = if ta { a[l * lda + i] } else { a[i * lda + l] };
                                (alpha * a, if tb { b[j * ldb + l] } else { b[l * ldb + j] })
                            });
                            let start = (beta != 0.0).then_some((beta, old));
                            near(got, dot64(products.chain(start)), k + 1, &format!("{isa:?} {m} {n} {k}, {ta} {tb}"));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn only_f32_weights_are_lent_out() {
    for (mut matrix, values) in matrices(4, 32, &mut Numbers::new(26)) {
        let is_f32 = matrix.format() == Format::F32;
        assert_eq!(matrix.as_f32().is_some(), is_f32);
        if let Some(w) = matrix.as_f32_mut() {
            assert_eq!(w, values);
            w[0] = 7.0;
            let mut row = vec![0.0; 32];
            matrix.row(0, &mut row);
            assert_eq!(row[0], 7.0);
        }
    }
}
