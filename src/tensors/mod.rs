//! Tensor files: safetensors as untrusted input (bounds, dtypes and shapes are checked before a byte is used),
//! shards behind an index, and a streaming writer. Memory-mapped reading, little-endian throughout.

mod dtype;
mod file;
mod folder;
mod header;
mod writer;

pub use dtype::DType;
pub use file::{Element, TensorFile, View};
pub use folder::Tensors;
pub use header::Entry;
pub use writer::{FolderWriter, Spec, Writer, write_file};
