//! Times the CPU kernels on the shapes of SmolLM2-135M and prints them beside the machine's own limits, measured in
//! the same run: peak multiply-adds and memory bandwidth. `cargo bench --bench kernels [FILTER]`; 2 threads unless
//! `QERL_BENCH_THREADS` says otherwise.

use std::hint::black_box;
use std::time::{Duration, Instant};

use qerl::engine::cpu::kernels::attention::{self, Cache, Heads, Saved, Sequence, Span};
use qerl::engine::cpu::kernels::{Format, Matrix, Operand, Pool, gemm, vector};

const HIDDEN: usize = 576;
const KV: usize = 192;
const INTERMEDIATE: usize = 1536;
const VOCAB: usize = 49152;
const LAYERS: usize = 30;
const HEADS: Heads = Heads { heads: 9, kv_heads: 3, dim: 64, scale: 0.125 };
const RANK: usize = 16;

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let threads = std::env::var("QERL_BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let bench = Bench { filter, pool: Pool::new(threads), peak: 0.0, bandwidth: 0.0 };
    bench.run();
}

struct Bench {
    filter: String,
    pool: Pool,
    /// GFLOP/s and GB/s of all threads.
    peak: f64,
    bandwidth: f64,
}

impl Bench {
    fn run(mut self) {
        println!("{} threads", self.pool.threads());
        self.limits();
        for name in ["pool", "decode", "head", "train", "lora", "attention", "vector"] {
            if !name.contains(&self.filter) {
                continue;
            }
            match name {
                "pool" => self.latency(),
                "decode" => self.decode(),
                "head" => self.head(),
                "train" => self.train(),
                "lora" => self.lora(),
                "attention" => self.attention(),
                _ => self.vectors(),
            }
        }
    }

    fn limits(&mut self) {
        let threads = self.pool.threads();
        let rounds = 1 << 18;
        let time = best(20, || self.pool.for_each(threads, &|_| multiply_adds(rounds)));
        let alone = best(20, || multiply_adds(rounds));
        // 16 chains of 16 lanes.
        let flops = 2.0 * 256.0 * rounds as f64;
        self.peak = flops * threads as f64 / time / 1e9;
        println!("multiply-add peak: {:.0} GFLOP/s, one thread {:.0}", self.peak, flops / alone / 1e9);
        for mib in [16, 112, 512] {
            let data = vec![1u64; mib << 17];
            let each = data.len() / threads;
            let time = best(5, || {
                self.pool.for_each(threads, &|i| {
                    black_box(data[i * each..][..each].iter().fold(0, |sum, x| sum | x));
                });
            });
            let rate = data.len() as f64 * 8.0 / time / 1e9;
            println!("reading {mib} MiB: {rate:.1} GB/s");
            if mib == 112 {
                self.bandwidth = rate;
            }
        }
    }

    fn latency(&self) {
        let rounds = 10_000;
        let time = best(5, || {
            (0..rounds).for_each(|_| {
                self.pool.for_each(2, &|i| {
                    black_box(i);
                })
            })
        });
        println!("pool: an empty for_each takes {:.2} us", time / f64::from(rounds) * 1e6);
        let pause = |pause: Duration| {
            let time = best(50, || {
                (0..100).for_each(|_| {
                    let start = Instant::now();
                    while start.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                    self.pool.for_each(2, &|i| {
                        black_box(i);
                    });
                });
            });
            println!("pool: after {pause:?} of other work {:.2} us", time * 1e4 - pause.as_secs_f64() * 1e6);
        };
        [20, 200].into_iter().map(Duration::from_micros).for_each(pause);
    }

    fn decode(&self) {
        for format in [Format::Nvfp4, Format::Nf4, Format::Bf16, Format::F32] {
            let layers: Vec<Layer> = (0..LAYERS).map(|_| Layer::new(format)).collect();
            let weights = layers.iter().map(Layer::weights).sum::<usize>() as f64;
            let bytes = layers.iter().map(Layer::bytes).sum::<usize>() as f64;
            for m in [1, 2, 4, 8, 32] {
                let x = numbers(m * INTERMEDIATE);
                let mut out = vec![0.0; m * 2 * INTERMEDIATE];
                let time = best(9, || layers.iter().for_each(|layer| layer.forward(&self.pool, &x, m, &mut out)));
                self.report(&format!("decode layers {format:?} m={m}"), time, 2.0 * weights * m as f64, bytes);
            }
        }
    }

    fn head(&self) {
        let head = matrix(Format::Bf16, VOCAB, HIDDEN);
        for m in [1, 2, 4, 8, 32, 128] {
            let x = numbers(m * HIDDEN);
            let mut y = vec![0.0; m * VOCAB];
            let time = best(7, || head.product(&self.pool, &x, m, &mut y, false));
            self.report(
                &format!("head bf16 m={m}"),
                time,
                2.0 * (m * VOCAB * HIDDEN) as f64,
                head.bytes() as f64 + y.len() as f64 * 4.0,
            );
        }
    }

    fn train(&self) {
        let m = 1024;
        for format in [Format::Nvfp4, Format::Nf4, Format::Bf16, Format::F32] {
            let w = matrix(format, INTERMEDIATE, HIDDEN);
            let (x, mut y) = (numbers(m * HIDDEN), numbers(m * INTERMEDIATE));
            let flops = 2.0 * (m * HIDDEN * INTERMEDIATE) as f64;
            let time = best(9, || w.product(&self.pool, &x, m, &mut y, false));
            self.report(&format!("train {format:?} x W^T, m={m}"), time, flops, 0.0);
            let mut dx = vec![0.0; m * HIDDEN];
            let time = best(9, || w.product_transposed(&self.pool, &y, m, &mut dx, false));
            self.report(&format!("train {format:?} dy W, m={m}"), time, flops, 0.0);
        }
        let head = matrix(Format::Bf16, VOCAB, HIDDEN);
        let m = 256;
        let (x, mut y) = (numbers(m * HIDDEN), numbers(m * VOCAB));
        let flops = 2.0 * (m * HIDDEN * VOCAB) as f64;
        let time = best(2, || head.product(&self.pool, &x, m, &mut y, false));
        self.report(&format!("train head x W^T, m={m}"), time, flops, 0.0);
        let mut dx = vec![0.0; m * HIDDEN];
        let time = best(2, || head.product_transposed(&self.pool, &y, m, &mut dx, false));
        self.report(&format!("train head dy W, m={m}"), time, flops, 0.0);
    }

    fn lora(&self) {
        let m = 1024;
        for (what, [m, n, k], ta, tb) in [
            ("x A^T", [m, RANK, INTERMEDIATE], false, true),
            ("t B^T", [m, INTERMEDIATE, RANK], false, true),
            ("dy B", [m, RANK, INTERMEDIATE], false, false),
            ("dt^T x", [RANK, INTERMEDIATE, m], true, false),
            ("dy^T t", [INTERMEDIATE, RANK, m], true, false),
            ("1 x A^T", [1, RANK, INTERMEDIATE], false, true),
            ("1 t B^T", [1, INTERMEDIATE, RANK], false, true),
            ("32 x A^T", [32, RANK, INTERMEDIATE], false, true),
            ("32 t B^T", [32, INTERMEDIATE, RANK], false, true),
        ] {
            let (a, b) = (numbers(m * k), numbers(k * n));
            let left = Operand::new(&a, if ta { m } else { k });
            let right = Operand::new(&b, if tb { k } else { n });
            let (left, right) = (if ta { left.t() } else { left }, if tb { right.t() } else { right });
            let mut c = vec![0.0; m * n];
            let time = best(20, || gemm(&self.pool, [m, n, k], 1.0, left, right, 1.0, (&mut c, n)));
            let bytes = 4.0 * (m * k + n * k + m * n) as f64;
            self.report(&format!("lora {what} [{m}, {n}, {k}]"), time, 2.0 * (m * n * k) as f64, bytes);
        }
    }

    fn attention(&self) {
        let (width, kv_width) = (HEADS.heads * HEADS.dim, HEADS.kv_heads * HEADS.dim);
        for (batch, len) in [(1, 128), (1, 1024), (32, 128), (32, 1024)] {
            let caches: Vec<Vec<Cache>> = (0..batch)
                .map(|_| {
                    let fill = |_| {
                        let mut cache = Cache::new(HEADS.dim);
                        let x = numbers(len * HEADS.dim);
                        cache.extend(&x, &x, HEADS.dim, len);
                        cache
                    };
                    (0..HEADS.kv_heads).map(fill).collect()
                })
                .collect();
            let sequences: Vec<_> = caches.iter().map(|own| Sequence { prefix: &[], own }).collect();
            let (q, mut out) = (numbers(batch * width), vec![0.0; batch * width]);
            let time = best(20, || attention::decode(&self.pool, HEADS, &q, &sequences, &mut out));
            let flops = 4.0 * (batch * len * width) as f64;
            let bytes = 8.0 * (batch * len * kv_width) as f64;
            self.report(&format!("attention decode {batch} x {len}"), time, flops, bytes);
        }
        let (rows, each) = (8, 128);
        let tokens = rows * each;
        let spans: Vec<Span> = (0..rows).map(|r| Span::whole(r * each..(r + 1) * each)).collect();
        let (q, k, v) = (numbers(tokens * width), numbers(tokens * kv_width), numbers(tokens * kv_width));
        let (mut out, mut lse) = (vec![0.0; tokens * width], vec![0.0; HEADS.heads * tokens]);
        // Half of the square is seen.
        let flops = 2.0 * (rows * each * each * width) as f64;
        let time = best(5, || attention::forward_packed(&self.pool, HEADS, &spans, &q, &k, &v, &mut out, &mut lse));
        self.report("attention forward 8 x 128", time, flops, 0.0);
        let saved = Saved { q: &q, k: &k, v: &v, out: &out, log_sum_exp: &lse };
        let d_out = numbers(tokens * width);
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        let time = best(5, || {
            attention::backward_packed(&self.pool, HEADS, &spans, saved, &d_out, &mut dq, &mut dk, &mut dv);
        });
        self.report("attention backward 8 x 128", time, flops * 2.5, 0.0);
    }

    fn vectors(&self) {
        let per = |what: &str, len: usize, time: f64| {
            println!("{what:<40} {:9.2} us, {:.2} ns an element", time * 1e6, time / len as f64 * 1e9);
        };
        let (x, w) = (numbers(VOCAB), numbers(VOCAB));
        let mut out = vec![0.0; VOCAB];
        let time = best(50, || {
            black_box(vector::rms_norm(&x[..HIDDEN], &w[..HIDDEN], 1e-5, &mut out[..HIDDEN]));
        });
        per("vector rms_norm", HIDDEN, time);
        let time = best(50, || vector::silu_mul(&x[..INTERMEDIATE], &w[..INTERMEDIATE], &mut out[..INTERMEDIATE]));
        per("vector silu_mul", INTERMEDIATE, time);
        let time = best(50, || {
            black_box(vector::max_index(&x));
        });
        per("vector max_index", VOCAB, time);
        let time = best(50, || {
            black_box(vector::log_softmax_statistics(&x, 1.0));
        });
        per("vector log_softmax_statistics", VOCAB, time);
        let statistics = vector::log_softmax_statistics(&x, 1.0);
        let time = best(50, || {
            out.copy_from_slice(&x);
            vector::log_softmax_backward_in_place(&mut out, 1.0, statistics, 5, 1.0, 0.1);
        });
        per("vector log_softmax_backward (and a copy)", VOCAB, time);
        let time = best(50, || {
            out.copy_from_slice(&x);
            black_box(vector::softmax_in_place(&mut out, 1.0));
        });
        per("vector softmax (and a copy)", VOCAB, time);
        let time = best(50, || {
            black_box(vector::dot(&x, &w));
        });
        per("vector dot", VOCAB, time);
    }

    fn report(&self, what: &str, time: f64, flops: f64, bytes: f64) {
        print!(
            "{what:<40} {:9.3} ms {:7.1} GFLOP/s ({:3.0}%)",
            time * 1e3,
            flops / time / 1e9,
            flops / time / 1e7 / self.peak
        );
        if bytes > 0.0 {
            print!(" {:6.1} GB/s ({:3.0}%)", bytes / time / 1e9, bytes / time / 1e7 / self.bandwidth);
        }
        println!();
    }
}

/// The linear maps of one block.
struct Layer {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Layer {
    fn new(format: Format) -> Self {
        Self {
            q: matrix(format, HIDDEN, HIDDEN),
            k: matrix(format, KV, HIDDEN),
            v: matrix(format, KV, HIDDEN),
            o: matrix(format, HIDDEN, HIDDEN),
            gate: matrix(format, INTERMEDIATE, HIDDEN),
            up: matrix(format, INTERMEDIATE, HIDDEN),
            down: matrix(format, HIDDEN, INTERMEDIATE),
        }
    }

    fn all(&self) -> [&Matrix; 7] {
        [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down]
    }

    fn weights(&self) -> usize {
        self.all().iter().map(|w| w.shape().0 * w.shape().1).sum()
    }

    fn bytes(&self) -> usize {
        self.all().iter().map(|w| w.bytes()).sum()
    }

    fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) {
        let hidden = &x[..m * HIDDEN];
        let (q, rest) = out.split_at_mut(m * HIDDEN);
        let (k, rest) = rest.split_at_mut(m * KV);
        let v = &mut rest[..m * KV];
        Matrix::products(pool, hidden, m, &mut [(&self.q, q), (&self.k, k), (&self.v, v)], false, None);
        self.o.product(pool, hidden, m, &mut out[..m * HIDDEN], true);
        let (gate, up) = out.split_at_mut(m * INTERMEDIATE);
        Matrix::products(pool, hidden, m, &mut [(&self.gate, gate), (&self.up, up)], false, None);
        self.down.product(pool, &x[..m * INTERMEDIATE], m, &mut out[..m * HIDDEN], true);
    }
}

fn matrix(format: Format, n: usize, k: usize) -> Matrix {
    let bits = numbers(n * k);
    let bytes = |len: usize| bits[..len].iter().map(|x| x.to_bits() as u8).collect::<Vec<u8>>();
    match format {
        Format::F32 => Matrix::from_f32(bits, n, k),
        Format::Bf16 => Matrix::from_bf16(&bits.iter().map(|x| (x.to_bits() >> 16) as u16).collect::<Vec<_>>(), n, k),
        Format::Nvfp4 => Matrix::from_nvfp4_divided(&bytes(n * k / 2), &vec![0x38; n * k / 16], 500.0, n, k),
        Format::Mxfp4 => Matrix::from_mxfp4(&bytes(n * k / 2), &vec![120; n * k / 32], n, k),
        Format::Nf4 => Matrix::from_nf4(&bytes(n * k / 2), &vec![0.05; n * k / 64], n, k),
    }
}

/// Seeded numbers in [-1, 1).
fn numbers(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..len).map(|_| (next() >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Seconds of the fastest of `runs` runs, after one to warm up.
fn best(runs: usize, mut f: impl FnMut()) -> f64 {
    f();
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// `rounds` times 16 independent chains of 16 lanes.
fn multiply_adds(rounds: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps, _mm512_fmadd_ps, _mm512_set1_ps};
        #[target_feature(enable = "avx512f")]
        fn avx512(rounds: usize) {
            let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
            let mut sums = [b; 16];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, a, b);
                }
            }
            for sum in sums {
                black_box(sum);
            }
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(rounds: usize) {
            let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
            for _ in 0..3 {
                let mut sums = [b; 11];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        *sum = _mm256_fmadd_ps(*sum, a, b);
                    }
                }
                for sum in sums {
                    black_box(sum);
                }
            }
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has it.
            return unsafe { avx512(rounds) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has it. 3 x 11 chains of 8 lanes are about 16 of 16.
            return unsafe { avx2(rounds) };
        }
    }
    let (a, b) = black_box(([0.999f32; 16], [1e-3f32; 16]));
    let mut sums = [b; 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            for lane in 0..16 {
                sum[lane] = sum[lane] * a[lane] + b[lane];
            }
        }
    }
    black_box(sums);
}
