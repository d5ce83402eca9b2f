//! The training loop: rollout with fresh noise, rewards, advantages, updates, metrics, checkpoints.
//!
//! State between rollouts is the engine's parameters, its optimizer's moments and [`Counters`]; everything random is
//! a function of those and the seed, so a run that was killed anywhere continues bit by bit.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::advantage::{advantages, mean, std_dev};
use super::checkpoint::{Checkpoints, Counters};
use super::metrics::{Journal, Record};
use super::random::key;
use super::rewards::RewardSet;
use super::rollout::{Decode, Order, Rollout, Row, Source, Task};
use super::settings::Settings;
use super::step::{Shared, Update, counted, reference, score};
use crate::control::{Cancel, Progress};
use crate::engine::{Engine, NoiseReport, NormNoise};
use crate::error::Kind;
use crate::{Error, Result};

/// Everything a run reads.
pub struct Trainer<'a> {
    pub engine: &'a mut dyn Engine,
    pub settings: &'a Settings,
    pub tasks: &'a [Task],
    /// Problems for the evaluation while training; may be empty.
    pub eval_tasks: &'a [Task],
    pub rewards: RewardSet,
    /// Every id that ends a completion.
    pub eos: &'a [u32],
    pub decode: &'a Decode<'a>,
    /// Checkpoints and metrics.jsonl live here.
    pub work: &'a Path,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
}

/// How a run ended; the engine holds its last good parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub counters: Counters,
    /// metrics.jsonl in the work folder.
    pub metrics: PathBuf,
    /// Where parameters kept on the way lie: see [`Checkpoints::kept`].
    pub checkpoints: PathBuf,
}

/// Noise of the current rollout.
#[derive(Clone, Copy, Debug, Default)]
struct Noise {
    sigma: f64,
    seed: u64,
    report: NoiseReport,
    /// Entropy of the noisy policy on the first group.
    entropy: Option<f64>,
    /// Entropy of the clean policy on the same group.
    clean_entropy: Option<f64>,
}

impl Noise {
    fn on(&self) -> Option<NormNoise> {
        (self.sigma > 0.0).then_some(NormNoise { sigma: self.sigma as f32, seed: self.seed })
    }
}

impl Trainer<'_> {
    /// Trains up to `settings.stop_at`, from the newest checkpoint in the work folder where there is one.
    pub fn run(mut self) -> Result<Finished> {
        if self.tasks.is_empty() {
            return Err(Error::input("there is no problem to train on")
                .hint("the data set is empty, or every prompt is longer than max_prompt_tokens"));
        }
        let checkpoints = Checkpoints::open(&self.work.join("checkpoints"))?;
        self.engine.set_norm_noise(None)?;
        let (restored, warnings) = checkpoints.restore(self.engine, self.settings.stop_at)?;
        warnings.iter().for_each(|line| self.progress.say(line));
        let mut counters = match restored {
            Some(counters) => {
                self.progress.say(&format!("continuing after step {}", counters.step));
                counters
            }
            None => {
                let fresh = Counters::default();
                checkpoints.save(self.engine, &fresh)?;
                fresh
            }
        };
        let journal = Journal::open(&self.work.join("metrics.jsonl"), counters.step)?;
        self.progress.total(self.settings.stop_at, "steps");
        let mut order = Order::new(self.settings.seed, self.tasks.len());
        let mut saved = counters.step;
        while counters.step < self.settings.stop_at && counters.stopped.is_none() {
            let before = counters.step;
            let result =
                self.cancel.check().and_then(|()| self.advance(&mut counters, &mut order, &journal, &checkpoints));
            if let Err(error) = result {
                // A cancelled rollout has changed nothing: the state is that of the last whole step.
                let untouched = counters.step == before && before > saved && counters.bad_streak == 0;
                if error.kind() == Kind::Cancelled && untouched {
                    self.engine.set_norm_noise(None)?;
                    self.engine.clear_gradients();
                    checkpoints.save(self.engine, &counters)?;
                }
                return Err(error);
            }
            let whole = (counters.step - before) == self.settings.updates_per_rollout;
            let due = crossed(before, counters.step, self.settings.checkpoint_every);
            if counters.bad_streak == 0 && whole && (due || counters.step == self.settings.stop_at) {
                checkpoints.save(self.engine, &counters)?;
                saved = counters.step;
            }
        }
        if let Some(reason) = &counters.stopped {
            let (good, _) = checkpoints.restore(self.engine, self.settings.stop_at)?;
            let step = good.map_or(0, |c| c.step);
            self.progress.say(&format!("training ended early: {reason}; the state of step {step} is kept"));
            counters.kept.retain(|s| *s <= step);
        }
        Ok(Finished { counters, metrics: self.work.join("metrics.jsonl"), checkpoints: self.work.join("checkpoints") })
    }

    /// One rollout and the updates on it.
    fn advance(
        &mut self,
        counters: &mut Counters,
        order: &mut Order,
        journal: &Journal,
        checkpoints: &Checkpoints,
    ) -> Result<()> {
        let settings = self.settings;
        let start = Instant::now();
        let sigma = settings.sigma(counters.step);
        let mut noise = Noise { sigma, seed: key(settings.seed, "noise", counters.step, 0), ..Noise::default() };
        noise.report = self.engine.set_norm_noise(noise.on())?;
        let source = Source {
            settings,
            tasks: self.tasks,
            eos: self.eos,
            decode: self.decode,
            progress: self.progress,
            cancel: self.cancel,
            step: counters.step,
        };
        let rollout = source.rollout(self.engine, &mut self.rewards, order, counters.cursor)?;
        self.measure_noise(&mut noise, &rollout)?;
        let mut shared = self.prepare(&noise, &rollout)?;
        let mut base = self.describe(&rollout, &shared, &noise);
        base.set("time/rollout", rollout.seconds);

        // From here on the parameters change: the updates on one rollout are finished, then a stop is looked at.
        counters.cursor += rollout.taken;
        let first = counters.step;
        let updates = settings.updates_per_rollout.min(settings.stop_at - counters.step);
        let mut lap = start;
        for _ in 0..updates {
            let update = shared.update(self.engine, settings, &rollout, counters.step)?;
            counters.tokens += update.all_tokens as u64;
            counters.step += 1;
            let bad = diverged(settings, &update);
            counters.bad_streak = if bad.is_some() { counters.bad_streak + 1 } else { 0 };
            if let Some(reason) = bad.filter(|_| counters.bad_streak >= settings.early_stop.patience) {
                counters.stopped = Some(format!("{reason} for {} steps in a row", counters.bad_streak));
            }
            let mut record = self.record(&base, counters, &update);
            record.set("time/update", update.seconds);
            // The rollout belongs to the first update on it, as in step_time.
            base.set("time/rollout", 0.0);
            record.set("step_time", lap.elapsed().as_secs_f64());
            lap = Instant::now();
            let last = counters.step == first + updates || counters.stopped.is_some();
            if last {
                self.engine.set_norm_noise(None)?;
                self.evaluate(counters, first, &mut record, checkpoints)?;
            }
            journal.append(&record)?;
            self.progress.figures(record.figures());
            let note = format!(
                "reward {:.3} entropy {:.3}",
                record.get("reward").unwrap_or(0.0),
                record.get("entropy").unwrap_or(0.0)
            );
            self.progress.at(counters.step, &note);
            if counters.stopped.is_some() {
                break;
            }
        }
        if settings.keep_every > 0 && crossed(first, counters.step, settings.keep_every) {
            checkpoints.keep(&counters.step.to_string(), self.engine)?;
            if !counters.kept.contains(&counters.step) {
                counters.kept.push(counters.step);
            }
        }
        Ok(())
    }

    /// Entropy with noise on the first group; takes the noise off unless training shall see it.
    fn measure_noise(&mut self, noise: &mut Noise, rollout: &Rollout) -> Result<()> {
        if noise.sigma == 0.0 {
            return Ok(());
        }
        let probe = probe(self.settings, rollout);
        noise.entropy = self.mean_entropy(&probe)?;
        self.engine.set_norm_noise(None)?;
        noise.clean_entropy = self.mean_entropy(&probe)?;
        Ok(())
    }

    fn mean_entropy(&mut self, rows: &[&Row]) -> Result<Option<f64>> {
        let scores = score(self.engine, self.settings, rows)?;
        let all: Vec<Option<f64>> = scores.entropies.iter().flatten().map(|&e| Some(f64::from(e))).collect();
        Ok(mean(&all))
    }

    /// Advantages, reference log-probs (noise is off here), then the noise again where training sees it.
    fn prepare(&mut self, noise: &Noise, rollout: &Rollout) -> Result<Shared> {
        let settings = self.settings;
        let mut weights = self.rewards.weights();
        if settings.overlong_factor > 0.0 {
            weights.push(1.0);
        }
        let rewards: Vec<Vec<Option<f64>>> = rollout.rows.iter().map(|r| r.rewards.clone()).collect();
        let advantages = advantages(&rewards, &weights, &rollout.groups, settings.scaling);
        let rows: Vec<&Row> = counted(settings, rollout).into_iter().map(|i| &rollout.rows[i]).collect();
        let reference = if settings.loss.beta > 0.0 { Some(reference(self.engine, settings, &rows)?) } else { None };
        if settings.trains_noisy() {
            self.engine.set_norm_noise(noise.on())?;
        }
        Shared::new(self.engine, settings, rollout, advantages, reference)
    }

    /// Evaluates where it is due, and keeps the best parameters so far.
    fn evaluate(
        &mut self,
        counters: &mut Counters,
        before: u64,
        record: &mut Record,
        checkpoints: &Checkpoints,
    ) -> Result<()> {
        let every = self.settings.eval_every;
        let due = every > 0 && (crossed(before, counters.step, every) || counters.step == self.settings.stop_at);
        if !due || self.eval_tasks.is_empty() || counters.bad_streak > 0 {
            return Ok(());
        }
        // A stop must not tear an evaluation from its step: it is finished first.
        let calm = Cancel::new();
        let source = Source {
            settings: self.settings,
            tasks: self.eval_tasks,
            eos: self.eos,
            decode: self.decode,
            progress: self.progress,
            cancel: &calm,
            step: counters.step,
        };
        let accuracy = source.evaluate(self.engine, self.eval_tasks)?;
        record.set("eval/accuracy", accuracy);
        if counters.best.is_none_or(|(_, best)| accuracy > best) {
            counters.best = Some((counters.step, accuracy));
            checkpoints.keep("best", self.engine)?;
        }
        Ok(())
    }

    /// The figures of a rollout, the same for each update on it.
    fn describe(&self, rollout: &Rollout, shared: &Shared, noise: &Noise) -> Record {
        let mut out = Record::default();
        let rewards = &shared.advantages.rewards;
        let rows = &rollout.rows;
        let share = |n: usize| n as f64 / rows.len().max(1) as f64;
        out.set("reward", mean(rewards).unwrap_or(f64::NAN));
        out.set("reward_std", std_dev(rewards).unwrap_or(0.0));
        out.set("frac_reward_zero_std", share(shared.advantages.zero_std.iter().filter(|z| **z).count()));
        let names = self.rewards.names().chain((self.settings.overlong_factor > 0.0).then_some("overlong"));
        for (f, name) in names.enumerate() {
            let column: Vec<Option<f64>> = rows.iter().map(|r| r.rewards[f]).collect();
            out.set(&format!("rewards/{name}/mean"), mean(&column).unwrap_or(f64::NAN));
            out.set(&format!("rewards/{name}/std"), std_dev(&column).unwrap_or(0.0));
        }
        // Of all completions: the batch that is trained on is a biased choice under dynamic sampling.
        if self.rewards.judge().is_some() {
            let generated = (rollout.generated * self.settings.group_size).max(1);
            out.set("rollout/accuracy", rollout.signal_sum / generated as f64);
        }
        // Lengths are those of the completions, whatever the loss masks.
        lengths(&mut out, "length", rows.iter().map(|r| r.tokens.len()).collect());
        let ended: Vec<usize> = rows.iter().filter(|r| !r.truncated).map(|r| r.tokens.len()).collect();
        lengths(&mut out, "terminated_length", ended);
        out.set("completions/clipped_ratio", share(rows.iter().filter(|r| r.truncated).count()));
        if self.settings.max_refills.is_some() {
            out.count("dynamic_sampling/refills", rollout.refills as u64);
            out.count("dynamic_sampling/generated_groups", rollout.generated as u64);
            out.count("dynamic_sampling/kept_groups", rollout.groups.len() as u64);
        }
        out.set("aqn/sigma", noise.sigma);
        if noise.sigma > 0.0 {
            out.set("aqn/measured_std", noise.report.measured_std);
            out.set("aqn/relative_std", noise.report.relative_std);
            if let (Some(noisy), Some(clean)) = (noise.entropy, noise.clean_entropy) {
                out.set("aqn/entropy_gain", noisy - clean);
            }
        }
        out.set("rollout/tok_s", rollout.new_tokens as f64 / rollout.seconds.max(1e-9));
        out
    }

    fn record(&self, base: &Record, counters: &Counters, update: &Update) -> Record {
        let mut out = Record::new(counters.step);
        out.extend(base);
        out.set("loss", update.loss);
        out.set("entropy", update.mean_entropy());
        if self.settings.loss.beta > 0.0 {
            out.set("kl", update.mean_kl());
        }
        let clips = update.clip_base.max(1.0);
        out.set("clip_ratio/low_mean", update.clipped_low / clips);
        out.set("clip_ratio/high_mean", update.clipped_high / clips);
        out.set("clip_ratio/region_mean", (update.clipped_low + update.clipped_high) / clips);
        let tokens = update.tokens.max(1) as f64;
        out.set("sampling/sampling_logp_difference/mean", update.sampling_difference_sum / tokens);
        out.set("sampling/sampling_logp_difference/max", update.sampling_difference_max);
        out.set("grad_norm", update.grad_norm);
        out.set("learning_rate", self.settings.optimizer.learning_rate(counters.step - 1));
        out.set("epoch", counters.cursor as f64 / self.tasks.len() as f64);
        out.count("num_tokens", counters.tokens);
        out.set("train/tok_s", update.all_tokens as f64 / update.seconds.max(1e-9));
        let memory = self.engine.memory();
        let peak = memory.weights + memory.adapter + memory.optimizer + memory.kv_cache_peak + memory.activations_peak;
        out.set("memory/peak_gib", peak as f64 / f64::from(1 << 30));
        out
    }
}

/// The rows on which noise is measured: the first group's.
fn probe<'r>(settings: &Settings, rollout: &'r Rollout) -> Vec<&'r Row> {
    rollout.rows.iter().take(settings.group_size).filter(|r| !r.tokens.is_empty()).collect()
}

/// Whether a multiple of `every` lies in before+1..=after.
fn crossed(before: u64, after: u64, every: u64) -> bool {
    every > 0 && after / every > before / every
}

fn lengths(out: &mut Record, name: &str, lengths: Vec<usize>) {
    let all: Vec<Option<f64>> = lengths.iter().map(|&n| Some(n as f64)).collect();
    out.set(&format!("completions/mean_{name}"), mean(&all).unwrap_or(0.0));
    out.set(&format!("completions/min_{name}"), lengths.iter().min().copied().unwrap_or(0) as f64);
    out.set(&format!("completions/max_{name}"), lengths.iter().max().copied().unwrap_or(0) as f64);
}

/// Why a step looks diverged.
fn diverged(settings: &Settings, update: &Update) -> Option<String> {
    if update.rows == 0 {
        return None;
    }
    let stop = &settings.early_stop;
    if !update.loss.is_finite() || !update.grad_norm.is_finite() {
        return Some("the loss or its gradient was not finite".to_owned());
    }
    if let Some(limit) = stop.max_kl.filter(|limit| settings.loss.beta > 0.0 && update.mean_kl() > *limit) {
        return Some(format!("the KL to the reference was above {limit}"));
    }
    if let Some(limit) = stop.min_entropy.filter(|limit| update.mean_entropy() < *limit) {
        return Some(format!("the entropy was below {limit}"));
    }
    None
}
