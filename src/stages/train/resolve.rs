//! From the configuration to what the trainer runs with: presets filled in, contradictions refused.

use super::Config;
use crate::engine::Sampling;
use crate::rl::loss::LossSpec;
use crate::rl::settings::{OptimizerSettings, Settings, scaling};
use crate::rl::{
    Algorithm, CorrectionKind, DynamicSampling, KlEstimator, Loss, Normalization, OldLogProbs, RewardAggregation,
};
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
            shuffle_rewards: self.shuffle_rewards,
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
            ("dual_clip", self.dual_clip.is_none_or(|c| c >= 1.0 && c.is_finite()), "1 or more"),
            ("cispo", self.cispo.is_none_or(|c| c > 0.0 && c.is_finite()), "above 0"),
            ("off_policy_mask", self.off_policy_mask.is_none_or(|m| m >= 0.0 && m.is_finite()), "0 or more"),
            ("correction.max", self.correction.is_none_or(|c| c.max > 0.0 && c.max.is_finite()), "above 0"),
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
        if let Some((key, why)) = self.unread() {
            return Err(Error::usage(format!("{key} would not be read: {why}"))
                .hint("leave it out, or change what it depends on"));
        }
        if (self.eval_every > 0) != self.eval_data.is_some() {
            return Err(Error::usage("eval_every and eval_data belong together: set both or neither"));
        }
        self.aqn.as_ref().map_or(Ok(()), crate::rl::Aqn::validate)
    }

    /// A key that was set although nothing would read it beside the others, and why. Keys whose default cannot be told
    /// from a value that was written count as set where they differ from the default.
    fn unread(&self) -> Option<(&'static str, &'static str)> {
        let preset = self.algorithm.preset();
        let no_reference = self.beta.unwrap_or(preset.beta) == 0.0;
        let no_kl = "with beta 0 there is no KL term";
        let dynamic = self.dynamic_sampling;
        // Off by the preset of a variant, a bound given for all of them is no mistake.
        let no_refills = dynamic.enabled == Some(false);
        let not_punished = self.overlong.factor.unwrap_or(preset.overlong_factor) == 0.0;
        let truncates = self
            .correction
            .is_some_and(|c| matches!(c.kind, CorrectionKind::TokenTruncate | CorrectionKind::SequenceTruncate));
        let rules = [
            (no_reference && self.kl != KlEstimator::default(), "kl", no_kl),
            (no_reference && self.kl_bias_correction, "kl_bias_correction", no_kl),
            (no_reference && self.early_stop.max_kl.is_some(), "early_stop.max_kl", no_kl),
            (
                self.cispo.is_some() && (self.clip.low.is_some() || self.clip.high.is_some()),
                "clip",
                "cispo caps the ratio by its own bound",
            ),
            (self.cispo.is_some() && self.dual_clip.is_some(), "dual_clip", "cispo has no clipped branch"),
            (
                self.reward_aggregation == RewardAggregation::NormalizeThenSum
                    && self.advantage.is_some_and(|a| a != Normalization::Group),
                "advantage",
                "reward_aggregation normalize_then_sum normalises by group and then over the batch",
            ),
            (
                self.correction.is_some() && self.old_log_probs == OldLogProbs::Sampler,
                "correction",
                "with old_log_probs sampler old and sampler are the same",
            ),
            (
                truncates && self.correction.is_some_and(|c| c.min.is_some()),
                "correction.min",
                "truncation has an upper bound only",
            ),
            (
                no_refills && dynamic.max_refills != DynamicSampling::default().max_refills,
                "dynamic_sampling.max_refills",
                "dynamic sampling is off",
            ),
            (not_punished && self.overlong.cache.is_some(), "overlong.cache", "overlong.factor is 0"),
            (self.eval_data.is_none() && self.eval_limit != super::eval_limit(), "eval_limit", "there is no eval_data"),
        ];
        rules.into_iter().find(|(unread, _, _)| *unread).map(|(_, key, why)| (key, why))
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

    /// No option is silently ignored.
    #[test]
    fn keys_that_nothing_would_read_are_refused_by_name() {
        for (key, bad) in [
            ("kl", r#"{"steps": 10, "kl": "k1"}"#),
            ("kl_bias_correction", r#"{"steps": 10, "kl_bias_correction": true}"#),
            ("early_stop.max_kl", r#"{"steps": 10, "early_stop": {"max_kl": 1}}"#),
            ("clip", r#"{"steps": 10, "cispo": 2, "clip": {"high": 0.3}}"#),
            ("dual_clip", r#"{"steps": 10, "cispo": 2, "dual_clip": 3}"#),
            ("advantage", r#"{"steps": 10, "reward_aggregation": "normalize_then_sum", "advantage": "none"}"#),
            ("correction", r#"{"steps": 10, "old_log_probs": "sampler", "correction": {"kind": "token_mask"}}"#),
            ("correction.min", r#"{"steps": 10, "correction": {"kind": "token_truncate", "min": 0.5}}"#),
            (
                "dynamic_sampling.max_refills",
                r#"{"steps": 10, "dynamic_sampling": {"enabled": false, "max_refills": 9}}"#,
            ),
            ("overlong.cache", r#"{"steps": 10, "algorithm": "grpo", "overlong": {"cache": 9}}"#),
            ("eval_limit", r#"{"steps": 10, "eval_limit": 9}"#),
        ] {
            let error = config(bad).settings().unwrap_err();
            assert!(error.to_string().starts_with(&format!("{key} would not be read")), "{error}");
        }
        for good in [
            r#"{"steps": 10, "kl": "k1", "beta": 0.1}"#,
            r#"{"steps": 10, "correction": {"kind": "token_mask", "min": 0.5}}"#,
            r#"{"steps": 10, "algorithm": "grpo", "dynamic_sampling": {"enabled": true, "max_refills": 9}}"#,
            r#"{"steps": 10, "algorithm": "grpo", "dynamic_sampling": {"max_refills": 9}}"#,
        ] {
            config(good).settings().unwrap();
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
