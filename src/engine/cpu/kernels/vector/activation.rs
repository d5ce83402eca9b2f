//! SwiGLU's elementwise part: `silu(gate) * up`, with `silu(x) = x * sigmoid(x)`.

use super::{exp, madd, versions};

versions! {
    /// `out = silu(gate) * up`; the shortest length counts.
    pub fn silu_mul, silu_mul_with(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp::<FMA>(-gate)) * up;
        }
    }
}

versions! {
    /// Overwrites `gate` and `up` (the inputs of [`silu_mul`]) with their gradients, given that of its output.
    pub fn silu_mul_backward, silu_mul_backward_with(gate: &mut [f32], up: &mut [f32], d_out: &[f32]) {
        for ((gate, up), &d_out) in gate.iter_mut().zip(up).zip(d_out) {
            let sigmoid = 1.0 / (1.0 + exp::<FMA>(-*gate));
            let silu = *gate * sigmoid;
            let d_gate = d_out * *up * madd::<FMA>(silu, 1.0 - sigmoid, sigmoid);
            *up = d_out * silu;
            *gate = d_gate;
        }
    }
}
