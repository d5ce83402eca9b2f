//! Vector functions over slices. Each is written once as a plain loop over lanes and compiled for every
//! instruction set; sums run in a fixed number of lanes, so AVX2 and AVX-512 agree bit for bit.

mod activation;
mod linear;
mod norm;
mod softmax;

pub use activation::{silu_mul, silu_mul_backward};
pub use linear::{add, axpy, dot, scale};
pub use norm::{rms_norm, rms_norm_backward};
pub use softmax::{Statistics, log_softmax_backward_in_place, log_softmax_statistics, max_index, softmax_in_place};
pub(super) use softmax::{exp_in_place, probabilities_in_place};

/// Lanes of a sum: two AVX-512 registers.
const LANES: usize = 32;

/// `a * b + c`, fused where FMA is set.
#[inline(always)]
fn madd<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { super::isa::multiply_add(a, b, c) }
}

/// e^x to within 2 units in the last place on [-87, 88]; 0 below, e^88 above, NaN for NaN.
///
/// Cody-Waite reduction and the degree-6 polynomial of Cephes' expf.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the rounded integer in the low bits.
    let bounded = if x > 88.0 { 88.0 } else { x };
    let shifted = madd::<FMA>(bounded, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let r = madd::<FMA>(whole, -0.693_359_4, bounded);
    let r = madd::<FMA>(whole, 2.121_944_4e-4, r);
    let p = madd::<FMA>(1.987_569_1e-4, r, 1.398_2e-3);
    let p = madd::<FMA>(p, r, 8.333_452e-3);
    let p = madd::<FMA>(p, r, 4.166_579_6e-2);
    let p = madd::<FMA>(p, r, 1.666_666_5e-1);
    let p = madd::<FMA>(p, r, 0.5);
    let p = madd::<FMA>(p * r, r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { p * power }
}

/// Adds the lanes up in a fixed tree.
#[inline(always)]
fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    let mut lanes = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn max_lanes(lanes: [f32; LANES]) -> f32 {
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Compiles a body (generic over `FMA`) for each instruction set. `name` runs the best one, `with` a given one.
macro_rules! versions {
    ($(#[$doc:meta])* $vis:vis fn $name:ident, $with:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            $with(crate::engine::cpu::kernels::Isa::best(), $($arg),*)
        }

        fn $with(isa: crate::engine::cpu::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<const FMA: bool>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            match isa {
                // SAFETY: the CPU has `isa`: `Isa::all` lists only what was detected.
                #[cfg(target_arch = "x86_64")]
                crate::engine::cpu::kernels::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                crate::engine::cpu::kernels::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body::<false>($($arg),*),
            }
        }
    };
}
use versions;

#[cfg(test)]
mod tests;
