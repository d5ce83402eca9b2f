//! Which files hold a configuration's split, told by folders and names as the hub does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::data::{Builtin, DataSpec};
use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    Parquet,
    JsonLines,
    Json,
}

impl Format {
    fn of(name: &str) -> Option<Self> {
        let (_, ending) = name.rsplit_once('.')?;
        match ending.to_ascii_lowercase().as_str() {
            "parquet" => Some(Self::Parquet),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Where a set's files lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, or a folder with all that is below it.
    Place(PathBuf),
    /// Just these files of a folder, by their names below it: a cache's snapshot may hold others, fetched for something
    /// else.
    Listed(PathBuf, Vec<String>),
}

/// A file with rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Below the set's folder, with `/`.
    pub name: String,
    pub path: PathBuf,
    pub format: Format,
}

/// Words in file names that are splits.
const SPLITS: [&str; 8] = ["train", "test", "validation", "valid", "val", "dev", "eval", "holdout"];

/// JSON files of a data-set folder that hold no rows.
const DESCRIPTIONS: [&str; 6] =
    ["dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "package.json", "artifact.json"];

const MAX_DEPTH: usize = 6;
const MAX_FILES: usize = 20_000;

/// The files of `spec.config` and `spec.split` in `source`, sorted by name; the file itself where it is one.
pub fn files(source: &Source, spec: &DataSpec, set: Option<&Builtin>) -> Result<Vec<DataFile>> {
    if matches!(source, Source::Place(root) if root.is_file()) {
        return configured(source, spec, set);
    }
    let chosen = split(configured(source, spec, set)?, spec, set)?;
    // A set in several formats is the same set several times.
    let first = chosen.iter().map(|file| file.format).min();
    Ok(chosen.into_iter().filter(|file| Some(file.format) == first).collect())
}

/// The splits that the names of the configuration's files tell.
pub fn splits(source: &Source, spec: &DataSpec, set: Option<&Builtin>) -> Result<BTreeSet<&'static str>> {
    Ok(configured(source, spec, set)?.iter().filter_map(DataFile::split).collect())
}

/// The files of `spec.config`, of every split.
fn configured(source: &Source, spec: &DataSpec, set: Option<&Builtin>) -> Result<Vec<DataFile>> {
    let root = match source {
        Source::Place(root) => root,
        Source::Listed(root, names) => return config(some_data(listed(root, names)?, root)?, spec, set),
    };
    let meta = std::fs::metadata(root).map_err(|e| Error::io("read", root, e))?;
    if meta.is_file() {
        let name = root.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let format = Format::of(&name).ok_or_else(|| {
            Error::input(format!("{name} is no data file that qerl reads")).hint("it reads .parquet, .jsonl and .json")
        })?;
        return Ok(vec![DataFile { name, path: root.to_owned(), format }]);
    }
    let mut all = Vec::new();
    walk(root, "", 0, &mut all)?;
    config(some_data(all, root)?, spec, set)
}

/// Sorted by name; an error where there are none.
fn some_data(mut all: Vec<DataFile>, root: &Path) -> Result<Vec<DataFile>> {
    all.sort_by(|a, b| a.name.cmp(&b.name));
    if all.is_empty() {
        return Err(Error::input(format!("{} holds no data file", root.display()))
            .hint("qerl reads .parquet, .jsonl and .json (decompress others first)"));
    }
    Ok(all)
}

/// The data files among `names`, all of which must be there.
fn listed(root: &Path, names: &[String]) -> Result<Vec<DataFile>> {
    let mut files = Vec::new();
    for name in names {
        let parts: Vec<&str> = name.split('/').collect();
        let short = parts.last().copied().unwrap_or_default();
        if parts.iter().any(|part| part.starts_with('.')) || DESCRIPTIONS.contains(&short) {
            continue;
        }
        let Some(format) = Format::of(short) else { continue };
        let path = root.join(name);
        std::fs::metadata(&path)
            .map_err(|e| Error::io("read", &path, e).hint("a part of the data set is gone: fetch it again"))?;
        files.push(DataFile { name: name.clone(), path, format });
    }
    Ok(files)
}

fn walk(dir: &Path, prefix: &str, depth: usize, out: &mut Vec<DataFile>) -> Result<()> {
    for item in std::fs::read_dir(dir).map_err(|e| Error::io("read", dir, e))? {
        let path = item.map_err(|e| Error::io("read", dir, e))?.path();
        let Some(short) = path.file_name().and_then(|n| n.to_str()).filter(|n| !n.starts_with('.')) else { continue };
        let name = if prefix.is_empty() { short.to_owned() } else { format!("{prefix}/{short}") };
        // Snapshots in the Hugging Face cache are links to blobs: follow them, but not links to folders (loops).
        let meta = std::fs::metadata(&path).map_err(|e| {
            let error = Error::io("read", &path, e);
            if path.is_symlink() { error.hint("a part of the data set is gone: fetch it again") } else { error }
        })?;
        if meta.is_dir() && !path.is_symlink() && depth < MAX_DEPTH {
            walk(&path, &name, depth + 1, out)?;
        } else if meta.is_file()
            && !DESCRIPTIONS.contains(&short)
            && let Some(format) = Format::of(short)
        {
            out.push(DataFile { name, path, format });
        }
        if out.len() > MAX_FILES {
            return Err(Error::usage(format!("{} holds more than {MAX_FILES} data files", dir.display()))
                .hint("name the folder of one data set"));
        }
    }
    Ok(())
}

impl DataFile {
    fn folders(&self) -> impl Iterator<Item = &str> {
        let (folders, _) = self.name.rsplit_once('/').unwrap_or(("", ""));
        folders.split('/').filter(|f| !f.is_empty())
    }

    /// The name without folders, ending and shard (`-00000-of-00001`).
    fn stem(&self) -> &str {
        let (_, file) = self.name.rsplit_once('/').unwrap_or(("", &self.name));
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        match stem.split_once("-of-") {
            Some((before, count)) if count.bytes().all(|b| b.is_ascii_digit()) => {
                before.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-')
            }
            _ => stem,
        }
    }

    fn has_word(&self, word: &str) -> bool {
        let word_of = |text: &str| text.split(|c: char| !c.is_alphanumeric()).any(|w| w.eq_ignore_ascii_case(word));
        self.stem() == word || word_of(self.stem()) || self.folders().any(|folder| folder.eq_ignore_ascii_case(word))
    }

    /// The split that its name tells.
    fn split(&self) -> Option<&'static str> {
        SPLITS.into_iter().find(|split| self.has_word(split))
    }

    /// Belongs to the configuration: a folder of its name, or a file name that starts with it.
    fn in_config(&self, config: &str) -> bool {
        let starts = self.stem().strip_prefix(config).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
        starts || self.folders().any(|folder| folder == config)
    }

    /// Folders that are configurations, not splits or the hub's `data`.
    fn own_config(&self) -> Option<&str> {
        self.folders().find(|f| *f != "data" && *f != "default" && !SPLITS.contains(f))
    }
}

fn config(all: Vec<DataFile>, spec: &DataSpec, set: Option<&Builtin>) -> Result<Vec<DataFile>> {
    let usual = set.and_then(|set| set.config);
    let wanted = spec.config.as_deref().or(usual);
    let have: BTreeSet<String> = all.iter().filter_map(|f| f.own_config().map(str::to_owned)).collect();
    let list = || have.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let Some(wanted) = wanted else {
        if have.len() > 1 && all.iter().all(|f| f.own_config().is_some()) {
            return Err(Error::usage(format!("the data set has several configurations: {}", list()))
                .hint("name one: `config: ...`"));
        }
        return Ok(all);
    };
    let (inside, outside): (Vec<_>, Vec<_>) = all.into_iter().partition(|f| f.in_config(wanted));
    match inside.is_empty() {
        false => Ok(inside),
        // The usual one need not be there: other forms of the set have no configurations.
        true if Some(wanted) == usual && outside.iter().any(|f| f.own_config().is_none()) => {
            Ok(outside.into_iter().filter(|f| f.own_config().is_none()).collect())
        }
        true if Some(wanted) == usual && have.len() == 1 => Ok(outside),
        true => {
            let there = if have.is_empty() { "it has none".to_owned() } else { format!("there are: {}", list()) };
            Err(Error::missing(format!("the data set has no configuration {wanted:?}")).hint(there))
        }
    }
}

fn split(all: Vec<DataFile>, spec: &DataSpec, set: Option<&Builtin>) -> Result<Vec<DataFile>> {
    let have: BTreeSet<&'static str> = all.iter().filter_map(DataFile::split).collect();
    let wanted = match (&spec.split, set) {
        (Some(split), _) => Some(split.as_str()),
        (None, Some(set)) if have.len() != 1 => Some(set.train_split),
        (None, None) if have.len() > 1 => Some("train"),
        // One split, or files that name none: that is the set.
        (None, _) => None,
    };
    let Some(wanted) = wanted else { return Ok(all) };
    let usual = set.is_some_and(|set| wanted == set.train_split || wanted == set.eval_split) || wanted == "train";
    // As on the hub: files that name no split are the one there is.
    if have.is_empty() && usual && !all.iter().any(|f| f.has_word(wanted)) {
        return Ok(all);
    }
    let (inside, outside): (Vec<_>, Vec<_>) = all.into_iter().partition(|f| f.has_word(wanted));
    if inside.is_empty() {
        let mut names: Vec<&str> = outside.iter().map(|f| f.name.as_str()).take(12).collect();
        if outside.len() > names.len() {
            names.push("...");
        }
        return Err(Error::missing(format!("the data set has no split {wanted:?}"))
            .hint(format!("its files are: {}", names.join(", "))));
    }
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::builtin;

    fn find(names: &[&str], set: Option<&str>, config: Option<&str>, split: Option<&str>) -> Result<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let spec =
            DataSpec { config: config.map(str::to_owned), split: split.map(str::to_owned), ..DataSpec::default() };
        Ok(files(&Source::Place(dir.path().to_owned()), &spec, set.and_then(builtin))?
            .into_iter()
            .map(|f| f.name)
            .collect())
    }

    const GSM8K: [&str; 5] = [
        "README.md",
        "main/test-00000-of-00001.parquet",
        "main/train-00000-of-00001.parquet",
        "socratic/test-00000-of-00001.parquet",
        "socratic/train-00000-of-00001.parquet",
    ];

    #[test]
    fn the_hubs_layouts_are_known() {
        let test = find(&GSM8K, Some("gsm8k"), None, Some("test")).unwrap();
        assert_eq!(test, ["main/test-00000-of-00001.parquet"]);
        assert_eq!(find(&GSM8K, Some("gsm8k"), None, None).unwrap(), ["main/train-00000-of-00001.parquet"]);
        let other = find(&GSM8K, Some("gsm8k"), Some("socratic"), Some("test")).unwrap();
        assert_eq!(other, ["socratic/test-00000-of-00001.parquet"]);
        let big = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"];
        assert_eq!(find(&big, Some("bigmath"), None, None).unwrap(), big);
        let levels = ["all/train-00000-of-00001.parquet", "level_4_5/train-0.parquet", "level_5/train-0.parquet"];
        assert_eq!(find(&levels, Some("bigmath"), None, None).unwrap(), levels[..1]);
        assert_eq!(find(&levels, Some("bigmath"), Some("level_5"), Some("train")).unwrap(), levels[2..]);
        assert_eq!(find(&["test.jsonl", "README.md"], Some("math500"), None, Some("test")).unwrap(), ["test.jsonl"]);
        assert_eq!(find(&["a.jsonl", "b.jsonl"], None, None, Some("train")).unwrap(), ["a.jsonl", "b.jsonl"]);
        let mixed = ["train.jsonl", "data/train-00000-of-00001.parquet"];
        assert_eq!(find(&mixed, Some("bigmath"), None, None).unwrap(), mixed[1..]);
        let converted = ["en/train/0000.parquet", "en/train/0001.parquet", "cn/train/0000.parquet"];
        assert_eq!(find(&converted, Some("dapo_math"), Some("en"), None).unwrap(), converted[..2]);
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let error = find(&GSM8K, Some("gsm8k"), Some("minor"), None).unwrap_err();
        assert!(error.hint_text().unwrap().contains("main, socratic"));
        let error = find(&GSM8K, Some("gsm8k"), None, Some("validation")).unwrap_err();
        assert!(error.hint_text().unwrap().contains("main/test-00000-of-00001.parquet"));
        assert!(find(&GSM8K, None, None, None).unwrap_err().to_string().contains("main, socratic"));
        assert!(find(&["README.md", "dataset_infos.json"], None, None, None).is_err());
    }
}
