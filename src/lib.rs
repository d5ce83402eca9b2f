//! qerl: reinforcement learning of language models on quantized weights.
//!
//! One way through, arrows point down only (see ARCHITECTURE.md):
//! `cli -> pipeline -> plan -> run -> stages -> {rl, eval, report} -> {math, data, quant, hub} ->
//! engine -> model -> tensors`; `error`, `control` and `store` stand beside them.

pub mod cli;
pub mod control;
pub mod data;
pub mod engine;
pub mod error;
pub mod eval;
pub mod hub;
pub mod math;
pub mod model;
pub mod pipeline;
pub mod plan;
pub mod quant;
pub mod report;
pub mod rl;
pub mod run;
pub mod selftest;
pub mod slurm;
pub mod stages;
pub mod store;
pub mod tensors;

pub use error::{Error, Result};
