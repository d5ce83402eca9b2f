//! The reference: the same models in f64 on candle tensors, with automatic differentiation.
//!
//! Written from the architecture's definition and sharing nothing with the engines but the reader of checkpoints, so
//! that tests and `qerl selftest` have something independent to compare every log-prob and gradient with. Slow, and
//! meant for small models.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{D, DType, Device, Tensor, Var};

use super::{Batch, NamedTensor, Scores};
use crate::model::adapter::{base_name, peft_key};
use crate::model::{Adapter, Checkpoint, ModelConfig, Norm, Projection, RopeScaling, names};
use crate::{Error, Result};

/// A model, dequantized, with an adapter where there is one.
#[derive(Debug)]
pub struct Reference {
    config: ModelConfig,
    /// By the name that the engine gives the parameter.
    variables: BTreeMap<String, Var>,
    scale: f64,
}

fn tensor_error(error: candle_core::Error) -> Error {
    Error::failed("the reference model could not be computed").caused_by(error)
}

impl Reference {
    /// # Errors
    /// What reading the folders gives.
    pub fn load(model: &Path, adapter: Option<&Path>) -> Result<Self> {
        let base = Checkpoint::open(model)?;
        let mut variables = BTreeMap::new();
        for (name, shape) in names::parameters(&base.config) {
            let data = match name.strip_suffix(".weight").filter(|n| n.ends_with("_proj")) {
                Some(prefix) => base.linear(prefix)?.dequantize(),
                None => base.dense(&name)?.data,
            };
            variables.insert(name, variable(&data, &shape)?);
        }
        let mut scale = 0.0;
        if let Some(dir) = adapter {
            let adapter = Adapter::read(dir, &base.config)?;
            scale = adapter.scale();
            for tensor in &adapter.tensors {
                variables.insert(tensor.name.clone(), variable(&tensor.data, &tensor.shape)?);
            }
        }
        Ok(Self { config: base.config, variables, scale })
    }

    /// Log-probs and entropies as [`super::Engine::forward`] defines them.
    ///
    /// # Errors
    /// When a token is not in the vocabulary.
    pub fn forward(&self, batch: &Batch) -> Result<Scores> {
        let mut scores = Scores::default();
        for row in &batch.rows {
            let (log_probs, entropies) =
                self.score(&row.prompt, &row.completion, batch.temperature).map_err(tensor_error)?;
            for (into, from) in [(&mut scores.log_probs, log_probs), (&mut scores.entropies, entropies)] {
                let values = from.to_vec1::<f64>().map_err(tensor_error)?;
                into.push(values.into_iter().map(|x| x as f32).collect());
            }
        }
        Ok(scores)
    }

    /// Gradients of sum(d_log_probs * log_probs) + sum(d_entropies * entropies) with respect to every parameter.
    ///
    /// # Errors
    /// When shapes do not fit, or a token is not in the vocabulary.
    pub fn gradients(&self, batch: &Batch, d_log_probs: &[Vec<f32>], d_entropies: &[Vec<f32>]) -> Result<Vec<NamedTensor>> {
        self.differentiate(batch, d_log_probs, d_entropies).map_err(tensor_error)
    }

    fn differentiate(
        &self,
        batch: &Batch,
        d_log_probs: &[Vec<f32>],
        d_entropies: &[Vec<f32>],
    ) -> candle_core::Result<Vec<NamedTensor>> {
        let mut loss = Tensor::zeros((), DType::F64, &Device::Cpu)?;
        for (i, row) in batch.rows.iter().enumerate() {
            let (log_probs, entropies) = self.score(&row.prompt, &row.completion, batch.temperature)?;
            for (slopes, values) in [(d_log_probs.get(i), log_probs), (d_entropies.get(i), entropies)] {
                let Some(slopes) = slopes.filter(|s| !s.is_empty()) else { continue };
                let slopes: Vec<f64> = slopes.iter().map(|&x| f64::from(x)).collect();
                let slopes = Tensor::from_vec(slopes, values.dims1()?, &Device::Cpu)?;
                loss = (loss + (slopes * values)?.sum_all()?)?;
            }
        }
        let gradients = loss.backward()?;
        let mut out = Vec::new();
        for (name, variable) in &self.variables {
            let Some(gradient) = gradients.get(variable.as_tensor()) else { continue };
            let data = gradient.flatten_all()?.to_vec1::<f64>()?.into_iter().map(|x| x as f32).collect();
            out.push(NamedTensor { name: name.clone(), shape: variable.dims().to_vec(), data });
        }
        Ok(out)
    }

    fn get(&self, name: &str) -> candle_core::Result<&Tensor> {
        let adapted = self.variables.get(&peft_key(name)).or_else(|| self.variables.get(name));
        adapted.map(Var::as_tensor).ok_or_else(|| candle_core::Error::Msg(format!("no parameter {name}")))
    }

    fn norm(&self, x: &Tensor, name: &str) -> candle_core::Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let root = (mean + self.config.rms_norm_eps)?.sqrt()?;
        x.broadcast_div(&root)?.broadcast_mul(self.get(name)?)
    }

    fn linear(&self, x: &Tensor, projection: Projection, layer: usize) -> candle_core::Result<Tensor> {
        let prefix = projection.prefix(layer);
        let mut y = x.matmul(&self.get(&format!("{prefix}.weight"))?.t()?)?;
        if projection.has_bias(&self.config) {
            y = y.broadcast_add(self.get(&format!("{prefix}.bias"))?)?;
        }
        let part = |which: &str| self.variables.get(&peft_key(&format!("{prefix}.{which}.weight")));
        if let (Some(a), Some(b)) = (part("lora_A"), part("lora_B")) {
            let update = x.matmul(&a.t()?)?.matmul(&b.t()?)?;
            y = (y + (update * self.scale)?)?;
        }
        Ok(y)
    }

    /// `[tokens, heads * dim]` -> `[heads, tokens, dim]`.
    fn heads(&self, x: &Tensor, heads: usize) -> candle_core::Result<Tensor> {
        x.reshape((x.dim(0)?, heads, self.config.head_dim))?.transpose(0, 1)?.contiguous()
    }

    fn rope(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let (_, tokens, dim) = x.dims3()?;
        let half = dim / 2;
        let mut angles = Vec::with_capacity(tokens * half);
        for position in 0..tokens {
            for i in 0..half {
                angles.push(position as f64 * frequency(&self.config, i));
            }
        }
        let angles = Tensor::from_vec(angles, (1, tokens, half), &Device::Cpu)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let (low, high) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let first = (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?;
        let second = (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?;
        Tensor::cat(&[first, second], 2)
    }

    fn attention(&self, x: &Tensor, layer: usize) -> candle_core::Result<Tensor> {
        let config = &self.config;
        let (tokens, group) = (x.dim(0)?, config.num_heads / config.num_kv_heads);
        let mut q = self.heads(&self.linear(x, Projection::Q, layer)?, config.num_heads)?;
        let mut k = self.heads(&self.linear(x, Projection::K, layer)?, config.num_kv_heads)?;
        let v = self.heads(&self.linear(x, Projection::V, layer)?, config.num_kv_heads)?;
        if config.qk_norm {
            (q, k) = (self.norm(&q, &Norm::Q.weight(layer))?, self.norm(&k, &Norm::K.weight(layer))?);
        }
        (q, k) = (self.rope(&q)?, self.rope(&k)?);
        let mask: Vec<f64> = (0..tokens * tokens)
            .map(|i| if i % tokens > i / tokens { f64::NEG_INFINITY } else { 0.0 })
            .collect();
        let mask = Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)?;
        let mut out = Vec::new();
        for head in 0..config.num_heads {
            let (q, k, v) = (q.get(head)?, k.get(head / group)?, v.get(head / group)?);
            let scores = ((q.matmul(&k.t()?)? / (config.head_dim as f64).sqrt())? + &mask)?;
            out.push(log_softmax(&scores)?.exp()?.matmul(&v)?);
        }
        self.linear(&Tensor::cat(&out, 1)?, Projection::O, layer)
    }

    fn mlp(&self, x: &Tensor, layer: usize) -> candle_core::Result<Tensor> {
        let gate = self.linear(x, Projection::Gate, layer)?;
        let sigmoid = ((gate.neg()?.exp()? + 1.0)?).recip()?;
        let active = ((gate * sigmoid)? * self.linear(x, Projection::Up, layer)?)?;
        self.linear(&active, Projection::Down, layer)
    }

    fn score(&self, prompt: &[u32], completion: &[u32], temperature: f32) -> candle_core::Result<(Tensor, Tensor)> {
        let fed: Vec<u32> = prompt.iter().chain(completion).take(prompt.len() + completion.len() - 1).copied().collect();
        let ids = Tensor::new(fed.as_slice(), &Device::Cpu)?;
        let mut x = self.get(names::EMBEDDING)?.index_select(&ids, 0)?;
        for layer in 0..self.config.num_layers {
            let attended = self.attention(&self.norm(&x, &Norm::Input.weight(layer))?, layer)?;
            x = (x + attended)?;
            let mlp = self.mlp(&self.norm(&x, &Norm::PostAttention.weight(layer))?, layer)?;
            x = (x + mlp)?;
        }
        let x = self.norm(&x, names::FINAL_NORM)?.narrow(0, prompt.len() - 1, completion.len())?;
        let head = if self.config.tie_word_embeddings { names::EMBEDDING } else { names::HEAD };
        let logits = (x.matmul(&self.get(head)?.t()?)? / f64::from(temperature))?;
        let log_p = log_softmax(&logits)?;
        let targets = Tensor::new(completion, &Device::Cpu)?.reshape((completion.len(), 1))?;
        let log_probs = log_p.gather(&targets, 1)?.squeeze(1)?;
        let entropies = (log_p.exp()? * &log_p)?.sum(1)?.neg()?;
        Ok((log_probs, entropies))
    }
}

fn variable(data: &[f32], shape: &[usize]) -> Result<Var> {
    let data: Vec<f64> = data.iter().map(|&x| f64::from(x)).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).and_then(|t| Var::from_tensor(&t)).map_err(tensor_error)
}

/// The maximum is subtracted as a constant, so that its gradient is that of the definition.
fn log_softmax(x: &Tensor) -> candle_core::Result<Tensor> {
    let max = x.max_keepdim(D::Minus1)?.detach();
    let shifted = x.broadcast_sub(&max)?;
    let log = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log)
}

/// Rotary frequency number `i`, by Llama 3's rule where the model has it.
fn frequency(config: &ModelConfig, i: usize) -> f64 {
    let plain = config.rope_theta.powf(-2.0 * i as f64 / config.head_dim as f64);
    match config.rope_scaling {
        None => plain,
        Some(RopeScaling::Linear { factor }) => plain / factor,
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position }) => {
            let turns = original_max_position as f64 * plain / std::f64::consts::TAU;
            let share = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            share * plain + (1.0 - share) * plain / factor
        }
    }
}

/// Names without PEFT's prefix, for comparisons.
pub fn by_base_name(tensors: Vec<NamedTensor>) -> BTreeMap<String, NamedTensor> {
    tensors.into_iter().map(|t| (base_name(&t.name).to_owned(), t)).collect()
}
