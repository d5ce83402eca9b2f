//! The CPU engine: f32 arithmetic over weights that stay packed in memory.

pub mod kernels;
