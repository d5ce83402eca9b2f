//! From the files of a data set (a hub's folder, any folder, or one file) to problems, row by row.
//!
//! Which files hold a configuration's split is told by their names, as the hub does; which columns hold problem and
//! answer by the specification or the built-in set. Rows stream: no file is held in memory as a whole.

mod columns;
mod find;
mod json;
mod parquet;
mod row;

pub use find::Source;

use std::path::Path;

use self::columns::Picked;
use self::row::Row;
use super::{BUILTINS, DataSpec, Problem, builtin};
use crate::control::Cancel;
use crate::{Error, Result};

/// What was read, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Paths below the set's folder.
    pub files: Vec<String>,
    pub rows: usize,
    /// Rows without a problem or an answer.
    pub left_out: usize,
    pub warnings: Vec<String>,
}

impl Found {
    /// What was read beside it.
    pub fn add(&mut self, other: Self) {
        self.files.extend(other.files);
        self.rows += other.rows;
        self.left_out += other.left_out;
        self.warnings.extend(other.warnings);
    }
}

/// Large scraped sets have a few rows without an answer: these are left out, up to one in ten of the set.
const TOLERANT: [&str; 2] = ["bigmath", "dapo_math"];

/// Row numbers that an error or warning shows.
const SHOWN: usize = 10;

/// Whether equal problems of the set are joined even where nothing is held out: sets that are known to repeat theirs.
pub fn unique(spec: &DataSpec) -> bool {
    spec.builtin.as_deref().is_some_and(|name| TOLERANT.contains(&name))
}

/// Reads the problems of `source` and hands each on, in the order of the files' names and rows.
pub fn read(
    source: &Source,
    spec: &DataSpec,
    cancel: &Cancel,
    each: &mut dyn FnMut(Problem) -> Result<()>,
) -> Result<Found> {
    let set = match spec.builtin.as_deref() {
        Some(name) => Some(builtin(name).ok_or_else(|| unknown_builtin(name))?),
        None => None,
    };
    if set.is_some_and(|set| set.repo.is_none()) && spec.columns.prompt.is_none() {
        return Err(Error::usage("a generated set is not read from files").hint("leave `repo` away"));
    }
    if spec.n.is_some() || spec.seed.is_some() {
        return Err(Error::usage("n and seed belong to generated sets (arith, sums)")
            .hint("`holdout: {n, seed}` holds out part of a set that is read"));
    }
    let files = find::files(source, spec, set)?;
    let mut found = Found::default();
    let mut empty = Empty::default();
    for file in &files {
        cancel.check()?;
        found.files.push(file.name.clone());
        let mut picked: Option<Picked> = None;
        let mut row_of_file = 0;
        let mut take = |row: &Row<'_>| -> Result<()> {
            row_of_file += 1;
            if row_of_file % 1024 == 0 {
                cancel.check()?;
            }
            let number = found.rows;
            found.rows += 1;
            let picked = match &picked {
                Some(picked) => picked,
                None => picked.insert(columns::pick(spec, &row.names()).map_err(|e| e.within(&file.name))?),
            };
            match picked.problem(row, number, spec.builtin.as_deref())? {
                Ok(problem) => each(problem),
                Err(what) => {
                    empty.add(what, &file.name, row_of_file);
                    Ok(())
                }
            }
        };
        match file.format {
            find::Format::Parquet => parquet::rows(&file.path, &|names| columns::wanted(spec, names), &mut take),
            find::Format::JsonLines => json::lines(&file.path, &mut take),
            find::Format::Json => json::document(&file.path, &mut take),
        }
        .map_err(|e: Error| if e.message().contains(&file.name) { e } else { e.within(&file.name) })?;
    }
    if found.rows == 0 {
        return Err(Error::input(format!("the data set is empty: no row in {}", found.files.join(", ")))
            .hint("look at `config` and `split`, or at the files themselves"));
    }
    empty.judge(&mut found, unique(spec))?;
    Ok(found)
}

/// The splits of a built-in set that trains on one and evaluates on another, those of them that are there:
/// `(train, evaluation)`. `None` where the specification names a split, or the set has only one, or the files' names
/// tell none.
pub fn apart(source: &Source, spec: &DataSpec) -> Result<Option<(Option<&'static str>, Option<&'static str>)>> {
    let set = spec.builtin.as_deref().and_then(builtin).filter(|set| set.train_split != set.eval_split);
    let Some(set) = set.filter(|_| spec.split.is_none()) else { return Ok(None) };
    let have = find::splits(source, spec, Some(set))?;
    let there = |split: &'static str| have.contains(split).then_some(split);
    Ok(match (there(set.train_split), there(set.eval_split)) {
        (None, None) => None,
        both => Some(both),
    })
}

/// All problems of a set, for callers without a pipeline.
pub fn load(root: &Path, spec: &DataSpec) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    read(&Source::Place(root.to_owned()), spec, &Cancel::new(), &mut |problem| {
        problems.push(problem);
        Ok(())
    })?;
    Ok(problems)
}

pub fn unknown_builtin(name: &str) -> Error {
    let names: Vec<&str> = BUILTINS.iter().map(|set| set.name).collect();
    Error::usage(format!("there is no built-in data set {name:?}")).hint(format!("built in are {}", names.join(", ")))
}

/// Rows without a problem or an answer.
#[derive(Default)]
struct Empty {
    count: usize,
    /// The first ones: what is missing, where.
    shown: Vec<String>,
}

impl Empty {
    fn add(&mut self, what: row::Missing, file: &str, row: usize) {
        self.count += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(format!("{file} row {row} ({what})"));
        }
    }

    fn judge(self, found: &mut Found, tolerant: bool) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let more = if self.count > SHOWN { format!(" and {} more", self.count - SHOWN) } else { String::new() };
        let what = format!(
            "{} of {} rows have no problem or no answer: {}{more}",
            self.count,
            found.rows,
            self.shown.join(", ")
        );
        if !tolerant || self.count * 10 > found.rows {
            return Err(Error::input(what)
                .hint("rows are counted from 1; name the right columns (columns: {prompt, answer}) or clean the set"));
        }
        found.left_out = self.count;
        found.warnings.push(format!("{what}; they are left out"));
        Ok(())
    }
}
