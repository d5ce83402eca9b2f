//! A table as a policy: the logits of the next token depend on the last one. Small enough to check by eye, and an
//! honest [`Engine`]: temperature, noise, AdamW and the reference policy all act.

use std::sync::Arc;

use qerl::control::Cancel;
use qerl::engine::adamw8::{self, Which};
use qerl::engine::{
    AdamW, Batch, Completion, Engine, Finish, Memory, Moments, NamedTensor, NoiseReport, NormNoise, OptimizerState,
    Pass, Request, Scores,
};
use qerl::model::{Architecture, ModelConfig};
use qerl::rl::random::{key, normal};
use qerl::{Error, Result};

/// EOS, digits 1..=9, the prompts 10 + digit, and filler, so that the table is large enough for 8-bit moments.
pub const VOCAB: usize = 64;
pub const EOS: u32 = 0;

pub struct Fake {
    config: ModelConfig,
    table: Vec<f32>,
    gradient: Vec<f64>,
    m: Vec<f32>,
    v: Vec<f32>,
    steps: u64,
    noise: Vec<f32>,
    adapter: bool,
    last: Option<Batch>,
    /// Norms of the gradient at each apply.
    pub norms: Vec<f64>,
    /// Every sigma and seed that was set.
    pub noises: Vec<Option<NormNoise>>,
    /// Cancels after so many generate calls.
    pub cancel_after: Option<usize>,
    pub generated: usize,
    /// Requests seen.
    pub requests: Vec<Request>,
    /// From this optimizer step on, log-probs are NaN.
    pub poison: Option<u64>,
}

impl Fake {
    pub fn new() -> Self {
        let config = ModelConfig {
            architecture: Architecture::Qwen2,
            vocab_size: VOCAB,
            hidden_size: 1,
            intermediate_size: 1,
            num_layers: 1,
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: 1,
            max_position: 64,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            rope_scaling: None,
            tie_word_embeddings: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
        };
        // Digits and EOS are likelier than prompts, and a digit is likely followed by EOS.
        let mut table = vec![0.0; VOCAB * VOCAB];
        for last in 0..VOCAB {
            for next in 0..VOCAB {
                let favoured = if last < 10 { next == 0 } else { (1..10).contains(&next) };
                table[last * VOCAB + next] = if favoured {
                    2.0
                } else if next < 20 {
                    0.0
                } else {
                    -6.0
                };
            }
        }
        Self {
            config,
            gradient: vec![0.0; table.len()],
            m: vec![0.0; table.len()],
            v: vec![0.0; table.len()],
            table,
            steps: 0,
            noise: vec![0.0; VOCAB],
            adapter: true,
            last: None,
            norms: Vec::new(),
            noises: Vec::new(),
            cancel_after: None,
            generated: 0,
            requests: Vec::new(),
            poison: None,
        }
    }

    fn log_softmax(&self, last: u32, temperature: f32) -> Vec<f64> {
        let temperature = if temperature == 0.0 { 1.0 } else { f64::from(temperature) };
        let start = last as usize * VOCAB;
        let logits: Vec<f64> = (0..VOCAB)
            .map(|next| {
                let weight = if self.adapter { f64::from(self.table[start + next]) } else { 0.0 };
                let norm = if self.adapter { 1.0 + f64::from(self.noise[next]) } else { 1.0 };
                weight * norm / temperature
            })
            .collect();
        let max = logits.iter().copied().fold(f64::MIN, f64::max);
        let z = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
        logits.iter().map(|l| l - z).collect()
    }
}

impl Engine for Fake {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn generate(
        &mut self,
        requests: &[Request],
        eos: &[u32],
        cancel: &Cancel,
        tick: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>> {
        self.generated += 1;
        if self.cancel_after.is_some_and(|n| self.generated > n) {
            cancel.cancel();
            return Err(Error::cancelled());
        }
        self.requests.extend_from_slice(requests);
        let mut out = Vec::new();
        for request in requests {
            let mut last = *request.prompt.last().unwrap();
            let mut done = Completion { tokens: vec![], log_probs: vec![], finish: Finish::Length };
            while done.tokens.len() < request.max_new_tokens {
                let log_probs = self.log_softmax(last, request.sampling.temperature);
                let token = if request.sampling.temperature == 0.0 {
                    (0..VOCAB).max_by(|a, b| log_probs[*a].total_cmp(&log_probs[*b]).then(b.cmp(a))).unwrap()
                } else {
                    let u = key(request.seed, "token", done.tokens.len() as u64, 0) as f64 / u64::MAX as f64;
                    let mut mass = 0.0;
                    (0..VOCAB)
                        .find(|t| {
                            mass += log_probs[*t].exp();
                            u < mass
                        })
                        .unwrap_or(VOCAB - 1)
                };
                done.tokens.push(token as u32);
                done.log_probs.push(log_probs[token] as f32);
                last = token as u32;
                if eos.contains(&last) {
                    done.finish = Finish::Eos;
                    break;
                }
            }
            out.push(done);
            tick(out.len(), 1);
        }
        Ok(out)
    }

    fn forward(&mut self, batch: &Batch, pass: Pass) -> Result<Scores> {
        let mut scores = Scores::default();
        for row in &batch.rows {
            let mut last = *row.prompt.last().unwrap();
            let (mut log_probs, mut entropies) = (Vec::new(), Vec::new());
            for &token in &row.completion {
                let all = self.log_softmax(last, batch.temperature);
                let bad = self.poison.is_some_and(|step| self.steps >= step);
                log_probs.push(if bad { f32::NAN } else { all[token as usize] as f32 });
                entropies.push(all.iter().map(|l| -l.exp() * l).sum::<f64>() as f32);
                last = token;
            }
            scores.log_probs.push(log_probs);
            scores.entropies.push(entropies);
        }
        self.last = (pass == Pass::Train).then(|| batch.clone());
        Ok(scores)
    }

    fn backward(&mut self, d_log_probs: &[Vec<f32>], d_entropies: &[Vec<f32>]) -> Result<()> {
        let batch = self.last.take().ok_or_else(|| Error::failed("backward without forward"))?;
        for (i, row) in batch.rows.iter().enumerate() {
            let mut last = *row.prompt.last().unwrap();
            for (j, &token) in row.completion.iter().enumerate() {
                let all = self.log_softmax(last, batch.temperature);
                let entropy: f64 = all.iter().map(|l| -l.exp() * l).sum();
                let d_entropy = d_entropies.get(i).map_or(0.0, |d| f64::from(d[j]));
                for (next, log_p) in all.iter().enumerate() {
                    let p = log_p.exp();
                    let hit = if next == token as usize { 1.0 } else { 0.0 };
                    let by_logit = f64::from(d_log_probs[i][j]) * (hit - p) - d_entropy * p * (log_p + entropy);
                    let scale = (1.0 + f64::from(self.noise[next])) / f64::from(batch.temperature);
                    self.gradient[last as usize * VOCAB + next] += by_logit * scale;
                }
                last = token;
            }
        }
        Ok(())
    }

    fn clear_gradients(&mut self) {
        self.gradient.fill(0.0);
    }

    fn gradients(&self) -> Result<Vec<NamedTensor>> {
        let data = self.gradient.iter().map(|g| *g as f32).collect();
        Ok(vec![NamedTensor { name: "table".into(), shape: vec![VOCAB, VOCAB], data }])
    }

    fn apply(&mut self, step: &AdamW) -> Result<f64> {
        let norm = self.gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        self.norms.push(norm);
        if norm.is_finite() {
            self.steps += 1;
            let max = f64::from(step.max_grad_norm);
            let scale = if max > 0.0 && norm > max { max / norm } else { 1.0 };
            let (b1, b2) = step.betas;
            let (c1, c2) = (1.0 - b1.powi(self.steps as i32), 1.0 - b2.powi(self.steps as i32));
            for i in 0..self.table.len() {
                let g = (self.gradient[i] * scale) as f32;
                self.m[i] = b1 * self.m[i] + (1.0 - b1) * g;
                self.v[i] = b2 * self.v[i] + (1.0 - b2) * g * g;
                self.table[i] *= 1.0 - step.lr * step.weight_decay;
                self.table[i] -= step.lr * (self.m[i] / c1) / ((self.v[i] / c2).sqrt() + step.eps);
            }
            if step.moments == Moments::Blockwise8 {
                round(Which::First, &mut self.m);
                round(Which::Second, &mut self.v);
            }
        }
        self.clear_gradients();
        Ok(norm)
    }

    fn logits(&mut self, _: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        Err(Error::failed("not needed"))
    }

    fn set_norm_noise(&mut self, noise: Option<NormNoise>) -> Result<NoiseReport> {
        self.noises.push(noise);
        self.noise.fill(0.0);
        let Some(noise) = noise else { return Ok(NoiseReport::default()) };
        for (i, n) in self.noise.iter_mut().enumerate() {
            *n = noise.sigma * normal(noise.seed, "norm", 0, i as u64) as f32;
        }
        let n = VOCAB as f64;
        let std = (self.noise.iter().map(|v| f64::from(v * v)).sum::<f64>() / n).sqrt();
        Ok(NoiseReport { measured_std: std, relative_std: std })
    }

    fn set_adapter_enabled(&mut self, enabled: bool) {
        self.adapter = enabled;
    }

    fn parameters(&self) -> Result<Vec<NamedTensor>> {
        Ok(vec![NamedTensor { name: "table".into(), shape: vec![VOCAB, VOCAB], data: self.table.clone() }])
    }

    fn set_parameters(&mut self, parameters: &[NamedTensor]) -> Result<()> {
        self.table.clone_from(&parameters[0].data);
        Ok(())
    }

    fn optimizer_state(&self) -> Result<OptimizerState> {
        let tensor = |name: &str, data: &[f32]| NamedTensor {
            name: name.into(),
            shape: vec![VOCAB, VOCAB],
            data: data.to_vec(),
        };
        Ok(OptimizerState { step: self.steps, tensors: vec![tensor("table.m", &self.m), tensor("table.v", &self.v)] })
    }

    fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()> {
        self.steps = state.step;
        for tensor in &state.tensors {
            let target = if tensor.name == "table.m" { &mut self.m } else { &mut self.v };
            target.clone_from(&tensor.data);
        }
        Ok(())
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }
}

/// To codes and back.
fn round(which: Which, values: &mut [f32]) {
    for block in values.chunks_mut(adamw8::BLOCK) {
        let mut codes = vec![0; block.len()];
        let scale = adamw8::quantize(which, block, &mut codes);
        adamw8::dequantize(which, &codes, scale, block);
    }
}

/// Prompts 11..=15, whose right completion is the digit 1..=5.
pub fn tasks() -> Vec<qerl::rl::rollout::Task> {
    (1..=5u32)
        .map(|digit| qerl::rl::rollout::Task {
            prompt: Arc::from([10 + digit]),
            text: format!("which digit is {digit}?"),
            answer: digit.to_string(),
        })
        .collect()
}

/// Digits inside answer tags.
pub fn decode(tokens: &[u32]) -> Result<String> {
    let text: String = tokens.iter().map(|t| if *t < 10 { t.to_string() } else { "x".into() }).collect();
    Ok(format!("<answer>{text}</answer>"))
}
