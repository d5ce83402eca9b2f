//! From the configuration to what the trainer runs with: presets filled in, contradictions refused.

use super::Config;
use crate::engine::Sampling;
use crate::rl::loss::LossSpec;
use crate::rl::settings::{OptimizerSettings, Settings, scaling};
use crate::rl::{Algorithm, Loss, Normalization};
use crate::{Error, Result};

/// What a preset sets.
struct Preset {
    loss: Loss,
    clip_high: f64,
    beta: f64,
    dynamic_sampling: bool,
    overlong_factor: f64,
}

impl Algorithm {
    fn preset(self) -> Preset {
        match self {
            Self::Grpo => {
                Preset { loss: Loss::Grpo, clip_high: 0.2, beta: 0.04, dynamic_sampling: false, overlong_factor: 0.0 }
            }
            Self::Dapo => {
                Preset { loss: Loss::Dapo, clip_high: 0.28, beta: 0.0, dynamic_sampling: true, overlong_factor: 1.0 }
            }
        }
    }
}

/// Both presets' lower clip bound.
const CLIP_LOW: f64 = 0.2;
/// The share of max_completion that DAPO punishes (4096 of 20480 tokens).
const OVERLONG_SHARE: usize = 5;

impl Config {
    /// The resolved settings; an error names the key that cannot be.
    pub fn settings(&self) -> Result<Settings> {
        self.check()?;
        let preset = self.algorithm.preset();
        let loss = self.loss.unwrap_or(preset.loss);
        let normalization = self.advantage.unwrap_or(match loss {
            Loss::DrGrpo => Normalization::None,
            _ => Normalization::Group,
        });
        let dynamic = self.dynamic_sampling;
        Ok(Settings {
            steps: self.steps,
            stop_at: self.stop_at.unwrap_or(self.steps),
            prompts_per_step: self.prompts_per_step,
            group_size: self.group_size,
            updates_per_rollout: self.updates_per_rollout,
            micro_batch_tokens: self.micro_batch_tokens,
            max_completion: self.max_completion,
            sampling: Sampling {
                temperature: self.temperature as f32,
                top_p: self.top_p as f32,
                top_k: self.top_k,
                min_p: 0.0,
            },
            loss: LossSpec {
                loss,
                ratio: self.ratio,
                clip_low: self.clip.low.unwrap_or(CLIP_LOW),
                clip_high: self.clip.high.unwrap_or(preset.clip_high),
                beta: self.beta.unwrap_or(preset.beta),
                kl: self.kl,
                kl_bias_correction: self.kl_bias_correction,
                correction: self.correction,
                off_policy_mask: self.off_policy_mask,
                dual_clip: self.dual_clip,
                cispo: self.cispo,
                entropy_bonus: self.entropy_bonus,
                max_completion: self.max_completion,
            },
            scaling: scaling(normalization, self.reward_aggregation),
            mask_truncated: self.mask_truncated,
            overlong_cache: self.overlong.cache.unwrap_or((self.max_completion / OVERLONG_SHARE).max(1)),
            overlong_factor: self.overlong.factor.unwrap_or(preset.overlong_factor),
            entropy_quantile: self.entropy_quantile,
            max_refills: dynamic.enabled.unwrap_or(preset.dynamic_sampling).then_some(dynamic.max_refills),
            old_log_probs: self.old_log_probs,
            aqn: self.aqn.clone(),
            optimizer: OptimizerSettings {
                kind: self.optimizer,
                lr: self.lr,
                lr_schedule: self.lr_schedule,
                warmup: self.warmup,
                weight_decay: self.weight_decay,
                betas: self.betas,
                max_grad_norm: self.max_grad_norm,
                horizon: self.steps,
            },
            seed: self.seed,
            checkpoint_every: self.checkpoint_every,
            keep_every: self.keep_every,
            eval_every: self.eval_every,
            early_stop: self.early_stop,
        })
    }

    /// Refuses values the schema alone cannot rule out.
    fn check(&self) -> Result<()> {
        let positive = [
            ("steps", self.steps > 0),
            ("prompts_per_step", self.prompts_per_step > 0),
            ("group_size", self.group_size > 0),
            ("updates_per_rollout", self.updates_per_rollout > 0),
            ("micro_batch_tokens", self.micro_batch_tokens > 0),
            ("max_completion", self.max_completion > 0),
            ("checkpoint_every", self.checkpoint_every > 0),
            ("temperature", self.temperature > 0.0 && self.temperature.is_finite()),
            ("early_stop.patience", self.early_stop.patience > 0),
        ];
        for (key, ok) in positive {
            if !ok {
                return Err(Error::usage(format!("{key} must be above 0")));
            }
        }
        let within = [
            ("top_p", self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("entropy_quantile", self.entropy_quantile > 0.0 && self.entropy_quantile <= 1.0, "above 0 and at most 1"),
            ("warmup", (0.0..=1.0).contains(&self.warmup), "within 0..1"),
            ("betas", self.betas.iter().all(|b| (0.0..1.0).contains(b)), "within 0..1, 1 excluded"),
            ("lr", self.lr >= 0.0 && self.lr.is_finite(), "0 or more"),
            ("weight_decay", self.weight_decay >= 0.0 && self.weight_decay.is_finite(), "0 or more"),
            ("max_grad_norm", self.max_grad_norm >= 0.0 && self.max_grad_norm.is_finite(), "0 or more"),
            ("beta", self.beta.is_none_or(|b| b >= 0.0 && b.is_finite()), "0 or more"),
            ("clip.low", self.clip.low.is_none_or(|c| (0.0..=1.0).contains(&c)), "within 0..1"),
            ("clip.high", self.clip.high.is_none_or(|c| c >= 0.0 && c.is_finite()), "0 or more"),
            ("overlong.factor", self.overlong.factor.is_none_or(|f| f >= 0.0 && f.is_finite()), "0 or more"),
            ("entropy_bonus", self.entropy_bonus.is_finite(), "finite"),
        ];
        for (key, ok, rule) in within {
            if !ok {
                return Err(Error::usage(format!("{key} must be {rule}")));
            }
        }
        if self.stop_at.is_some_and(|stop| stop > self.steps || stop == 0) {
            return Err(Error::usage(format!("stop_at must be within 1..={} (steps)", self.steps))
                .hint("steps is the schedules' horizon; stop_at ends this run earlier"));
        }
        if self.group_size < 2 {
            return Err(Error::usage("group_size must be at least 2: an advantage compares completions of one prompt"));
        }
        if self.overlong.cache.is_some_and(|cache| cache == 0 || cache > self.max_completion) {
            return Err(Error::usage("overlong.cache must be within 1..=max_completion"));
        }
        if let Some(correction) = &self.correction
            && correction.min.is_some_and(|min| min > correction.max)
        {
            return Err(Error::usage("correction.min is above correction.max"));
        }
        let beta = self.beta.unwrap_or(self.algorithm.preset().beta);
        if self.early_stop.max_kl.is_some() && beta == 0.0 {
            return Err(Error::usage("early_stop.max_kl needs beta above 0, or there is no reference to compare with"));
        }
        if (self.eval_every > 0) != self.eval_data.is_some() {
            return Err(Error::usage("eval_every and eval_data belong together: set both or neither"));
        }
        if self.cispo.is_some() && self.dual_clip.is_some() {
            return Err(Error::usage("cispo has no clipped branch, so dual_clip cannot be combined with it"));
        }
        self.aqn.as_ref().map_or(Ok(()), crate::rl::Aqn::validate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let mut map: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        map.insert("policy".into(), "policy".into());
        map.insert("data".into(), "arith".into());
        serde_json::from_value(map.into()).unwrap()
    }

    #[test]
    fn presets_set_defaults_and_keys_override_them() {
        let dapo = config(r#"{"steps": 10}"#).settings().unwrap();
        assert_eq!((dapo.loss.loss, dapo.loss.clip_high, dapo.loss.beta), (Loss::Dapo, 0.28, 0.0));
        assert_eq!((dapo.max_refills, dapo.overlong_factor, dapo.overlong_cache), (Some(4), 1.0, 204));
        let grpo = config(r#"{"steps": 10, "algorithm": "grpo"}"#).settings().unwrap();
        assert_eq!((grpo.loss.loss, grpo.loss.clip_high, grpo.loss.beta), (Loss::Grpo, 0.2, 0.04));
        assert_eq!((grpo.max_refills, grpo.overlong_factor), (None, 0.0));
        let mixed = config(
            r#"{"steps": 10, "loss": "dr_grpo", "clip": {"high": 0.3}, "dynamic_sampling": {"enabled": false},
                "overlong": {"factor": 0}, "stop_at": 4}"#,
        )
        .settings()
        .unwrap();
        assert_eq!((mixed.loss.loss, mixed.loss.clip_high, mixed.max_refills), (Loss::DrGrpo, 0.3, None));
        assert_eq!((mixed.scaling.normalization, mixed.stop_at), (Normalization::None, 4));
    }

    #[test]
    fn contradictions_are_refused() {
        for bad in [
            r#"{"steps": 10, "stop_at": 11}"#,
            r#"{"steps": 10, "group_size": 1}"#,
            r#"{"steps": 10, "eval_every": 5}"#,
            r#"{"steps": 10, "temperature": 0}"#,
            r#"{"steps": 10, "early_stop": {"max_kl": 1}}"#,
            r#"{"steps": 10, "aqn": {"stages": 1}}"#,
            r#"{"steps": 10, "overlong": {"cache": 0}}"#,
        ] {
            assert!(config(bad).settings().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_configuration_survives_being_written_and_read() {
        let before = config(
            r#"{"steps": 3, "rewards": {"accuracy": 1, "mine": {"command": ["a", "b"], "weight": 0.5}},
                "aqn": {"decay": "list", "stages": 3, "values": [0.1, 0.2]}, "optimizer": "adamw_8bit"}"#,
        );
        let json = serde_json::to_value(&before).unwrap();
        assert_eq!(serde_json::from_value::<Config>(json).unwrap(), before);
    }
}
