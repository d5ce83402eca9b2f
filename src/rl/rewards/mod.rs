//! Rewards: named, weighted functions of a completion. Each may abstain; none can hang or panic.

pub mod minerva;
mod program;
pub mod text;

use std::collections::BTreeMap;
use std::path::Path;

pub use program::Program;

use super::advantage::ranges;
use super::options::RewardSpec;
use crate::control::Cancel;
use crate::math::Verdict;
use crate::{Error, Result};

/// One completion to judge.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub prompt: &'a str,
    pub completion: &'a str,
    /// The gold answer.
    pub answer: &'a str,
    /// Completion length in tokens.
    pub tokens: usize,
    pub truncated: bool,
}

/// Words of an n-gram in the reward `repetition`.
const NGRAM: usize = 3;

/// The built-in rewards. All but `xml_count`, `length` and `repetition` lie in 0..1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// The grader's verdict: 1 correct, 0 wrong or no answer; abstains where the gold answer cannot be read.
    Accuracy,
    /// Text inside the last answer tag equals the gold answer.
    Correctness,
    SoftFormat,
    StrictFormat,
    ThinkFormat,
    /// The answer is of digits only.
    Int,
    /// -inf..0.5: see [`text::xml_count`].
    XmlCount,
    TagCount,
    /// -0.5..0.5 within the group: see [`text::length_rewards`].
    Length,
    /// -1..0: minus the share of repeated word trigrams.
    Repetition,
    /// The number behind the last `####`.
    Gsm8k,
    /// DAPO's text comparison behind `Answer:`.
    Dapo,
}

impl Builtin {
    pub const ALL: [(&'static str, Self); 12] = [
        ("accuracy", Self::Accuracy),
        ("correctness", Self::Correctness),
        ("soft_format", Self::SoftFormat),
        ("strict_format", Self::StrictFormat),
        ("think_format", Self::ThinkFormat),
        ("int", Self::Int),
        ("xml_count", Self::XmlCount),
        ("tag_count", Self::TagCount),
        ("length", Self::Length),
        ("repetition", Self::Repetition),
        ("gsm8k", Self::Gsm8k),
        ("dapo", Self::Dapo),
    ];

    fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, builtin)| *builtin)
    }

    /// True where full marks mean a right answer.
    fn judges_answers(self) -> bool {
        matches!(self, Self::Accuracy | Self::Correctness | Self::Gsm8k | Self::Dapo)
    }

    /// Whether one of several spellings of a gold answer earns all that this reward can give; `None` where there is no
    /// such thing as full marks, or the gold answer cannot earn them in any form.
    fn full_marks(self, spellings: &[Sample<'_>]) -> Option<bool> {
        let full = match self {
            Self::Length | Self::Repetition => return None,
            Self::XmlCount => 0.5,
            _ => 1.0,
        };
        let digits = |s: &Sample<'_>| !s.answer.is_empty() && s.answer.chars().all(|c| c.is_ascii_digit());
        if self == Self::Int && !spellings.iter().all(digits) {
            return None;
        }
        let scores: Vec<f64> = spellings.iter().filter_map(|s| self.score(s)).collect();
        (!scores.is_empty()).then(|| scores.iter().any(|score| *score >= full))
    }

    fn score(self, sample: &Sample<'_>) -> Option<f64> {
        let text = sample.completion;
        let unit = |value: f64, full: f64| if value >= full { 1.0 } else { 0.0 };
        Some(match self {
            Self::Accuracy => return accuracy(text, sample.answer),
            Self::Correctness => unit(text::qerl_correctness(text, sample.answer), 2.0),
            Self::SoftFormat => unit(text::qerl_soft_format(text), 0.2),
            Self::StrictFormat => unit(text::qerl_strict_format(text), 0.2),
            Self::ThinkFormat => unit(text::qerl_think_format(text), 0.2),
            Self::Int => unit(text::qerl_int(text), 0.2),
            Self::XmlCount => text::xml_count(text),
            Self::TagCount => text::tag_count(text),
            Self::Repetition => 0.0 - text::repetition(text, NGRAM),
            Self::Gsm8k => text::gsm8k_score(text, sample.answer),
            Self::Dapo => minerva::score(text, sample.answer),
            // Needs its group: computed in `RewardSet::score`.
            Self::Length => return None,
        })
    }
}

/// 1 correct, 0 wrong or without an answer; `None` where the gold answer itself cannot be read.
pub fn accuracy(completion: &str, gold: &str) -> Option<f64> {
    match crate::math::grade(gold, completion).verdict {
        Verdict::Correct => Some(1.0),
        Verdict::Wrong | Verdict::NoAnswer => Some(0.0),
        Verdict::GoldUnparseable => None,
    }
}

enum Function {
    Builtin(Builtin),
    Program(Box<Program>),
}

/// All rewards of a run, in the order of their names.
pub struct RewardSet {
    functions: Vec<(String, f64, Function)>,
}

impl RewardSet {
    /// Unknown names are refused with the nearest known one. `dir` is where relative program paths start.
    pub fn new(specs: &BTreeMap<String, RewardSpec>, dir: &Path) -> Result<Self> {
        if specs.is_empty() {
            return Err(Error::usage("rewards: at least one reward is needed").hint("try `rewards: {accuracy: 1.0}`"));
        }
        let mut functions = Vec::new();
        for (name, spec) in specs {
            let function = match spec {
                RewardSpec::Weight(_) => Function::Builtin(Builtin::find(name).ok_or_else(|| unknown(name))?),
                RewardSpec::Program { command, timeout, .. } => {
                    let program = Path::new(&command[0]);
                    if program.components().count() > 1 && !dir.join(program).is_file() {
                        return Err(Error::missing(format!(
                            "rewards.{name}: there is no program {}",
                            dir.join(program).display()
                        ))
                        .hint("a path starts in the pipeline's folder; a bare name is looked for in PATH"));
                    }
                    Function::Program(Box::new(Program::new(name, command, *timeout, dir)))
                }
            };
            functions.push((name.clone(), spec.weight(), function));
        }
        Ok(Self { functions })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|(name, _, _)| name.as_str())
    }

    pub fn weights(&self) -> Vec<f64> {
        self.functions.iter().map(|(_, weight, _)| *weight).collect()
    }

    /// The column that says whether an answer was right: what dynamic sampling filters on. `None` where no reward of
    /// the set judges answers.
    pub fn judge(&self) -> Option<usize> {
        [Builtin::Accuracy, Builtin::Correctness, Builtin::Gsm8k, Builtin::Dapo].iter().find_map(|wanted| {
            self.functions.iter().position(|(_, _, f)| matches!(f, Function::Builtin(b) if b == wanted))
        })
    }

    /// `[samples][functions]`; samples are ordered group by group.
    pub fn score(
        &mut self,
        samples: &[Sample<'_>],
        groups: &[usize],
        cancel: &Cancel,
    ) -> Result<Vec<Vec<Option<f64>>>> {
        let mut out = vec![Vec::with_capacity(self.functions.len()); samples.len()];
        for (_, _, function) in &mut self.functions {
            match function {
                Function::Builtin(Builtin::Length) => {
                    for range in ranges(groups) {
                        let group = &samples[range.clone()];
                        let lengths: Vec<usize> = group.iter().map(|s| s.tokens).collect();
                        let correct: Vec<bool> =
                            group.iter().map(|s| accuracy(s.completion, s.answer) == Some(1.0)).collect();
                        for (row, value) in out[range].iter_mut().zip(text::length_rewards(&lengths, &correct)) {
                            row.push(Some(value));
                        }
                    }
                }
                Function::Builtin(builtin) => {
                    for (row, sample) in out.iter_mut().zip(samples) {
                        row.push(builtin.score(sample));
                    }
                }
                Function::Program(program) => {
                    for (row, sample) in out.iter_mut().zip(samples) {
                        row.push(program.score(sample, cancel)?);
                    }
                }
            }
        }
        Ok(out)
    }

    /// Refuses to train where a gold answer in the form the prompt asks for would not earn full marks (the reward would
    /// stay 0 for ever), and where a program does not answer. `golds[problem]` are completions that give the problem's
    /// gold answer in that form, in several spellings: one of them must do.
    pub fn check_gold(&mut self, golds: &[Vec<Sample<'_>>], cancel: &Cancel) -> Result<()> {
        for (name, weight, function) in &mut self.functions {
            let builtin = match function {
                Function::Builtin(builtin) => *builtin,
                Function::Program(program) => {
                    if let Some(sample) = golds.first().and_then(|spellings| spellings.first()) {
                        program.probe(sample, cancel)?;
                    }
                    continue;
                }
            };
            if *weight <= 0.0 {
                continue;
            }
            // Single odd gold answers are a matter of the data set; most of them failing is a wrong form.
            let marks: Vec<bool> = golds.iter().filter_map(|spellings| builtin.full_marks(spellings)).collect();
            let failed = marks.iter().filter(|full| !**full).count();
            let judged = golds.iter().any(|spellings| !spellings.is_empty()) && builtin.judges_answers();
            if failed * 2 > marks.len() || judged && marks.is_empty() {
                let Some(shown) = golds.iter().flatten().next() else { continue };
                return Err(Error::usage(format!(
                    "reward `{name}` gives no full marks to gold answers in the form the prompt asks for, for instance {:?} for {:?}",
                    shown.completion, shown.answer
                ))
                .hint(
                    "choose a template or rewards that agree: `accuracy` reads tags, boxes, #### and plain answers; \
                     rewards of tags need a prompt that asks for tags, such as template qerl_think",
                ));
            }
        }
        Ok(())
    }
}

fn unknown(name: &str) -> Error {
    let nearest = Builtin::ALL
        .iter()
        .map(|(n, _)| *n)
        .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
    Error::usage(format!("rewards: `{name}` is no built-in reward")).hint(format!(
        "nearest: `{}`; a program of your own is written {{command: [...]}}",
        nearest.unwrap_or("accuracy")
    ))
}

#[cfg(test)]
mod tests;
