//! Comparison with golden data that the reference libraries wrote.

#[path = "golden/formats.rs"]
mod formats;
