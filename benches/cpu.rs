//! CPU decode and LoRA training tokens/s of one model with NVFP4 weights; `benches/peers.py` measures the others.
//! `cargo bench --bench cpu -- MODEL_DIR`, or QERL_BENCH_MODEL.

fn main() {}
