use super::*;
use crate::engine::Moments;
use crate::engine::adamw8::{MIN_SIZE, map};
use crate::rl::random::normal;

const STEP: AdamW =
    AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1, max_grad_norm: 1.0, moments: Moments::F32 };

/// A matrix and a norm weight, both trained, and a frozen matrix between them.
fn small() -> Parameters {
    let mut parameters = Parameters::default();
    parameters.push("w".to_owned(), vec![2, 2], &[1.0, -2.0, 0.5, 3.0], true);
    parameters.push("frozen".to_owned(), vec![1, 2], &[7.0, 8.0], false);
    parameters.push("norm".to_owned(), vec![2], &[1.0, 0.8], true);
    parameters.seal();
    parameters
}

/// Three steps worked out by hand in f64 (Kingma & Ba 2015 with decoupled decay): m = 0.9 m + 0.1 g, v = 0.99 v +
/// 0.01 g^2, p = p - lr * decay * p - lr * (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.99^t)) + eps), where g is divided by
/// its joint norm in steps 1 and 3 (norms 1.64 and 6.16) and not in step 2 (0.39). The norm weight does not decay.
#[test]
fn three_steps_are_those_worked_out_by_hand() {
    let gradients = [
        ([0.3, -0.4, 1.2, 0.05], [0.6, -0.8]),
        ([0.1, 0.2, -0.3, 0.0], [0.05, 0.1]),
        ([3.0, 0.0, -2.0, 0.001], [0.0, 5.0]),
    ];
    let golden: [(f64, [f64; 6]); 3] = [
        // At the first step m / sqrt(v) is the gradient's sign: 1 - 0.01 - 0.1, ..., and 1 - 0.1 for the norm.
        (1.640_883_908, [0.89, -1.88, 0.395, 2.87, 0.9, 0.9]),
        (0.390_512_484, [0.786_481_664, -1.856_619_727, 0.357_261_741, 2.774_142_049, 0.823_358_788, 0.950_784_822]),
        (6.164_414_084, [0.691_437_377, -1.834_504_906, 0.353_845_131, 2.694_027_972, 0.763_980_1, 0.916_866_694]),
    ];
    let pool = Pool::new(2);
    let mut parameters = small();
    for ((w, norm), (want_norm, want)) in gradients.iter().zip(golden) {
        parameters.gradients[..4].copy_from_slice(w);
        parameters.gradients[6..].copy_from_slice(norm);
        // Gradients of what is not trained count for nothing.
        parameters.gradients[4..6].fill(100.0);
        let got_norm = parameters.apply(&pool, &STEP).unwrap();
        assert!((got_norm - want_norm).abs() < 1e-6, "{got_norm} {want_norm}");
        let got = [&parameters.values[..4], &parameters.values[6..]].concat();
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 2e-6, "{got} {want}");
        }
        assert_eq!(parameters.values[4..6], [7.0, 8.0]);
        assert_eq!(parameters.gradients[..4], [0.0; 4]);
    }
    let golden = [
        ("w.m", vec![0.072_475_500_3, -0.001_745_443_4, -0.000_207_948_5, 0.002_484_402_6]),
        ("w.v", vec![0.002_795_029_85, 0.000_978_417_117, 0.007_185_385_266, 9.100_531e-6]),
        ("norm.m", vec![0.034_118_165, 0.050_619_809_6]),
        ("norm.v", vec![0.001_335_188_514, 0.009_007_613_53]),
    ];
    let state = parameters.export_state();
    assert_eq!(state.step, 3);
    for (tensor, (name, want)) in state.tensors.iter().zip(golden) {
        assert_eq!(tensor.name, name);
        for (got, want) in tensor.data.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-7, "{name}: {got} {want}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let pool = Pool::new(1);
    let mut parameters = small();
    let before = (parameters.values.clone(), parameters.export_state());
    parameters.gradients[1] = f32::NAN;
    assert!(parameters.apply(&pool, &STEP).unwrap().is_nan());
    assert_eq!((parameters.values.clone(), parameters.export_state()), before);
}

#[test]
fn a_clip_of_zero_is_off() {
    let pool = Pool::new(1);
    let mut parameters = small();
    parameters.gradients[0] = 50.0;
    parameters.apply(&pool, &AdamW { max_grad_norm: 0.0, ..STEP }).unwrap();
    assert!((parameters.export_state().tensors[0].data[0] - 5.0).abs() < 1e-5);
}

/// Two tensors above the size from which moments are coded (one no multiple of the block, one of several pieces) and
/// one below.
fn large() -> Parameters {
    let mut parameters = Parameters::default();
    for (name, shape, trained) in [
        ("a", vec![MIN_SIZE / 4 + 3, 4], true),
        ("frozen", vec![300, 2], false),
        ("b", vec![CHUNK + 700, 1], true),
        ("norm", vec![64], true),
    ] {
        let len: usize = shape.iter().product();
        let data: Vec<f32> = (0..len as u64).map(|i| normal(1, name, 0, i) as f32 * 0.1).collect();
        parameters.push(name.to_owned(), shape, &data, trained);
    }
    parameters.seal();
    parameters
}

/// Gradients whose entries have sizes of their own over two orders, with noise.
fn pull(parameters: &mut Parameters, step: u64) {
    for (i, g) in parameters.gradients.iter_mut().enumerate() {
        let size = 10f64.powi(-((i % 3) as i32));
        *g = (size * (if i % 5 == 0 { -1.0 } else { 1.0 } + 0.5 * normal(2, "g", step, i as u64))) as f32;
    }
}

const COARSE: AdamW = AdamW { lr: 1e-3, weight_decay: 0.0, max_grad_norm: 0.0, moments: Moments::Blockwise8, ..STEP };

fn trained(kept: Moments, steps: u64, threads: usize) -> Parameters {
    let pool = Pool::new(threads);
    let mut parameters = large();
    for step in 0..steps {
        pull(&mut parameters, step);
        parameters.apply(&pool, &AdamW { moments: kept, ..COARSE }).unwrap();
    }
    parameters
}

#[test]
fn eight_bit_moments_follow_f32_ones_in_a_quarter_of_their_memory() {
    let start = large().values;
    let (exact, coded) = (trained(Moments::F32, 60, 2), trained(Moments::Blockwise8, 60, 2));
    let moved = |p: &Parameters| -> Vec<f64> {
        p.values.iter().zip(&start).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect()
    };
    let (exact_moves, coded_moves) = (moved(&exact), moved(&coded));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    // Rounding is coarse for the smallest: their second moments are 1e-4 of their block's largest.
    let cosine =
        dot(&exact_moves, &coded_moves) / (dot(&exact_moves, &exact_moves) * dot(&coded_moves, &coded_moves)).sqrt();
    assert!(cosine > 0.99, "{cosine}");
    let length = (dot(&coded_moves, &coded_moves) / dot(&exact_moves, &exact_moves)).sqrt();
    assert!((length - 1.0).abs() < 0.02, "{length}");
    // Not the same numbers either: something was rounded. The small tensor was not.
    assert_ne!(exact.values, coded.values);
    assert_eq!(exact.values[exact.values.len() - 64..], coded.values[coded.values.len() - 64..]);
    let (wide, narrow) = (exact.bytes().1 as f64, coded.bytes().1 as f64);
    assert!((0.25..0.26).contains(&(narrow / wide)), "{}", narrow / wide);
}

/// One step from nothing: the moments are (1 - b) g and (1 - b2) g^2 rounded to their block's codes.
#[test]
fn moments_are_codes_of_the_map_times_their_blocks_largest() {
    let mut parameters = large();
    pull(&mut parameters, 0);
    let gradients = parameters.gradients.clone();
    parameters.apply(&Pool::new(1), &COARSE).unwrap();
    let state = parameters.export_state();
    let names: Vec<&str> = state.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names[..4], ["a.m.codes", "a.m.scales", "a.v.codes", "a.v.scales"]);
    assert_eq!(names[8..], ["norm.m", "norm.v"]);
    for (which, first, power) in [(Which::First, 0, 1), (Which::Second, 2, 2)] {
        let (codes, scales) = (&state.tensors[first].data, &state.tensors[first + 1].data);
        assert_eq!((codes.len(), scales.len()), (MIN_SIZE + 12, (MIN_SIZE + 12).div_ceil(256)));
        let share = if power == 1 { 1.0 - 0.9f32 } else { 1.0 - 0.99f32 };
        for (block, (codes, g)) in codes.chunks(256).zip(gradients[..MIN_SIZE + 12].chunks(256)).enumerate() {
            let exact: Vec<f32> = g.iter().map(|g| share * g.powi(power)).collect();
            let largest = exact.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!((scales[block] - largest).abs() <= 1e-6 * largest);
            for (code, x) in codes.iter().zip(exact) {
                let got = map(which)[*code as usize] * scales[block];
                let best = map(which).iter().map(|v| (v * largest - x).abs()).fold(f32::INFINITY, f32::min);
                assert!((got - x).abs() <= best + 1e-6 * largest, "{got} {x}");
            }
        }
    }
}

#[test]
fn eight_bit_moments_resume_to_the_same_bits_on_any_number_of_threads() {
    let whole = trained(Moments::Blockwise8, 6, 1);
    let half = trained(Moments::Blockwise8, 3, 3);
    let mut resumed = large();
    resumed.import_values(&half.export_values()).unwrap();
    resumed.import_state(&half.export_state()).unwrap();
    for step in 3..6 {
        pull(&mut resumed, step);
        resumed.apply(&Pool::new(2), &COARSE).unwrap();
    }
    assert_eq!(whole.values, resumed.values);
    assert_eq!(whole.export_state(), resumed.export_state());
}

#[test]
fn a_state_kept_in_another_way_or_damaged_is_refused() {
    let coded = trained(Moments::Blockwise8, 1, 1).export_state();
    let mut parameters = large();
    parameters.import_state(&coded).unwrap();
    pull(&mut parameters, 1);
    let error = parameters.apply(&Pool::new(1), &AdamW { moments: Moments::F32, ..COARSE }).unwrap_err();
    assert!(error.hint_text().is_some(), "{error}");
    for damage in [
        |t: &mut Vec<NamedTensor>| t[0].data[5] = 1.5,
        |t: &mut Vec<NamedTensor>| t[0].data[5] = 256.0,
        |t: &mut Vec<NamedTensor>| t[1].data[0] = f32::NAN,
        |t: &mut Vec<NamedTensor>| t[1].data.truncate(1),
        |t: &mut Vec<NamedTensor>| t.truncate(9),
        |t: &mut Vec<NamedTensor>| t.push(NamedTensor { name: "other.m".into(), shape: vec![1], data: vec![0.0] }),
    ] {
        let mut state = coded.clone();
        damage(&mut state.tensors);
        assert!(large().import_state(&state).is_err());
    }
}
