//! Models on disk: config.json of transformers 4 and 5, tensor names, checkpoints in every weight format, PEFT
//! adapters, tokenizer and chat template files. Yields plain tensors; engines turn them into their own layout.

mod config;

pub use config::{Architecture, ModelConfig, RopeScaling};
