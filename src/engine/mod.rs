//! The engine: one struct that owns ONE copy of the (quantized) weights and serves rollout and training alike.
//!
//! It knows token ids only, never prompts, YAML or files of the pipeline. Losses live in `rl/`: they take the
//! log-probs and entropies of [`Engine::forward`] and hand back their derivatives to [`Engine::backward`].

pub mod adamw8;
pub mod cpu;
pub mod cuda;
mod load;
pub mod philox;
pub mod reference;
pub mod sampling;

use std::sync::Arc;

pub use cuda::device::Device;
pub use load::{Load, load, load_on};

use crate::Result;
use crate::control::Cancel;
use crate::model::ModelConfig;

/// How the next token is drawn. Order: temperature, then top-k, then top-p, then min-p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits before softmax; 0 is greedy (ties to the lowest id).
    pub temperature: f32,
    /// Keep the smallest set with at least this mass; 1 is off.
    pub top_p: f32,
    /// Keep this many; 0 is off.
    pub top_k: usize,
    /// Keep tokens of at least this share of the best one's probability; 0 is off.
    pub min_p: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0 }
    }
}

/// One completion to generate. Requests whose `prompt` is the same `Arc` (or equal) share the prefill.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Arc<[u32]>,
    pub max_new_tokens: usize,
    pub sampling: Sampling,
    /// Philox key of this sequence: its tokens depend on nothing else in the batch.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// One of the EOS ids was sampled; it is the last of `tokens`.
    Eos,
    /// `max_new_tokens` or the model's context was reached.
    Length,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub tokens: Vec<u32>,
    /// Log-prob of each sampled token under softmax(logits / temperature) over the WHOLE vocabulary
    /// (at temperature 0: temperature 1), as the training side computes it. Same length as `tokens`.
    pub log_probs: Vec<f32>,
    pub finish: Finish,
}

/// One sequence to score: `prompt` conditions, each token of `completion` is scored.
#[derive(Clone, Debug)]
pub struct Row {
    /// Equal prompts may share one `Arc`, so that an engine can compute them once.
    pub prompt: Arc<[u32]>,
    pub completion: Vec<u32>,
}

/// Rows are packed one behind the other: no padding, positions start at 0 in each row.
#[derive(Clone, Debug)]
pub struct Batch {
    pub rows: Vec<Row>,
    /// Divides the logits before log-softmax, on this side as on the rollout's.
    pub temperature: f32,
}

/// Per row, per completion token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    pub log_probs: Vec<Vec<f32>>,
    /// Entropy in nats of softmax(logits / temperature) at the position that predicts the token.
    pub entropies: Vec<Vec<f32>>,
}

/// What a forward pass keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Scores only.
    Score,
    /// Keeps what [`Engine::backward`] needs.
    Train,
}

/// Which parameters have gradients and are changed by [`Engine::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainable {
    None,
    /// The LoRA matrices, and the two block norms of every layer where `norms` is set.
    Adapter {
        norms: bool,
    },
    /// Every parameter of an unquantized model.
    All,
}

/// A named f32 tensor on the host: a parameter, a gradient or an optimizer state.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// PEFT's key for adapter parameters, the Hugging Face name for the others.
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// How an engine keeps AdamW's moments between steps. One that cannot keep them so refuses the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    #[default]
    F32,
    /// 8-bit codes with a scale per 256 values, of tensors with at least 4096: see [`adamw8`].
    Blockwise8,
}

/// One AdamW step (decoupled weight decay, Loshchilov & Hutter 2019; decay is not applied to norms and biases).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub lr: f32,
    pub betas: (f32, f32),
    pub eps: f32,
    pub weight_decay: f32,
    /// Gradients are scaled so that their joint L2 norm is at most this; 0 is off.
    pub max_grad_norm: f32,
    pub moments: Moments,
}

/// Gaussian noise on the two block norms of every layer (AQN): clean + N(0, sigma^2), never accumulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormNoise {
    pub sigma: f32,
    pub seed: u64,
}

/// What the injected noise measures back, over all noisy entries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseReport {
    /// Standard deviation of (noisy - clean).
    pub measured_std: f64,
    /// The same divided by the mean |clean weight|.
    pub relative_std: f64,
}

/// Bytes, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub weights: u64,
    pub adapter: u64,
    pub optimizer: u64,
    /// The largest KV cache so far.
    pub kv_cache_peak: u64,
    /// The largest set of activations so far.
    pub activations_peak: u64,
}

/// Serializable training state beside the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// Steps taken so far (bias correction).
    pub step: u64,
    /// First and second moments, named `PARAM.m` and `PARAM.v`; of those kept in 8 bits `PARAM.m.codes` (0..=255) and
    /// `PARAM.m.scales`.
    pub tensors: Vec<NamedTensor>,
}

/// See the module header. Implementations are deterministic: same calls, same bytes, on one machine and
/// thread count.
pub trait Engine: Send {
    fn config(&self) -> &ModelConfig;

    /// Generates all requests with continuous batching; results come in request order.
    /// `eos` holds every id that ends a sequence. `tick(finished, new_tokens)` is called after each decode step.
    fn generate(
        &mut self,
        requests: &[Request],
        eos: &[u32],
        cancel: &Cancel,
        tick: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>>;

    /// One completion, its tokens handed to `token` as they come: those of [`Engine::generate`]. An engine that has
    /// no way to tell earlier hands them over at the end. An error of `token` ends the generation.
    fn stream(
        &mut self,
        request: &Request,
        eos: &[u32],
        cancel: &Cancel,
        token: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<Completion> {
        let mut made = self.generate(std::slice::from_ref(request), eos, cancel, &mut |_, _| {})?;
        let made = made.pop().ok_or_else(|| crate::Error::failed("the engine gave no completion"))?;
        made.tokens.iter().try_for_each(|id| token(*id))?;
        Ok(made)
    }

    /// Log-probs and entropies of each row's completion tokens.
    fn forward(&mut self, batch: &Batch, pass: Pass) -> Result<Scores>;

    /// Adds the gradients of sum(d_log_probs * log_probs) + sum(d_entropies * entropies) of the last
    /// [`Pass::Train`] forward; shapes as in its [`Scores`] (empty `d_entropies`: none).
    fn backward(&mut self, d_log_probs: &[Vec<f32>], d_entropies: &[Vec<f32>]) -> Result<()>;

    fn clear_gradients(&mut self);

    /// Accumulated gradients of the trainable parameters.
    fn gradients(&self) -> Result<Vec<NamedTensor>>;

    /// Clips, steps, clears the gradients; returns the joint L2 norm before clipping. A non-finite norm changes
    /// nothing and is returned as it is.
    fn apply(&mut self, step: &AdamW) -> Result<f64>;

    /// Full logits `[tokens, vocab]` (temperature 1) of each row. For tests and small inputs.
    fn logits(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>>;

    /// Puts fresh noise on the clean norms; `None` or sigma 0 removes it exactly.
    fn set_norm_noise(&mut self, noise: Option<NormNoise>) -> Result<NoiseReport>;

    /// Off: the base model with its original norms (the reference policy of the KL term).
    fn set_adapter_enabled(&mut self, enabled: bool);

    fn parameters(&self) -> Result<Vec<NamedTensor>>;
    fn set_parameters(&mut self, parameters: &[NamedTensor]) -> Result<()>;
    fn optimizer_state(&self) -> Result<OptimizerState>;
    fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()>;

    fn memory(&self) -> Memory;
}
