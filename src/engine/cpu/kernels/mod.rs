//! Numeric kernels of the CPU engine on plain slices: packed weights, products, attention, vector functions.
//!
//! f32 arithmetic everywhere; weights stay packed. Every product obeys one rule, the **chain rule**: an output
//! element is ONE chain of multiply-adds over the reduced index in ascending order, starting from 0 (or from the
//! old value where it is added). So the result of a row depends neither on the other rows of a call, nor on
//! the number of threads, nor on how the work is cut: decoding one token, a batch of 32 or training on 1024 give
//! the same bits. AVX-512 and AVX2+FMA fuse each multiply-add and agree bit for bit; the portable code does not
//! fuse and differs by rounding.
//!
//! Shapes are asserted at entry of the public functions: a wrong one is a programming error of the caller.

pub mod attention;
mod bf16;
mod dense;
mod four_bit;
mod gemm;
mod isa;
mod line;
mod matrix;
mod micro;
mod panel;
mod pool;
mod scale;
pub mod vector;

pub use dense::Panels;
pub use gemm::{Factor, Operand, Term, add_products, gemm};
pub use isa::Isa;
pub use matrix::{Format, Matrix};
pub(super) use pool::Parts;
pub use pool::Pool;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
