//! Sets that qerl makes itself, from a seed: nothing to download, nothing that anyone could have trained on.

mod draws;
mod stories;

use std::collections::{BTreeMap, HashSet};

use self::draws::Draws;
use super::template::Template;
use super::{DataSpec, Holdout, Problem, normalise};
use crate::{Error, Result};

/// Problems of a set where the specification names no number.
const DEFAULT_N: usize = 16_000;
/// There are no more different sums.
const DEFAULT_SUMS: usize = (MAX_ADDEND * MAX_ADDEND) as usize;
const MAX_ADDEND: u32 = 50;
/// Problems held out where the pipeline asks for none: at most this many, and at most a fifth.
const DEFAULT_HOLDOUT: usize = 200;
const SUMS_HOLDOUT: usize = 300;
const MAX_N: usize = 1_000_000;
/// Draws in a row that only repeat what is there: then the set is exhausted. (That the last of 2500 sums is missed so
/// often has a probability of e^-40.)
const MAX_REPEATS: u64 = 100_000;

/// One problem: its text, its answer, and what its reference solution says.
struct Made {
    prompt: String,
    answer: u32,
    solution: Solution,
    tags: BTreeMap<String, String>,
}

enum Solution {
    None,
    /// The answer alone, in the prompted form.
    Answer,
    /// The working, then the answer in the prompted form.
    Working(String),
}

fn maker(name: &str) -> Option<fn(&mut Draws) -> Made> {
    match name {
        "arith" => Some(stories::story),
        "sums" => Some(sum),
        _ => None,
    }
}

/// The problems of `arith` or `sums`: `n` different ones, a function of `seed` (and of the template, whose form the
/// solutions have). More problems begin with the same ones.
pub fn generate(spec: &DataSpec) -> Result<Vec<Problem>> {
    let name = spec.builtin.as_deref().unwrap_or_default();
    let make = maker(name).ok_or_else(|| Error::usage(format!("{name:?} is no generated data set")))?;
    check(spec, name)?;
    let n = count(spec);
    let template = Template::open(spec, None)?;
    let mut draws = Draws::new(name, spec.seed.unwrap_or(0));
    let mut seen = HashSet::new();
    let mut problems = Vec::with_capacity(n);
    let mut repeats = 0;
    while problems.len() < n {
        let made = make(&mut draws);
        if !seen.insert(normalise::key(&made.prompt)) {
            repeats += 1;
            if repeats > MAX_REPEATS {
                return Err(Error::usage(format!("there are about {} different problems in {name}", problems.len()))
                    .hint("ask for a smaller n"));
            }
            continue;
        }
        repeats = 0;
        let (solved, working) = match made.solution {
            Solution::None => (false, None),
            Solution::Answer => (true, None),
            Solution::Working(text) => (true, Some(text)),
        };
        let mut problem = Problem {
            id: format!("{name}-{}", problems.len()),
            prompt: made.prompt,
            answer: made.answer.to_string(),
            solution: working,
            tags: made.tags,
        };
        if solved {
            problem.solution = Some(template.ideal(&problem));
        }
        problems.push(problem);
    }
    Ok(problems)
}

/// Refuses keys that mean nothing to a set without files.
fn check(spec: &DataSpec, name: &str) -> Result<()> {
    let n = count(spec);
    if n == 0 || n > MAX_N {
        return Err(Error::usage(format!("n must be within 1..={MAX_N}")));
    }
    if spec.config.is_some() || spec.columns != super::Columns::default() {
        return Err(Error::usage(format!("{name} is generated: it has neither config nor columns")));
    }
    // Its parts stand where the hub has splits.
    if let Some(split) = &spec.split
        && !["train", "holdout", "all"].contains(&split.as_str())
    {
        return Err(Error::usage(format!("{name} has no split {split:?}")).hint("it has train, holdout and all"));
    }
    Ok(())
}

/// What is held out of a generated set where the pipeline names no hold-out; `None` for sets that are read.
pub fn holdout(spec: &DataSpec) -> Option<Holdout> {
    maker(spec.builtin.as_deref()?)?;
    let n = count(spec);
    let most = if spec.builtin.as_deref() == Some("sums") { SUMS_HOLDOUT } else { DEFAULT_HOLDOUT };
    (n >= 5).then(|| Holdout { n: most.min(n / 5), seed: spec.seed.unwrap_or(0) })
}

/// Two addends within 1..=50, for chat models of any size: the number alone is asked for.
fn sum(draws: &mut Draws) -> Made {
    let (a, b) = (draws.within(1, MAX_ADDEND), draws.within(1, MAX_ADDEND));
    let prompt = format!("What is {a} + {b}? Answer with the number only.");
    Made { prompt, answer: a + b, solution: Solution::None, tags: BTreeMap::new() }
}

/// How many problems an entry asks for.
fn count(spec: &DataSpec) -> usize {
    let default = if spec.builtin.as_deref() == Some("sums") { DEFAULT_SUMS } else { DEFAULT_N };
    spec.n.unwrap_or(default)
}

#[cfg(test)]
mod tests;
