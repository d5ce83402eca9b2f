//! Rotary position embeddings (Su et al. 2021) in the half-split layout of transformers.

use super::kernels::{Parts, Pool};
use crate::model::{ModelConfig, RopeScaling};

/// cos and sin of every position so far, `[position, dim / 2]`; grows as longer sequences come.
#[derive(Debug)]
pub(in crate::engine) struct Rope {
    frequencies: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    pub fn new(config: &ModelConfig) -> Self {
        let half = config.head_dim / 2;
        let frequencies = (0..half)
            .map(|i| {
                let plain = config.rope_theta.powf(-(i as f64) / half as f64);
                scaled(plain, config.rope_scaling) as f32
            })
            .collect();
        Self { frequencies, cos: Vec::new(), sin: Vec::new() }
    }

    /// Makes positions below `positions` known.
    pub fn extend(&mut self, positions: usize) {
        let half = self.frequencies.len();
        for position in self.cos.len() / half.max(1)..positions {
            for &frequency in &self.frequencies {
                // In f32, as the reference libraries take the angle.
                let angle = f64::from(position as f32 * frequency);
                self.cos.push(angle.cos() as f32);
                self.sin.push(angle.sin() as f32);
            }
        }
    }

    /// cos and sin of the known positions, `[positions, dim / 2]`.
    pub fn tables(&self) -> (&[f32], &[f32]) {
        (&self.cos, &self.sin)
    }

    /// Turns `x` `[positions.len(), heads, dim]` in place; backwards undoes it (and turns gradients).
    pub fn turn(&self, pool: &Pool, x: &mut [f32], positions: &[u32], backwards: bool) {
        let half = self.frequencies.len();
        let rows = positions.len();
        if rows == 0 {
            return;
        }
        let width = x.len() / rows;
        let parts = Parts::new(x);
        super::rows::each(pool, rows, width, &|row| {
            // SAFETY: one row per call.
            let row_data = unsafe { parts.slice(row * width, width) };
            let at = positions[row] as usize * half;
            let (cos, sin) = (&self.cos[at..at + half], &self.sin[at..at + half]);
            let sign = if backwards { -1.0 } else { 1.0 };
            for head in row_data.chunks_exact_mut(2 * half) {
                let (low, high) = head.split_at_mut(half);
                for (((low, high), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                    let sin = sin * sign;
                    (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
                }
            }
        });
    }
}

/// Llama 3's rule keeps high frequencies, divides low ones by `factor` and blends between.
fn scaled(frequency: f64, scaling: Option<RopeScaling>) -> f64 {
    match scaling {
        None => frequency,
        Some(RopeScaling::Linear { factor }) => frequency / factor,
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position }) => {
            let original = original_max_position as f64;
            let wavelength = std::f64::consts::TAU / frequency;
            if wavelength < original / high_freq_factor {
                frequency
            } else if wavelength > original / low_freq_factor {
                frequency / factor
            } else {
                let blend = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - blend) * frequency / factor + blend * frequency
            }
        }
    }
}
