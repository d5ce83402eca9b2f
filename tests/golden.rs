//! Comparison with golden data that the reference libraries wrote; see tests/golden/.

#[path = "golden/engine.rs"]
mod engine;
#[path = "golden/formats.rs"]
mod formats;
#[path = "golden/rl.rs"]
mod rl;
