use super::super::isa::Isa;
use super::super::pool::Pool;
use super::super::reference::Numbers;
use super::backward::backward_packed_with;
use super::decode::decode_with;
use super::forward::forward_packed_with;
use super::*;

const SHAPES: [Heads; 3] = [
    Heads { heads: 9, kv_heads: 3, dim: 64, scale: 0.125 },
    Heads { heads: 4, kv_heads: 2, dim: 8, scale: 0.354 },
    Heads { heads: 2, kv_heads: 2, dim: 40, scale: 0.158 },
];

/// A prompt with two completions, and two sequences of their own.
fn spans() -> Vec<Span> {
    vec![
        Span::whole(0..37),
        Span { prefix: 0..37, own: 37..50 },
        Span { prefix: 0..37, own: 50..51 },
        Span::whole(51..52),
        Span::whole(53..170),
    ]
}

const TOKENS: usize = 170;

struct Case {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
}

fn case(heads: Heads, seed: u64) -> Case {
    let mut numbers = Numbers::new(seed);
    let (wide, narrow) = (TOKENS * heads.heads * heads.dim, TOKENS * heads.kv_heads * heads.dim);
    let q = numbers.vec(wide).iter().map(|x| x * 3.0).collect();
    Case { q, k: numbers.vec(narrow), v: numbers.vec(narrow), d_out: numbers.vec(wide) }
}

/// Results, log-sum-exps and the gradients of q, k, v in f64.
fn reference(heads: Heads, spans: &[Span], case: &Case) -> [Vec<f64>; 5] {
    let (dim, width, kv_width) = (heads.dim, heads.heads * heads.dim, heads.kv_heads * heads.dim);
    let mut out = vec![0.0; TOKENS * width];
    let mut lse = vec![0.0; heads.heads * TOKENS];
    let (mut dq, mut dk, mut dv) = (vec![0.0; out.len()], vec![0.0; case.k.len()], vec![0.0; case.k.len()]);
    for span in spans {
        for (i, token) in span.own.clone().enumerate() {
            let keys: Vec<usize> = span.prefix.clone().chain(span.own.start..span.own.start + i + 1).collect();
            for h in 0..heads.heads {
                let kv = h / (heads.heads / heads.kv_heads);
                let (qi, ki) = (token * width + h * dim, |key: usize| key * kv_width + kv * dim);
                let dot =
                    |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
                let scale = f64::from(heads.scale);
                let scores: Vec<f64> = keys
                    .iter()
                    .map(|&key| dot(&case.q[qi..qi + dim], &case.k[ki(key)..ki(key) + dim]) * scale)
                    .collect();
                let sum = scores.iter().map(|s| s.exp()).sum::<f64>().ln();
                lse[h * TOKENS + token] = sum;
                let p: Vec<f64> = scores.iter().map(|s| (s - sum).exp()).collect();
                let d_out = &case.d_out[qi..qi + dim];
                let dp: Vec<f64> = keys.iter().map(|&key| dot(d_out, &case.v[ki(key)..ki(key) + dim])).collect();
                let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                for ((&key, p), dp) in keys.iter().zip(&p).zip(&dp) {
                    let ds = p * (dp - mean) * scale;
                    for d in 0..dim {
                        out[qi + d] += p * f64::from(case.v[ki(key) + d]);
                        dv[ki(key) + d] += p * f64::from(d_out[d]);
                        dq[qi + d] += ds * f64::from(case.k[ki(key) + d]);
                        dk[ki(key) + d] += ds * f64::from(case.q[qi + d]);
                    }
                }
            }
        }
    }
    [out, lse, dq, dk, dv]
}

#[track_caller]
fn close(got: &[f32], want: &[f64], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() < 1e-5 * want.abs().max(1.0), "{what}[{i}]: {got} instead of {want}");
    }
}

#[test]
fn forward_and_backward_agree_with_the_reference() {
    let pool = Pool::new(3);
    for heads in SHAPES {
        let case = case(heads, 11);
        let [out_want, lse_want, dq_want, dk_want, dv_want] = reference(heads, &spans(), &case);
        for isa in Isa::all() {
            let (mut out, mut lse) = (vec![0.0; case.q.len()], vec![0.0; heads.heads * TOKENS]);
            forward_packed_with(&pool, isa, heads, &spans(), &case.q, &case.k, &case.v, &mut out, &mut lse);
            close(&out, &out_want, "out");
            close(&lse, &lse_want, "log-sum-exp");
            let saved = Saved { q: &case.q, k: &case.k, v: &case.v, out: &out, log_sum_exp: &lse };
            let (mut dq, mut dk, mut dv) = (vec![9.0; case.q.len()], vec![9.0; case.k.len()], vec![9.0; case.v.len()]);
            backward_packed_with(&pool, isa, heads, &spans(), saved, &case.d_out, &mut dq, &mut dk, &mut dv);
            close(&dq, &dq_want, "dq");
            close(&dk, &dk_want, "dk");
            close(&dv, &dv_want, "dv");
            // Other threads, same bits.
            let again = (dq.clone(), dk.clone(), dv.clone());
            let alone = Pool::new(1);
            backward_packed_with(&alone, isa, heads, &spans(), saved, &case.d_out, &mut dq, &mut dk, &mut dv);
            assert_eq!((dq, dk, dv), again);
        }
    }
}

#[test]
fn decoding_and_prefill_give_the_bits_of_the_whole_sequence() {
    let pool = Pool::new(2);
    for heads in SHAPES {
        let case = case(heads, 12);
        let (width, kv_width) = (heads.heads * heads.dim, heads.kv_heads * heads.dim);
        let (mut out, mut lse) = (vec![0.0; case.q.len()], vec![0.0; heads.heads * TOKENS]);
        for isa in Isa::all() {
            let whole = [Span::whole(0..TOKENS)];
            forward_packed_with(&pool, isa, heads, &whole, &case.q, &case.k, &case.v, &mut out, &mut lse);
            let caches = |rows: Range<usize>| -> Vec<Cache> {
                (0..heads.kv_heads)
                    .map(|kv| {
                        let mut cache = Cache::new(heads.dim);
                        for row in rows.clone() {
                            let at = row * kv_width + kv * heads.dim;
                            cache.push(&case.k[at..at + heads.dim], &case.v[at..at + heads.dim]);
                        }
                        cache
                    })
                    .collect()
            };
            let (prefix, own) = (caches(0..75), caches(75..TOKENS));
            let all = caches(0..TOKENS);
            let sequences = [Sequence { prefix: &prefix, own: &own }, Sequence { prefix: &[], own: &all }];
            let last = &case.q[(TOKENS - 1) * width..];
            let mut decoded = vec![0.0; 2 * width];
            decode_with(&pool, isa, heads, &[last, last].concat(), &sequences, &mut decoded);
            assert_eq!(decoded[..width], out[(TOKENS - 1) * width..], "prefix apart, {isa:?}");
            assert_eq!(decoded[width..], out[(TOKENS - 1) * width..], "one piece, {isa:?}");
        }
        let (prefix, own) = (caches_of(&case, heads, 0..75), caches_of(&case, heads, 75..TOKENS));
        let mut rest = vec![0.0; (TOKENS - 75) * width];
        forward(&pool, heads, &case.q[75 * width..], &[&prefix, &own], &mut rest, &mut []);
        assert_eq!(rest, out[75 * width..], "queries behind a prefix");
    }
}

fn caches_of(case: &Case, heads: Heads, rows: Range<usize>) -> Vec<Cache> {
    let width = heads.kv_heads * heads.dim;
    (0..heads.kv_heads)
        .map(|kv| {
            let mut cache = Cache::new(heads.dim);
            let from = rows.start * width + kv * heads.dim;
            cache.extend(&case.k[from..], &case.v[from..], width, rows.len());
            cache
        })
        .collect()
}
