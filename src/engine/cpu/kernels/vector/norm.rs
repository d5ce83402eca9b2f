//! RMS norm (Zhang & Sennrich 2019): `out = x / sqrt(mean(x^2) + eps) * weight`, one row.

use super::{LANES, dot, madd, sum_lanes, versions};

/// Writes the normed row, returns `1 / sqrt(mean(x^2) + eps)` for the backward pass.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> f32 {
    let inverse = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    scaled_product(x, weight, inverse, out);
    inverse
}

versions! {
    fn scaled_product, scaled_product_with(x: &[f32], weight: &[f32], inverse: f32, out: &mut [f32]) {
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * inverse * weight;
        }
    }
}

/// `dx += ` the gradient of x, and `d_weight += ` that of the weight where it is given. `inverse` is what
/// [`rms_norm`] returned: with g = dy * weight, `dx = inverse * g - x * inverse^3 * mean(g * x)`.
pub fn rms_norm_backward(
    x: &[f32],
    weight: &[f32],
    inverse: f32,
    dy: &[f32],
    dx: &mut [f32],
    d_weight: Option<&mut [f32]>,
) {
    let mean = triple_dot(x, weight, dy) / x.len() as f32;
    add_gradient(x, weight, dy, inverse, inverse * inverse * inverse * mean, dx);
    if let Some(d_weight) = d_weight {
        add_product(x, dy, inverse, d_weight);
    }
}

versions! {
    fn triple_dot, triple_dot_with(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
        let len = a.len().min(b.len()).min(c.len());
        let (a, b, c) = (a[..len].as_chunks::<LANES>(), b[..len].as_chunks::<LANES>(), c[..len].as_chunks::<LANES>());
        let mut lanes = [0f32; LANES];
        for ((a, b), c) in a.0.iter().zip(b.0).zip(c.0) {
            for i in 0..LANES {
                lanes[i] = madd::<FMA>(a[i] * b[i], c[i], lanes[i]);
            }
        }
        for (i, ((a, b), c)) in a.1.iter().zip(b.1).zip(c.1).enumerate() {
            lanes[i] = madd::<FMA>(a * b, *c, lanes[i]);
        }
        sum_lanes(lanes)
    }
}

versions! {
    fn add_gradient, add_gradient_with(
        x: &[f32], weight: &[f32], dy: &[f32], inverse: f32, factor: f32, dx: &mut [f32],
    ) {
        for (((dx, &x), &weight), &dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
            *dx += madd::<FMA>(dy * weight, inverse, -x * factor);
        }
    }
}

versions! {
    fn add_product, add_product_with(x: &[f32], dy: &[f32], inverse: f32, d_weight: &mut [f32]) {
        for ((d_weight, &x), &dy) in d_weight.iter_mut().zip(x).zip(dy) {
            *d_weight = madd::<FMA>(x * inverse, dy, *d_weight);
        }
    }
}
