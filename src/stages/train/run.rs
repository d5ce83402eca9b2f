//! The stage itself: policy, problems and rewards in, trained checkpoints and metrics out.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::Config;
use super::earlier;
use super::finish::{Form, recent};
use super::parts::Parts;
use crate::data::Problem;
use crate::model::eos_ids;
use crate::rl::checkpoint::Checkpoints;
use crate::rl::language::Language;
use crate::rl::metrics;
use crate::rl::rewards::{RewardSet, Sample};
use crate::rl::rollout::Task;
use crate::rl::trainer::{Finished, Trainer};
use crate::stages::material;
use crate::stages::{Context, Output};
use crate::{Error, Result};

/// Gold answers that are tried before training starts.
const GOLD_CHECKS: usize = 32;

/// What the stage has read: the problems, and how they are put to the model.
struct Material {
    problems: Vec<Problem>,
    language: Box<dyn Language>,
    max_prompt_tokens: Option<usize>,
}

impl Material {
    fn read(context: &Context<'_>, slot: &str, model: &Path, parts: &dyn Parts) -> Result<Self> {
        let spec = material::spec(context, slot)?;
        Ok(Self {
            problems: material::problems(context, slot, "train")?,
            language: parts.language(model, &spec)?,
            max_prompt_tokens: spec.max_prompt_tokens,
        })
    }
}

/// Trains the policy; continues from `context.work` where an earlier run of the same stage was interrupted.
pub fn run_with(context: &Context<'_>, config: &Config, parts: &dyn Parts) -> Result<Output> {
    let settings = config.settings()?;
    let policy = context.policy(&config.policy.0)?;
    let form = Form::of(context, &config.policy.0, &policy)?;
    let mut rewards = RewardSet::new(&config.rewards, &context.base_dir)?;
    let material = Material::read(context, "data", &policy.model, parts)?;
    check_gold(&mut rewards, &material, context)?;
    let eos = eos_ids(&policy.model)?;
    if eos.is_empty() {
        context.progress.say("the model names no end-of-sequence id: every completion runs to max_completion");
    }
    let mut engine = parts.engine(&policy, form.trainable(), context.threads)?;
    let engine = engine.as_mut();
    let context_length = engine.config().max_position;
    let tasks = tasks(context, &material, context_length)?;
    let eval_tasks = match &config.eval_data {
        None => Vec::new(),
        Some(_) => {
            let mut eval = Material::read(context, "eval_data", &policy.model, parts)?;
            eval.problems.truncate(config.eval_limit);
            self::tasks(context, &eval, context_length).map_err(|e| e.within("eval_data"))?
        }
    };
    let decode = |ids: &[u32]| material.language.decode(ids);
    let trainer = Trainer {
        engine: &mut *engine,
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
    if settings.stop_at < settings.steps && counters.stopped.is_none() {
        earlier::leave(&context.work, &context.output)?;
    }
    form.finish(context, &policy.model, engine, &kept, &finished.metrics, summary.into())
}

/// Problems as the trainer sees them, less those whose prompt is too long.
fn tasks(context: &Context<'_>, material: &Material, context_length: usize) -> Result<Vec<Task>> {
    let limit = material.max_prompt_tokens.unwrap_or(usize::MAX).min(context_length.saturating_sub(1));
    let mut tasks = Vec::with_capacity(material.problems.len());
    for problem in &material.problems {
        let prompt = material.language.prompt(problem)?;
        if prompt.is_empty() {
            return Err(Error::input(format!("problem {:?} has an empty prompt", problem.id)));
        }
        if prompt.len() <= limit {
            tasks.push(Task {
                prompt: Arc::from(prompt),
                text: problem.prompt.clone(),
                answer: problem.answer.clone(),
            });
        }
    }
    let left_out = material.problems.len() - tasks.len();
    if left_out > 0 {
        let all = material.problems.len();
        context.progress.say(&format!("{left_out} of {all} prompts are longer than {limit} tokens and left out"));
    }
    Ok(tasks)
}

/// Fault 18 of the field: the prompt asks for one form and the reward wants another. Each gold answer is tried behind
/// the reference solution and behind one line of reasoning, with and without a line end.
fn check_gold(rewards: &mut RewardSet, material: &Material, context: &Context<'_>) -> Result<()> {
    let problems = &material.problems[..GOLD_CHECKS.min(material.problems.len())];
    let spell = |problem: &Problem| {
        let short = Problem { solution: Some("This is known.".to_owned()), ..problem.clone() };
        let texts = [problem, &short].map(|p| material.language.ideal(p));
        texts.into_iter().flat_map(|text| [format!("{text}\n"), text].map(|t| (problem.clone(), t))).collect::<Vec<_>>()
    };
    let spelled: Vec<Vec<(Problem, String)>> = problems.iter().map(spell).collect();
    fn sample((problem, completion): &(Problem, String)) -> Sample<'_> {
        Sample { prompt: &problem.prompt, completion, answer: &problem.answer, tokens: 0, truncated: false }
    }
    let golds: Vec<Vec<Sample<'_>>> = spelled.iter().map(|spellings| spellings.iter().map(sample).collect()).collect();
    rewards.check_gold(&golds, context.cancel)
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
