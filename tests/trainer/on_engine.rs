//! The trainer's needs of the real engine: what is trained, what is spared, and what the reference policy is.

use qerl::engine::{AdamW, Batch, Load, Moments, NamedTensor, NormNoise, Pass, Row, Trainable, load};

use super::random_model::{engine, model};
use super::*;

const STEP: AdamW =
    AdamW { lr: 1e-2, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1, max_grad_norm: 1.0, moments: Moments::F32 };

fn batch() -> Batch {
    let row = Row { prompt: [3, 1, 4].into(), completion: vec![1, 5, 9, 2] };
    Batch { rows: vec![row], temperature: 1.0 }
}

fn score(engine: &mut dyn Engine) -> Vec<f32> {
    engine.forward(&batch(), Pass::Score).unwrap().log_probs.remove(0)
}

fn update(engine: &mut dyn Engine, step: &AdamW) {
    engine.forward(&batch(), Pass::Train).unwrap();
    engine.backward(&[vec![-1.0, 0.5, -0.25, 1.0]], &[]).unwrap();
    engine.apply(step).unwrap();
}

fn moved(before: &[NamedTensor], after: &[NamedTensor]) -> Vec<String> {
    let differ = before.iter().zip(after).filter(|(a, b)| a.data != b.data);
    differ.map(|(a, _)| a.name.clone()).collect()
}

#[test]
fn the_reference_of_an_adapter_is_the_base_with_its_own_norms() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let base = Load { model: &dir.path().join("model"), adapter: None, trainable: Trainable::None, threads: 1 };
    let want = score(load(&base).unwrap().as_mut());
    let mut engine = engine(dir.path());
    let before = engine.parameters().unwrap();
    for _ in 0..3 {
        update(engine.as_mut(), &STEP);
    }
    let moved = moved(&before, &engine.parameters().unwrap());
    assert!(moved.iter().any(|name| name.ends_with("input_layernorm.weight")), "norms are trained: {moved:?}");
    // Noise is on the policy alone.
    engine.set_norm_noise(Some(NormNoise { sigma: 0.1, seed: 1 })).unwrap();
    let noisy = score(engine.as_mut());
    engine.set_adapter_enabled(false);
    assert_eq!(score(engine.as_mut()), want);
    engine.set_adapter_enabled(true);
    assert_eq!(score(engine.as_mut()), noisy);
    assert_ne!(noisy, want);
}

#[test]
fn with_every_parameter_trained_the_reference_is_the_start() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let full = Load { model: &dir.path().join("model"), adapter: None, trainable: Trainable::All, threads: 1 };
    for moments in [Moments::F32, Moments::Blockwise8] {
        let mut engine = load(&full).unwrap();
        let start = score(engine.as_mut());
        let before = engine.parameters().unwrap();
        update(engine.as_mut(), &AdamW { moments, ..STEP });
        let moved = moved(&before, &engine.parameters().unwrap());
        assert_eq!(moved.len(), before.len(), "everything moves");
        assert_ne!(score(engine.as_mut()), start);
        engine.set_adapter_enabled(false);
        assert_eq!(score(engine.as_mut()), start);
    }
}

#[test]
fn weight_decay_spares_norms_and_biases() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let full = Load { model: &dir.path().join("model"), adapter: None, trainable: Trainable::All, threads: 1 };
    let mut engine = load(&full).unwrap();
    let before = engine.parameters().unwrap();
    // No gradient at all: what moves is what decays.
    engine.apply(&STEP).unwrap();
    let after = engine.parameters().unwrap();
    for (a, b) in before.iter().zip(&after) {
        let one_dimension = a.shape.len() == 1;
        assert_eq!(one_dimension, a.name.contains("norm") || a.name.ends_with("bias"), "{}", a.name);
        let decayed: Vec<f32> = a.data.iter().map(|x| x * (1.0 - 1e-2 * 0.1)).collect();
        assert_eq!(b.data, if one_dimension { a.data.clone() } else { decayed }, "{}", a.name);
    }
}

/// Noise on weights near 1 must not be lost to rounding, as in bf16 it would be: every entry changes, by the sigma asked for.
#[test]
fn the_smallest_noise_of_the_paper_reaches_every_norm_weight() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path());
    let mut engine = engine(dir.path());
    let clean = score(engine.as_mut());
    for sigma in [5e-4f32, 1e-4] {
        let report = engine.set_norm_noise(Some(NormNoise { sigma, seed: 3 })).unwrap();
        assert!((report.measured_std / f64::from(sigma) - 1.0).abs() < 0.2, "{report:?}");
        assert_ne!(score(engine.as_mut()), clean);
    }
    engine.set_norm_noise(None).unwrap();
    assert_eq!(score(engine.as_mut()), clean);
}
