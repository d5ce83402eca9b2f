//! The stage itself: policy, problems and rewards in, trained checkpoints and metrics out.

use std::sync::Arc;

use serde_json::json;

use super::Config;
use super::finish::{Form, recent};
use crate::data::Problem;
use crate::engine::Engine;
use crate::model::eos_ids;
use crate::rl::checkpoint::Checkpoints;
use crate::rl::language::Language;
use crate::rl::metrics;
use crate::rl::rewards::{RewardSet, Sample};
use crate::rl::rollout::Task;
use crate::rl::trainer::{Finished, Trainer};
use crate::stages::inputs::PolicyFiles;
use crate::stages::{Context, Output};
use crate::{Error, Result};

/// Gold answers that are tried before training starts.
const GOLD_CHECKS: usize = 32;

/// What the stage has read: the problems, and how they are put to the model.
pub struct Material<'a> {
    pub problems: &'a [Problem],
    pub language: &'a dyn Language,
    /// May be empty.
    pub eval_problems: &'a [Problem],
    pub eval_language: &'a dyn Language,
}

/// Trains `engine`, which holds `policy`; continues from `context.work` where an earlier run of the same stage was
/// interrupted.
pub fn train(
    context: &Context<'_>,
    config: &Config,
    policy: &PolicyFiles,
    engine: &mut dyn Engine,
    material: &Material<'_>,
) -> Result<Output> {
    let settings = config.settings()?;
    let form = Form::of(context, &config.policy.0, policy)?;
    let rewards = RewardSet::new(&config.rewards, &context.base_dir)?;
    check_gold(&rewards, material)?;
    let eos = eos_ids(&policy.model)?;
    if eos.is_empty() {
        context.progress.say("the model names no end-of-sequence id: every completion runs to max_completion");
    }
    let tasks = tasks(material.problems, material.language)?;
    let eval_problems = &material.eval_problems[..config.eval_limit.min(material.eval_problems.len())];
    let eval_tasks = tasks_of_eval(eval_problems, material.eval_language)?;
    let decode = |ids: &[u32]| material.language.decode(ids);
    let trainer = Trainer {
        engine,
        settings: &settings,
        tasks: &tasks,
        eval_tasks: &eval_tasks,
        rewards,
        eos: &eos,
        decode: &decode,
        work: &context.work,
        progress: context.progress,
        cancel: context.cancel,
    };
    let finished = trainer.run()?;
    let kept = kept(&finished)?;
    let records = metrics::read(&finished.metrics)?;
    let counters = &finished.counters;
    let mut summary = recent(&records, &["reward", "rollout/accuracy", "entropy", "rollout/tok_s", "train/tok_s"]);
    summary.insert("steps".to_owned(), json!(counters.step));
    summary.insert("num_tokens".to_owned(), json!(counters.tokens));
    summary.insert(
        "best".to_owned(),
        json!(counters.best.map(|(step, accuracy)| json!({"step": step, "accuracy": accuracy}))),
    );
    summary.insert("stopped".to_owned(), json!(counters.stopped));
    form.finish(context, &policy.model, engine, &kept, &finished.metrics, summary.into())
}

fn tasks(problems: &[Problem], language: &dyn Language) -> Result<Vec<Task>> {
    problems
        .iter()
        .map(|problem| {
            let prompt = language.prompt(problem)?;
            if prompt.is_empty() {
                return Err(Error::input(format!("problem {:?} has an empty prompt", problem.id)));
            }
            Ok(Task { prompt: Arc::from(prompt), text: problem.prompt.clone(), answer: problem.answer.clone() })
        })
        .collect()
}

fn tasks_of_eval(problems: &[Problem], language: &dyn Language) -> Result<Vec<Task>> {
    tasks(problems, language).map_err(|e| e.within("eval_data"))
}

/// Fault 18 of the field: the prompt asks for one form and the reward wants another.
fn check_gold(rewards: &RewardSet, material: &Material<'_>) -> Result<()> {
    let problems = &material.problems[..GOLD_CHECKS.min(material.problems.len())];
    let ideal: Vec<String> = problems.iter().map(|p| material.language.ideal(p)).collect();
    let samples: Vec<Sample<'_>> = problems
        .iter()
        .zip(&ideal)
        .map(|(problem, completion)| Sample {
            prompt: &problem.prompt,
            completion,
            answer: &problem.answer,
            tokens: 0,
            truncated: false,
        })
        .collect();
    rewards.check_gold(&samples)
}

/// Parameters kept on the way, by checkpoint name.
fn kept(finished: &Finished) -> Result<Vec<(String, Vec<crate::engine::NamedTensor>)>> {
    let checkpoints = Checkpoints::open(&finished.checkpoints)?;
    let mut names: Vec<String> = finished.counters.kept.iter().map(u64::to_string).collect();
    if finished.counters.best.is_some() {
        names.push("best".to_owned());
    }
    names.into_iter().map(|name| Ok((name.clone(), checkpoints.kept(&name)?))).collect()
}
