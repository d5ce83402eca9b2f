//! 4-bit formats: NVFP4, MXFP4 and NF4 (with double quantization), byte-exact to llm-compressor and bitsandbytes.
//!
//! Pure functions on slices: no files here.

pub mod codes;
pub mod mxfp4;
pub mod nf4;
pub mod nvfp4;
mod source;

pub use source::Source;

use crate::{Error, Result};

/// Rows of whole groups, and no fewer than one.
fn check_shape(len: usize, cols: usize, group: usize) -> Result<()> {
    if cols == 0 || !cols.is_multiple_of(group) {
        return Err(Error::input(format!("its rows have {cols} weights, which is no multiple of {group}"))
            .hint("nf4 takes rows of any length"));
    }
    if !len.is_multiple_of(cols) {
        return Err(Error::failed(format!("{len} weights are no whole number of rows of {cols}")));
    }
    Ok(())
}

/// The weight format of a base model's projections.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// As the source is; no copy is made.
    Bf16,
    /// e2m1 in groups of 16 with e4m3 scales and one f32 global scale.
    Nvfp4,
    /// e2m1 in groups of 32 with power-of-two scales.
    Mxfp4,
    /// bitsandbytes NF4, blocks of 64, double quantization.
    Nf4,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Nf4 => "nf4",
        }
    }
}
