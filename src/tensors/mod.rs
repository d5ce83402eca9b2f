//! Tensor files: safetensors as untrusted input (bounds, dtypes and shapes are checked before a byte is used),
//! shards behind an index, and a streaming writer. Memory-mapped reading, little-endian throughout.
