//! Adaptive quantization noise: Gaussian noise on the block norms, in f32, never accumulated.

use super::layers::Weights;
use crate::engine::philox::{Stream, normals};
use crate::engine::{NoiseReport, NormNoise};

/// Noise for every block norm, `[layers, 2, hidden]`; each norm has its own part of the stream.
pub(in crate::engine) fn draw(noise: NormNoise, layers: usize, hidden: usize) -> Vec<f32> {
    let mut out = vec![0f32; layers * 2 * hidden];
    for (part, norm) in out.chunks_exact_mut(hidden).enumerate() {
        normals(noise.seed, Stream::Noise, part as u32, norm);
        norm.iter_mut().for_each(|x| *x *= noise.sigma);
    }
    out
}

/// The block norms as a pass uses them: the adapter's where it is on, else the base model's; plus the noise.
pub(super) fn effective(weights: &Weights, values: &[f32], adapter: bool, noise: Option<&[f32]>) -> Vec<f32> {
    let mut out = Vec::new();
    for layer in &weights.layers {
        for (base, adapted) in layer.norms.iter().zip(&layer.adapted) {
            out.extend_from_slice(adapted.as_ref().filter(|_| adapter).map_or(base.as_slice(), |norm| norm.of(values)));
        }
    }
    // The reference policy is the clean one.
    if let Some(noise) = noise.filter(|_| adapter) {
        out.iter_mut().zip(noise).for_each(|(norm, noise)| *norm += noise);
    }
    out
}

/// What the noise measures, rounding of the sum included.
pub(in crate::engine) fn measure(clean: &[f32], noisy: &[f32]) -> NoiseReport {
    let n = clean.len().max(1) as f64;
    let differences = || clean.iter().zip(noisy).map(|(c, y)| f64::from(*y) - f64::from(*c));
    let mean = differences().sum::<f64>() / n;
    let measured_std = (differences().map(|d| (d - mean) * (d - mean)).sum::<f64>() / n).sqrt();
    let size = clean.iter().map(|c| f64::from(c.abs())).sum::<f64>() / n;
    NoiseReport { measured_std, relative_std: if size > 0.0 { measured_std / size } else { 0.0 } }
}
