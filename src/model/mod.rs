//! Models on disk: config.json of transformers 4 and 5, tensor names, checkpoints in every weight format, PEFT
//! adapters, tokenizer and chat template files. Yields plain tensors; engines turn them into their own layout.

pub mod adapter;
pub mod bnb;
mod checkpoint;
mod compress;
mod config;
mod dense;
pub mod gguf;
mod merge;
pub mod names;
mod scheme;
mod tokens;
mod weight;

pub use adapter::Adapter;
pub use checkpoint::Checkpoint;
pub use compress::{Compressed, Errors, LayerError, compress};
pub use config::{Architecture, ModelConfig, RopeScaling, read_json};
pub use dense::{write_config, write_dense};
pub use merge::{merge, with_norms};
pub use names::{Norm, Projection};
pub use scheme::{Layout, Scheme};
pub use tokens::{copy_companions, eos_ids};
pub use weight::{BLOCK, Values, Weight};
