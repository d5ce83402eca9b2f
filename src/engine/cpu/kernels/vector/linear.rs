//! Dot products and scaled sums.

use super::{LANES, madd, sum_lanes, versions};

versions! {
    /// Sum of `a[i] * b[i]`; the shorter length counts.
    pub fn dot, dot_with(a: &[f32], b: &[f32]) -> f32 {
        let len = a.len().min(b.len());
        let (a, b) = (a[..len].as_chunks::<LANES>(), b[..len].as_chunks::<LANES>());
        let mut lanes = [0f32; LANES];
        for (a, b) in a.0.iter().zip(b.0) {
            for i in 0..LANES {
                lanes[i] = madd::<FMA>(a[i], b[i], lanes[i]);
            }
        }
        for (i, (a, b)) in a.1.iter().zip(b.1).enumerate() {
            lanes[i] = madd::<FMA>(*a, *b, lanes[i]);
        }
        sum_lanes(lanes)
    }
}

versions! {
    /// `y += alpha * x`; the shorter length counts.
    pub fn axpy, axpy_with(alpha: f32, x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = madd::<FMA>(alpha, x, *y);
        }
    }
}

versions! {
    /// `y += x`; the shorter length counts.
    pub fn add, add_with(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

versions! {
    /// `x *= alpha`.
    pub fn scale, scale_with(alpha: f32, x: &mut [f32]) {
        for x in x {
            *x *= alpha;
        }
    }
}
