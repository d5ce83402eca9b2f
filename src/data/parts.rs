//! The parts of a set: what is held out and what is left to train on.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Holdout, Problem, normalise};
use crate::{Error, Result};

/// A set, cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Every problem, in the order of the source.
    pub all: Vec<Problem>,
    /// Which of them are held out.
    held: Vec<bool>,
    /// Rows that repeat an earlier problem and were left out.
    pub duplicates: usize,
    /// Those among them that give another answer than the first one.
    pub conflicts: usize,
}

impl Parts {
    pub fn train(&self) -> impl Iterator<Item = &Problem> {
        self.side(false)
    }

    /// Empty where no hold-out was asked for.
    pub fn holdout(&self) -> impl Iterator<Item = &Problem> {
        self.side(true)
    }

    fn side(&self, wanted: bool) -> impl Iterator<Item = &Problem> {
        self.all.iter().zip(&self.held).filter(move |(_, held)| **held == wanted).map(|(problem, _)| problem)
    }
}

/// A set whose source keeps training and evaluation apart. Training problems whose normalised text is an evaluation
/// problem's are left out.
pub fn join(train: Vec<Problem>, holdout: Vec<Problem>) -> Parts {
    let keys: HashSet<[u8; 16]> = holdout.iter().map(|p| normalise::key(&p.prompt)).collect();
    let before = train.len();
    let mut all = train;
    all.retain(|p| !keys.contains(&normalise::key(&p.prompt)));
    let duplicates = before - all.len();
    let mut held = vec![false; all.len()];
    all.extend(holdout);
    held.resize(all.len(), true);
    Parts { all, held, duplicates, conflicts: 0 }
}

/// Cuts a set. With `unique`, or a hold-out, a problem whose normalised text stood earlier is left out, so that no
/// problem is on both sides. Which problems are held out depends on the seed and their own text only: rows that are
/// added or sorted anew move no other problem to the other side by themselves.
pub fn cut(problems: Vec<Problem>, holdout: Option<&Holdout>, unique: bool) -> Result<Parts> {
    let mut parts = Parts::default();
    let mut keys = Vec::new();
    if unique || holdout.is_some() {
        let mut seen: HashMap<[u8; 16], usize> = HashMap::new();
        for problem in problems {
            let key = normalise::key(&problem.prompt);
            match seen.get(&key) {
                Some(&at) => {
                    parts.duplicates += 1;
                    parts.conflicts += usize::from(parts.all[at].answer != problem.answer);
                }
                None => {
                    seen.insert(key, parts.all.len());
                    parts.all.push(problem);
                    keys.push(key);
                }
            }
        }
    } else {
        parts.all = problems;
    }
    parts.held = vec![false; parts.all.len()];
    let Some(holdout) = holdout else { return Ok(parts) };
    if holdout.n == 0 {
        return Err(Error::usage("holdout.n must be above 0").hint("leave `holdout` away to hold out nothing"));
    }
    if holdout.n >= parts.all.len() {
        return Err(Error::usage(format!(
            "a hold-out of {} leaves nothing to train on: the set has {} different problems",
            holdout.n,
            parts.all.len()
        ))
        .hint("choose a smaller holdout.n"));
    }
    let mut ranked: BTreeSet<([u8; 32], usize)> = BTreeSet::new();
    for (at, key) in keys.iter().enumerate() {
        let mut hash = blake3::Hasher::new();
        hash.update(b"qerl holdout");
        hash.update(&holdout.seed.to_le_bytes());
        hash.update(key);
        ranked.insert((*hash.finalize().as_bytes(), at));
        if ranked.len() > holdout.n {
            ranked.pop_last();
        }
    }
    ranked.into_iter().for_each(|(_, at)| parts.held[at] = true);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(n: usize) -> Vec<Problem> {
        (0..n)
            .map(|i| Problem {
                id: i.to_string(),
                prompt: format!("What is {} + 1?", i % 90),
                answer: (i % 90 + 1).to_string(),
                ..Problem::default()
            })
            .collect()
    }

    #[test]
    fn no_problem_is_on_both_sides() {
        let holdout = Holdout { n: 20, seed: 7 };
        let parts = cut(set(100), Some(&holdout), false).unwrap();
        assert_eq!((parts.train().count(), parts.holdout().count(), parts.all.len()), (70, 20, 90));
        assert_eq!((parts.duplicates, parts.conflicts), (10, 0));
        let key = |p: &Problem| normalise::key(&p.prompt);
        let held: BTreeSet<_> = parts.holdout().map(key).collect();
        assert!(parts.train().all(|p| !held.contains(&key(p))));
        assert_eq!(cut(set(100), Some(&holdout), false).unwrap(), parts);
        let other = cut(set(100), Some(&Holdout { n: 20, seed: 8 }), false).unwrap();
        assert!(other.holdout().ne(parts.holdout()));
        // A row more moves at most one problem.
        let more = cut(set(91), Some(&holdout), false).unwrap();
        assert!(more.holdout().eq(parts.holdout()));
    }

    #[test]
    fn without_a_hold_out_nothing_is_left_out_unless_asked() {
        let parts = cut(set(100), None, false).unwrap();
        assert_eq!((parts.train().count(), parts.holdout().count(), parts.duplicates), (100, 0, 0));
        let mut other = set(100);
        other[95].answer = "0".into();
        let parts = cut(other, None, true).unwrap();
        assert_eq!((parts.train().count(), parts.duplicates, parts.conflicts), (90, 10, 1));
    }

    #[test]
    fn training_loses_what_evaluation_has() {
        let parts = join(set(20), set(5));
        assert_eq!((parts.train().count(), parts.holdout().count(), parts.all.len()), (15, 5, 20));
        assert_eq!(parts.duplicates, 5);
    }

    #[test]
    fn a_hold_out_must_leave_something() {
        assert!(cut(set(10), Some(&Holdout { n: 10, seed: 0 }), false).is_err());
        assert!(cut(set(10), Some(&Holdout { n: 0, seed: 0 }), false).is_err());
        assert!(cut(Vec::new(), Some(&Holdout { n: 1, seed: 0 }), false).is_err());
    }
}
