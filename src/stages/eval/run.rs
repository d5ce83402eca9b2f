//! The stage itself: a policy and problem sets in, graded records and a summary out.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::Config;
use super::answer::Speaker;
use super::training::training;
use crate::data::Problem;
use crate::engine::{Engine, Sampling, Trainable};
use crate::eval::contamination::{Contamination, Index, NGRAM};
use crate::eval::session::{self, Watch};
use crate::eval::shots::Shots;
use crate::eval::{self, Record, SetSummary, Settings, Summary, files};
use crate::math::{Gold, Verdict};
use crate::model::eos_ids;
use crate::rl::language::Language;
use crate::stages::train::Parts;
use crate::stages::{Context, Output, material};
use crate::store::Handle;
use crate::{Error, Result};

/// New tokens that one chunk may cost: at most this much is lost by an interruption. Fixed, so that equal runs make
/// equal batches.
const CHUNK_TOKENS: usize = 1 << 19;
/// Golds that are tried in the form that the prompt asks for before anything is generated.
const GOLD_CHECKS: usize = 32;
/// Above this share of truncated completions the user is told.
const MANY_TRUNCATED: f64 = 0.05;

/// Completions per chunk.
fn chunk(max_new_tokens: usize) -> usize {
    (CHUNK_TOKENS / max_new_tokens.max(1)).clamp(64, 1024)
}

/// One data set, ready to be put to the model.
struct Set {
    name: String,
    problems: Vec<Problem>,
    prompts: Vec<Arc<[u32]>>,
    language: Box<dyn Language>,
    is_gsm8k: bool,
}

/// Evaluates the policy; continues from `context.work` where an earlier run of the same stage was interrupted.
pub fn run_with(context: &Context<'_>, config: &Config, parts: &dyn Parts) -> Result<Output> {
    config.check()?;
    let settings = config.settings();
    let policy = context.policy(&config.policy.0)?;
    let sets = sets(context, config, &policy.model, parts)?;
    let contamination = contamination(context, config, &sets)?;
    let eos = eos_ids(&policy.model)?;
    if eos.is_empty() {
        context.progress.say("the model names no end-of-sequence id: every completion runs to max_new_tokens");
    }
    let mut engine = parts.engine(&policy, Trainable::None, context.threads)?;
    tell_long_prompts(context, &sets, engine.as_ref());
    let total: usize = sets.iter().map(|s| s.problems.len() * settings.samples).sum();
    context.progress.total(total as u64, "completions");
    let sampling =
        Sampling { temperature: config.temperature, top_p: config.top_p, top_k: config.top_k, ..Sampling::default() };
    let mut records: Vec<Record> = Vec::with_capacity(total);
    let mut summary = Summary::default();
    for (i, set) in sets.iter().enumerate() {
        let mut speaker = Speaker {
            engine: engine.as_mut(),
            language: set.language.as_ref(),
            prompts: &set.prompts,
            eos: &eos,
            sampling,
            max_new_tokens: config.max_new_tokens,
        };
        let journal = context.work.join(format!("records.{i}.jsonl"));
        let watch = Watch { progress: context.progress, cancel: context.cancel, done: records.len() };
        let own = session::Set {
            data: &set.name,
            problems: &set.problems,
            settings: &settings,
            chunk: chunk(config.max_new_tokens),
            journal: &journal,
        }
        .run(&mut speaker, &watch)
        .map_err(|e| if e.kind() == crate::error::Kind::Cancelled { e } else { e.within(&set.name) })?;
        let mut figures = eval::summarise(&set.name, &own, &settings, set.is_gsm8k)?;
        figures.contamination = contamination.as_ref().map(|all| all[i].clone());
        tell(context, &figures);
        summary.sets.push(figures);
        records.extend(own);
    }
    files::write_parquet(&context.output.join(files::RECORDS), &records)?;
    files::write_summary(&context.output.join(files::SUMMARY), &summary)?;
    let brief: serde_json::Map<String, serde_json::Value> = summary
        .sets
        .iter()
        .map(|s| {
            let figures = json!({"n": s.n, "accuracy": s.accuracy, "low": s.interval.low, "high": s.interval.high});
            (s.data.clone(), figures)
        })
        .collect();
    Ok(Output {
        declared: vec![files::RECORDS.to_owned(), files::SUMMARY.to_owned()],
        handle: Handle::Eval,
        summary: brief.into(),
    })
}

/// Reads and renders everything first: a wrong set or template fails before the model is loaded.
fn sets(context: &Context<'_>, config: &Config, model: &Path, parts: &dyn Parts) -> Result<Vec<Set>> {
    let mut sets = Vec::with_capacity(config.data.len());
    for (i, name) in config.data.iter().enumerate() {
        let slot = format!("data.{i}");
        sets.push(set(context, config, &slot, &name.0, model, parts).map_err(|e| e.within(&name.0))?);
    }
    Ok(sets)
}

fn set(context: &Context<'_>, config: &Config, slot: &str, name: &str, model: &Path, parts: &dyn Parts) -> Result<Set> {
    let spec = material::spec(context, slot)?;
    let mut problems = material::problems(context, slot, "all")?;
    problems.truncate(config.limit.unwrap_or(usize::MAX));
    if problems.is_empty() {
        return Err(Error::input("there is no problem to evaluate").hint("look at the set's hold-out and filters"));
    }
    let mut rows: HashMap<&str, usize> = HashMap::with_capacity(problems.len());
    for (row, problem) in problems.iter().enumerate() {
        if let Some(first) = rows.insert(&problem.id, row) {
            let id = &problem.id;
            return Err(Error::input(format!("problems {first} and {row} have the same id {id:?}"))
                .hint("name another column under `columns: {id: ...}`, or none: then ids are row numbers"));
        }
    }
    let language = parts.language(model, &spec)?;
    check_gold(context, &problems, language.as_ref())?;
    let shots = match &config.shots_data {
        Some(_) if config.shots > 0 => {
            let pool = material::examples(context, "shots_data")?;
            Shots::choose(config.shots, &pool, &problems, &mut |p| language.ideal(p))?
        }
        _ => Shots::default(),
    };
    let mut prompts = Vec::with_capacity(problems.len());
    for problem in &problems {
        let prompt = language.prompt(&shots.put(problem))?;
        if prompt.is_empty() {
            return Err(Error::input(format!("problem {:?} has an empty prompt", problem.id)));
        }
        prompts.push(Arc::from(prompt));
    }
    let is_gsm8k = spec.builtin.as_deref() == Some("gsm8k");
    Ok(Set { name: name.to_owned(), problems, prompts, language, is_gsm8k })
}

/// A prompt that asks for one form while the grader wants another makes every number meaningless.
fn check_gold(context: &Context<'_>, problems: &[Problem], language: &dyn Language) -> Result<()> {
    let verdicts: Vec<(&Problem, Verdict)> = problems
        .iter()
        .take(GOLD_CHECKS)
        .map(|p| (p, Gold::parse(&p.answer).grade(&language.ideal(p)).verdict))
        .filter(|(_, verdict)| *verdict != Verdict::GoldUnparseable)
        .collect();
    let bad: Vec<&Problem> = verdicts.iter().filter(|(_, v)| *v != Verdict::Correct).map(|(p, _)| *p).collect();
    let Some(first) = bad.first() else { return Ok(()) };
    let what = format!(
        "{} of {} gold answers are not judged correct in the form that the prompt asks for (first: problem {:?}, {:?})",
        bad.len(),
        verdicts.len(),
        first.id,
        eval::table::short(&first.answer)
    );
    if bad.len() == verdicts.len() {
        return Err(Error::input(what).hint("choose a template whose answer format the grader reads, such as `boxed`"));
    }
    context.progress.say(&format!("warning: {what}"));
    Ok(())
}

/// Overlap of each set with what the policy was trained on; none where it was trained on nothing that is known.
fn contamination(context: &Context<'_>, config: &Config, sets: &[Set]) -> Result<Option<Vec<Contamination>>> {
    let found = training(context, &config.policy.0)?;
    if found.unknown > 0 {
        context.progress.say(&format!(
            "{} artifacts behind the policy are no longer in the store: training data behind them is not compared",
            found.unknown
        ));
    }
    if found.files.is_empty() {
        return Ok(None);
    }
    let mut indices: Vec<Index> =
        sets.iter().map(|s| Index::new(s.problems.iter().map(|p| p.prompt.as_str()))).collect();
    for file in &found.files {
        context.cancel.check()?;
        material::each(file, &mut |problem| indices.iter_mut().for_each(|index| index.see(&problem.prompt)))?;
    }
    let found: Vec<Contamination> = indices.iter().map(Index::found).collect();
    for (set, found) in sets.iter().zip(&found).filter(|(_, found)| found.ngram > 0) {
        context.progress.say(&format!(
            "{}: {} of {} problems are training problems too, {} share {NGRAM} words in a row with one",
            set.name, found.exact, found.checked, found.ngram
        ));
    }
    Ok(Some(found))
}

fn tell_long_prompts(context: &Context<'_>, sets: &[Set], engine: &dyn Engine) {
    let room = engine.config().max_position;
    for set in sets {
        let long = set.prompts.iter().filter(|p| p.len() >= room).count();
        if long > 0 {
            context.progress.say(&format!(
                "{}: {long} prompts fill the model's context of {room} tokens and count as truncated",
                set.name
            ));
        }
    }
}

fn tell(context: &Context<'_>, set: &SetSummary) {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let mut line = format!(
        "{}: {} correct ({} to {}), {} questions x {}",
        set.data,
        percent(set.accuracy),
        percent(set.interval.low),
        percent(set.interval.high),
        set.n,
        set.samples
    );
    if set.truncated > MANY_TRUNCATED {
        line += &format!("; {} truncated: raise max_new_tokens", percent(set.truncated));
    }
    if set.gold_unparseable > 0 {
        line += &format!("; {} empty golds count as wrong", set.gold_unparseable);
    }
    context.progress.say(&line);
}

impl Config {
    /// What the schema cannot say.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::usage(what).hint(hint));
        if self.data.is_empty() {
            return wrong("there is no data to evaluate on".into(), "name one or more sets: `data: [gsm8k]`");
        }
        if let Some(twice) = self.data.iter().enumerate().find(|(i, d)| self.data[..*i].contains(d)) {
            return wrong(format!("{:?} stands twice under `data`", twice.1.0), "name each set once");
        }
        if self.samples == 0 || self.max_new_tokens == 0 || self.limit == Some(0) {
            return wrong("samples, max_new_tokens and limit must be at least 1".into(), "leave them out");
        }
        if !(0.0..=10.0).contains(&self.temperature) {
            return wrong(format!("temperature {} is not in 0..=10", self.temperature), "0 is greedy");
        }
        if self.samples > 1 && self.temperature == 0.0 {
            return wrong(
                format!("{} samples at temperature 0 would be {} times the same", self.samples, self.samples),
                "set a temperature such as 0.6, or samples: 1",
            );
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong(format!("top_p {} is not in 0..=1", self.top_p), "1 is off");
        }
        if let Some(k) = self.k.iter().find(|k| **k == 0 || **k > self.samples) {
            return wrong(
                format!("pass@{k} cannot be computed from {} completions per question", self.samples),
                "choose k between 1 and `samples`",
            );
        }
        if (self.shots > 0) != self.shots_data.is_some() {
            return wrong(
                "shots and shots_data belong together".into(),
                "for instance `shots: 5` and `shots_data: gsm8k_train`",
            );
        }
        Ok(())
    }

    /// How completions are drawn and counted.
    pub fn settings(&self) -> Settings {
        Settings {
            samples: self.samples,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            max_new_tokens: self.max_new_tokens,
            seed: self.seed,
            k: self.k.clone(),
        }
    }
}
