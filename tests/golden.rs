//! Everything that has golden values; see tests/golden/.

#[path = "golden/rl.rs"]
mod rl;
