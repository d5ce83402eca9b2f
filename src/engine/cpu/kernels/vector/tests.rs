use super::*;
use crate::engine::cpu::kernels::reference::Numbers;

fn close(got: f32, want: f64, tolerance: f64, what: &str) {
    assert!((f64::from(got) - want).abs() <= tolerance * want.abs().max(1.0), "{what}: {got} instead of {want}");
}

const LENGTHS: [usize; 6] = [1, 5, 32, 33, 100, 1000];

#[test]
fn exp_is_within_a_few_units_in_the_last_place() {
    for i in -86_000..88_000 {
        let x = i as f32 / 1000.0;
        let want = f64::from(x).exp();
        for got in [exp::<true>(x), exp::<false>(x)] {
            assert!((f64::from(got) - want).abs() < 2.5e-7 * want, "exp({x}) = {got}, not {want}");
        }
    }
    assert_eq!(exp::<true>(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp::<true>(-1000.0), 0.0);
    assert_eq!(exp::<true>(0.0), 1.0);
    assert!(exp::<true>(f32::INFINITY) > 1e38);
    assert!(exp::<true>(f32::NAN).is_nan());
}

#[test]
fn dot_and_axpy() {
    let mut numbers = Numbers::new(1);
    for len in LENGTHS {
        let (a, b) = (numbers.vec(len), numbers.vec(len));
        let want: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        close(dot(&a, &b), want, 1e-5, "dot");
        let mut y = b.clone();
        axpy(0.5, &a, &mut y);
        add(&a, &mut y);
        scale(2.0, &mut y);
        for ((y, a), b) in y.iter().zip(&a).zip(&b) {
            close(*y, 2.0 * (f64::from(*b) + 1.5 * f64::from(*a)), 1e-6, "axpy");
        }
    }
}

#[test]
fn softmax_sums_to_one_and_ignores_masked_entries() {
    let mut numbers = Numbers::new(2);
    for len in LENGTHS {
        let mut row: Vec<f32> = numbers.vec(len).iter().map(|x| x * 20.0).collect();
        row.push(f32::NEG_INFINITY);
        let z: Vec<f64> = row.iter().map(|&x| f64::from(x) * 0.25).collect();
        let log_sum_exp = z.iter().map(|z| z.exp()).sum::<f64>().ln();
        close(softmax_in_place(&mut row, 0.25), log_sum_exp, 1e-6, "log-sum-exp");
        for (p, z) in row.iter().zip(&z) {
            close(*p, (z - log_sum_exp).exp(), 1e-6, "probability");
        }
        assert_eq!(row.last(), Some(&0.0));
    }
}

#[test]
fn log_softmax_statistics_and_their_gradient() {
    let mut numbers = Numbers::new(3);
    for len in LENGTHS {
        let logits: Vec<f32> = numbers.vec(len).iter().map(|x| x * 5.0 + 40.0).collect();
        let temperature = 0.7f64;
        let objective = |logits: &[f64]| {
            let z: Vec<f64> = logits.iter().map(|x| x / temperature).collect();
            let max = z.iter().copied().fold(f64::MIN, f64::max);
            let lse = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
            let entropy = -z.iter().map(|z| (z - lse).exp() * (z - lse)).sum::<f64>();
            (max, lse, entropy, 1.3 * (z[len / 2] - lse) - 0.4 * entropy)
        };
        let exact: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        let (max, lse, entropy, _) = objective(&exact);
        let statistics = log_softmax_statistics(&logits, temperature as f32);
        close(statistics.max, max, 1e-6, "max");
        close(statistics.log_sum_exp, lse, 1e-6, "log-sum-exp");
        close(statistics.entropy, entropy, 5e-6, "entropy");
        let mut gradient = logits.clone();
        log_softmax_backward_in_place(&mut gradient, temperature as f32, statistics, len / 2, 1.3, -0.4);
        for i in 0..len {
            let mut moved = exact.clone();
            moved[i] += 1e-5;
            let up = objective(&moved).3;
            moved[i] -= 2e-5;
            let slope = (up - objective(&moved).3) / 2e-5;
            close(gradient[i], slope, 2e-5, "gradient");
        }
    }
}

#[test]
fn max_index_takes_the_first_of_equals() {
    let mut row = vec![0.0; 100];
    row[70] = 2.0;
    row[31] = 2.0;
    assert_eq!(max_index(&row), 31);
    row[3] = f32::NAN;
    assert_eq!(max_index(&row), 31);
    assert_eq!(max_index(&[]), 0);
}

#[test]
fn silu_mul_and_its_gradient() {
    let mut numbers = Numbers::new(4);
    for len in LENGTHS {
        let gate: Vec<f32> = numbers.vec(len).iter().map(|x| x * 30.0).collect();
        let (up, d_out) = (numbers.vec(len), numbers.vec(len));
        let mut out = vec![0.0; len];
        silu_mul(&gate, &up, &mut out);
        let (mut d_gate, mut d_up) = (gate.clone(), up.clone());
        silu_mul_backward(&mut d_gate, &mut d_up, &d_out);
        for i in 0..len {
            let (g, u, d) = (f64::from(gate[i]), f64::from(up[i]), f64::from(d_out[i]));
            let s = 1.0 / (1.0 + (-g).exp());
            close(out[i], g * s * u, 1e-6, "silu");
            close(d_up[i], d * g * s, 1e-6, "d_up");
            close(d_gate[i], d * u * s * (1.0 + g * (1.0 - s)), 1e-5, "d_gate");
        }
    }
}

#[test]
fn rms_norm_and_its_gradient() {
    let mut numbers = Numbers::new(5);
    for len in LENGTHS {
        let (x, weight, dy) = (numbers.vec(len), numbers.vec(len), numbers.vec(len));
        let mut out = vec![0.0; len];
        let inverse = rms_norm(&x, &weight, 1e-5, &mut out);
        let to64 = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (x64, w64, d64) = (to64(&x), to64(&weight), to64(&dy));
        let norm = |x: &[f64]| 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / len as f64 + 1e-5).sqrt();
        let loss = |x: &[f64]| (0..len).map(|i| x[i] * norm(x) * w64[i] * d64[i]).sum::<f64>();
        close(inverse, norm(&x64), 1e-6, "inverse");
        let (mut dx, mut dw) = (vec![1.0; len], vec![2.0; len]);
        rms_norm_backward(&x, &weight, inverse, &dy, &mut dx, Some(&mut dw));
        for i in 0..len {
            close(out[i], x64[i] * norm(&x64) * w64[i], 1e-6, "norm");
            close(dw[i], 2.0 + x64[i] * norm(&x64) * d64[i], 1e-6, "d_weight");
            let mut moved = x64.clone();
            moved[i] += 1e-6;
            let up = loss(&moved);
            moved[i] -= 2e-6;
            close(dx[i], 1.0 + (up - loss(&moved)) / 2e-6, 1e-4, "dx");
        }
    }
}
