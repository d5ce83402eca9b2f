//! Draws one token from a row of logits. Order: temperature, top-k, top-p, min-p (see [`Sampling`]).

use super::Sampling;
use super::philox::{Stream, uniform};

/// Elements of one partial sum: fixed, so that a row's draw does not depend on how rows are spread over threads.
const BLOCK: usize = 128;

/// Buffers kept between draws of one thread or row.
#[derive(Debug, Default)]
pub struct Scratch {
    sums: Vec<f64>,
    candidates: Vec<(f32, u32)>,
}

/// One draw: the token and its log-prob over the whole vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Draw {
    pub token: u32,
    pub log_prob: f32,
}

/// Samples from `logits` [vocab], which it overwrites. `position` counts the completion's tokens from 0: with
/// `seed` it decides the draw. `None` where the logits are not finite.
pub fn draw(logits: &mut [f32], sampling: &Sampling, seed: u64, position: u64, scratch: &mut Scratch) -> Option<Draw> {
    let max = maximum(logits);
    let greedy = sampling.temperature <= 0.0;
    let best = if greedy { logits.iter().position(|&x| x == max)? } else { 0 };
    let inverse = if greedy { 1.0 } else { 1.0 / sampling.temperature };
    scratch.sums.clear();
    masses(logits, max, inverse, &mut scratch.sums);
    let total: f64 = scratch.sums.iter().sum();
    if !total.is_finite() || !max.is_finite() {
        return None;
    }
    let p = &*logits;
    let token = if greedy {
        best
    } else {
        let u = uniform(seed, Stream::Tokens, position);
        if sampling.top_k == 0 && sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
            walk(p, &scratch.sums, u * total)
        } else {
            filtered(p, sampling, total, u, &mut scratch.candidates)
        }
    };
    let log_prob = (f64::from(p[token]).ln() - total.ln()) as f32;
    Some(Draw { token: token as u32, log_prob })
}

/// Compiles a loop for AVX2 beside the baseline; neither fuses, so that both give the same bits.
macro_rules! versions {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the CPU has AVX2.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}

versions! {
    /// The largest value; NaN never is.
    fn maximum(row: &[f32]) -> f32 {
        let (chunks, rest) = row.as_chunks::<32>();
        let mut lanes = [f32::NEG_INFINITY; 32];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
}

versions! {
    /// Replaces x with `e^((x - max) * inverse)` and adds the sum of each [`BLOCK`] to `sums`.
    fn masses(row: &mut [f32], max: f32, inverse: f32, sums: &mut Vec<f64>) {
        for block in row.chunks_mut(BLOCK) {
            let mut lanes = [0f64; 8];
            let (chunks, rest) = block.as_chunks_mut::<8>();
            for chunk in chunks {
                for x in chunk.iter_mut() {
                    *x = exp((*x - max) * inverse);
                }
                for (lane, &mut x) in lanes.iter_mut().zip(chunk) {
                    *lane += f64::from(x);
                }
            }
            let mut sum: f64 = lanes.iter().sum();
            for x in rest {
                *x = exp((*x - max) * inverse);
                sum += f64::from(*x);
            }
            sums.push(sum);
        }
    }
}

/// The first index whose cumulative mass exceeds `target`.
fn walk(p: &[f32], sums: &[f64], target: f64) -> usize {
    let mut mass = 0.0;
    let mut last = 0;
    for (block, &sum) in sums.iter().enumerate() {
        if mass + sum <= target {
            mass += sum;
            continue;
        }
        for (i, &x) in p[block * BLOCK..].iter().take(BLOCK).enumerate() {
            if x > 0.0 {
                last = block * BLOCK + i;
                mass += f64::from(x);
                if mass > target {
                    return last;
                }
            }
        }
    }
    // Rounding put the target at the very end: the last token with any mass.
    if p[last] > 0.0 { last } else { p.iter().rposition(|&x| x > 0.0).unwrap_or(0) }
}

/// Draws among the tokens that top-k, then top-p (of what top-k left), then min-p keep.
fn filtered(p: &[f32], sampling: &Sampling, total: f64, u: f64, kept: &mut Vec<(f32, u32)>) -> usize {
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let all = |floor: f32, kept: &mut Vec<(f32, u32)>| {
        kept.clear();
        kept.extend(p.iter().enumerate().filter(|(_, x)| **x > floor).map(|(i, &x)| (x, i as u32)));
    };
    let limited = sampling.top_k > 0 && sampling.top_k < p.len();
    let mut mass = total;
    if limited {
        all(0.0, kept);
        if sampling.top_k < kept.len() {
            kept.select_nth_unstable_by(sampling.top_k - 1, order);
            kept.truncate(sampling.top_k);
        }
        mass = kept.iter().map(|c| f64::from(c.0)).sum();
    } else {
        // Most of the vocabulary has almost no mass: sort only as much as top-p can reach.
        let wanted = f64::from(sampling.top_p) * total;
        let mut floor = 1e-3f32;
        loop {
            all(floor, kept);
            if sampling.top_p < 1.0 && kept.iter().map(|c| f64::from(c.0)).sum::<f64>() > wanted {
                break;
            }
            if floor == 0.0 {
                break;
            }
            floor = if sampling.top_p >= 1.0 || floor < 1e-12 { 0.0 } else { floor * 1e-3 };
        }
    }
    kept.sort_unstable_by(order);
    if sampling.top_p < 1.0 {
        let wanted = f64::from(sampling.top_p.max(0.0)) * mass;
        let mut sum = 0.0;
        let mut count = 0;
        for candidate in kept.iter() {
            sum += f64::from(candidate.0);
            count += 1;
            if sum >= wanted {
                break;
            }
        }
        kept.truncate(count.max(1));
    }
    if sampling.min_p > 0.0 {
        let floor = sampling.min_p.min(1.0) * kept[0].0;
        let count = kept.iter().take_while(|c| c.0 >= floor).count();
        kept.truncate(count.max(1));
    }
    let target = u * kept.iter().map(|c| f64::from(c.0)).sum::<f64>();
    let mut sum = 0.0;
    for candidate in kept.iter() {
        sum += f64::from(candidate.0);
        if sum > target {
            return candidate.1 as usize;
        }
    }
    kept[kept.len() - 1].1 as usize
}

/// e^x for x <= 0 within 2 ulp, in a form that compilers turn into vector code (Cephes expf).
#[inline(always)]
fn exp(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    let gone = x <= -87.0; // false for NaN, which stays NaN
    let x = if gone { 0.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let poly = 1.987_569_1e-4;
    let poly = poly * r + 1.398_199_9e-3;
    let poly = poly * r + 8.333_452e-3;
    let poly = poly * r + 4.166_579_6e-2;
    let poly = poly * r + 1.666_666_5e-1;
    let poly = poly * r + 0.5;
    let value = poly * r * r + r + 1.0;
    let scale = f32::from_bits((((shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32) + 127) << 23) as u32);
    let value = value * scale;
    if gone { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probabilities(logits: &[f32], sampling: Sampling, draws: u64) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        let mut scratch = Scratch::default();
        for position in 0..draws {
            let mut row = logits.to_vec();
            counts[draw(&mut row, &sampling, 11, position, &mut scratch).unwrap().token as usize] += 1.0;
        }
        counts.iter().map(|c| c / draws as f64).collect()
    }

    fn softmax(logits: &[f32], t: f64) -> Vec<f64> {
        let e: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / t).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|x| x / sum).collect()
    }

    const LOGITS: [f32; 5] = [1.0, 0.5, 2.0, -1.0, 1.5];

    #[test]
    fn frequencies_follow_the_tempered_softmax() {
        let got = probabilities(&LOGITS, Sampling { temperature: 0.7, ..Sampling::default() }, 20_000);
        for (g, e) in got.iter().zip(softmax(&LOGITS, 0.7)) {
            assert!((g - e).abs() < 0.012, "{g} {e}");
        }
    }

    #[test]
    fn filters_keep_exactly_their_sets() {
        let full = softmax(&LOGITS, 1.0);
        let check = |sampling: Sampling, kept: &[usize]| {
            let mass: f64 = kept.iter().map(|&i| full[i]).sum();
            for (i, got) in probabilities(&LOGITS, sampling, 8_000).into_iter().enumerate() {
                let expected = if kept.contains(&i) { full[i] / mass } else { 0.0 };
                assert!((got - expected).abs() < 0.02 && (expected > 0.0 || got == 0.0), "{i}: {got} {expected}");
            }
        };
        check(Sampling { top_k: 2, ..Sampling::default() }, &[2, 4]);
        // Masses in order: 2 (.43), 4 (.26), 0 (.16), 1 (.10), 3 (.02)
        check(Sampling { top_p: 0.5, ..Sampling::default() }, &[2, 4]);
        check(Sampling { top_p: 0.8, ..Sampling::default() }, &[2, 4, 0]);
        check(Sampling { min_p: 0.3, ..Sampling::default() }, &[2, 4, 0]);
        // top-p acts on what top-k left: .43/.86 = .5 reaches 0.45 at once.
        check(Sampling { top_k: 3, top_p: 0.45, ..Sampling::default() }, &[2]);
    }

    #[test]
    fn log_prob_is_over_the_whole_vocabulary_and_greedy_breaks_ties_low() {
        let mut scratch = Scratch::default();
        let sampling = Sampling { temperature: 2.0, top_k: 1, ..Sampling::default() };
        let got = draw(&mut LOGITS.to_vec(), &sampling, 0, 0, &mut scratch).unwrap();
        assert_eq!(got.token, 2);
        assert!((f64::from(got.log_prob) - softmax(&LOGITS, 2.0)[2].ln()).abs() < 1e-6);
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let got = draw(&mut [0.0, 3.0, 3.0], &greedy, 0, 0, &mut scratch).unwrap();
        assert_eq!(got.token, 1);
        assert!((f64::from(got.log_prob) - softmax(&[0.0, 3.0, 3.0], 1.0)[1].ln()).abs() < 1e-6);
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        let mut scratch = Scratch::default();
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(draw(&mut [0.0, bad, 1.0], &Sampling::default(), 0, 0, &mut scratch), None);
        }
        let masked = draw(&mut [f32::NEG_INFINITY, 0.0], &Sampling::default(), 0, 0, &mut scratch);
        assert_eq!(masked, Some(Draw { token: 1, log_prob: 0.0 }));
    }

    #[test]
    fn exp_is_accurate() {
        for i in 0..100_000 {
            let x = -(i as f32) * 8.6e-4;
            let (got, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / exact - 1.0).abs() < 3e-7, "{x}: {got} {exact}");
        }
        assert_eq!((exp(f32::NEG_INFINITY), exp(-1e9), exp(0.0)), (0.0, 0.0, 1.0));
    }
}
