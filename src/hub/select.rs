//! Which files of a repository a model or data set needs.

use crate::{Error, Result};

/// What of a repository is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want<'a> {
    pub dataset: bool,
    /// Only files that match one of these; what a model or data set needs where empty.
    pub globs: &'a [String],
    /// Of a data set: the hub's configuration, a folder of it.
    pub config: Option<&'a str>,
}

/// Indices into `paths` of the files to take, in their order.
///
/// Adapters in PEFT's format without a model: their two files. Models: configuration, tokenizer and chat templates of the top folder, and the weights as safetensors (all shards)
/// or, where there are none, the one GGUF file. Data sets: parquet files, else JSON lines or JSON; and the card,
/// which may say what is what.
///
/// # Errors
/// When the globs match nothing, or the repository lacks what is needed or offers a choice.
pub fn choose(paths: &[&str], want: &Want<'_>) -> Result<Vec<usize>> {
    let taken: Vec<usize> = if !want.globs.is_empty() {
        let hit = |path: &str| want.globs.iter().any(|glob| matches(glob, path));
        indices(paths, hit)
    } else if want.dataset {
        data_set(paths, want.config)?
    } else {
        model(paths)?
    };
    if !taken.is_empty() {
        return Ok(taken);
    }
    let shown: Vec<&str> = paths.iter().copied().take(8).collect();
    Err(Error::usage(format!("no file of the repository matches {}", want.globs.join(", "))).hint(format!(
        "it holds {} files: {}{}",
        paths.len(),
        shown.join(", "),
        if paths.len() > 8 { ", ..." } else { "" }
    )))
}

/// `*` matches within and across folders, as the hub's own clients have it; `?` one character.
pub fn matches(glob: &str, path: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), path.chars().collect());
    // Where to go on after the last `*`, and what it has eaten so far.
    let (mut g, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g + 1, t));
                g += 1;
            }
            Some('?') => (g, t) = (g + 1, t + 1),
            Some(c) if *c == text[t] => (g, t) = (g + 1, t + 1),
            _ => match star {
                Some((after, eaten)) => {
                    star = Some((after, eaten + 1));
                    (g, t) = (after, eaten + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

fn indices(paths: &[&str], keep: impl Fn(&str) -> bool) -> Vec<usize> {
    (0..paths.len()).filter(|i| keep(paths[*i])).collect()
}

fn model(paths: &[&str]) -> Result<Vec<usize>> {
    let has = |name: &str| paths.contains(&name);
    const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
    if ADAPTER.iter().all(|name| has(name)) && !has("config.json") {
        return Ok(indices(paths, |path| ADAPTER.contains(&path)));
    }
    let top = |path: &str, end: &str| !path.contains('/') && path.ends_with(end);
    let weights = weights(paths)?;
    let gguf = weights.iter().any(|w| w.ends_with(".gguf"));
    if !gguf && !has("config.json") {
        return Err(Error::missing("the repository has no config.json: it holds no model that qerl can read")
            .hint("for a data set say `dataset: true`; for single files name them under `files`"));
    }
    let small = |path: &str| {
        let index = path.ends_with(".index.json");
        (top(path, ".json") && !index)
            || (path == "model.safetensors.index.json" && weights.len() > 1)
            || top(path, ".jinja")
            || (path.starts_with("additional_chat_templates/") && path.ends_with(".jinja"))
            || top(path, ".model")
            || matches!(path, "merges.txt" | "vocab.txt")
    };
    Ok(indices(paths, |path| weights.contains(&path) || (!gguf && small(path))))
}

/// The weights' files: one format, one precision, all shards.
fn weights<'p>(paths: &[&'p str]) -> Result<Vec<&'p str>> {
    let ending = |end: &'static str| paths.iter().copied().filter(move |p| !p.contains('/') && p.ends_with(end));
    let safetensors: Vec<&str> = ending(".safetensors")
        .filter(|p| !p.starts_with("adapter_") && !p.starts_with("consolidated") && !p.starts_with("optimizer"))
        .collect();
    let shards: Vec<&str> = safetensors.iter().copied().filter(|p| shard(p).is_some_and(|s| s.0 == "model")).collect();
    if paths.contains(&"model.safetensors.index.json") && !shards.is_empty() {
        let count = shard(shards[0]).map_or(0, |s| s.2);
        if shards.len() as u64 != count {
            return Err(Error::missing(format!(
                "the repository has {} of {count} shards of the weights",
                shards.len()
            ))
            .hint("its upload is not complete: choose another revision"));
        }
        return Ok(shards);
    }
    if paths.contains(&"model.safetensors") {
        return Ok(vec!["model.safetensors"]);
    }
    if !safetensors.is_empty() {
        return Ok(safetensors);
    }
    let gguf: Vec<&str> = ending(".gguf").filter(|p| !p.starts_with("mmproj")).collect();
    match gguf.as_slice() {
        [one] => Ok(vec![one]),
        [] => {
            let pickled = paths.iter().find(|p| [".bin", ".pt", ".pth"].iter().any(|end| p.ends_with(end)));
            Err(match pickled {
                Some(file) => Error::input(format!("the weights are there only in a pickled form (`{file}`)")).hint(
                    "qerl reads safetensors and GGUF: choose a revision (often `refs/pr/1`) or a copy that has them",
                ),
                None => Error::missing("the repository holds no weights as safetensors or GGUF")
                    .hint("for a data set say `dataset: true`"),
            })
        }
        many => Err(Error::usage(format!("the repository holds {} GGUF files", many.len()))
            .hint(format!("name one under `files`: {}", many.join(", ")))),
    }
}

/// `model-00001-of-00003.safetensors` -> (`model`, 1, 3).
fn shard(path: &str) -> Option<(&str, u64, u64)> {
    let (stem, count) = path.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (name, number) = stem.rsplit_once('-')?;
    Some((name, number.parse().ok()?, count.parse().ok()?))
}

/// Endings of data files, best first: only one kind is taken. Those of a row are one kind.
const DATA_ENDINGS: [&[&str]; 2] = [&[".parquet"], &[".jsonl", ".json", ".ndjson"]];

fn is_data(path: &str, endings: &[&str]) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    // Descriptions of the data set, not rows.
    let about = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "metadata.json"];
    endings.iter().any(|end| name.ends_with(end)) && !about.contains(&name) && !name.starts_with('.')
}

fn data_set(paths: &[&str], config: Option<&str>) -> Result<Vec<usize>> {
    let Some(endings) = DATA_ENDINGS.iter().find(|ends| paths.iter().any(|p| is_data(p, ends))) else {
        return Err(Error::missing("the repository holds no parquet or JSON lines files")
            .hint("choose the revision `refs/convert/parquet`, to which the hub converts data sets"));
    };
    let data: Vec<&str> = paths.iter().copied().filter(|p| is_data(p, endings)).collect();
    let of_config = data_files(&data, config, None);
    Ok(indices(paths, |path| path == "README.md" || of_config.contains(&path)))
}

/// The files of a configuration and split among a data set's, by the hub's own rules for names: the configuration is
/// a folder (`main/`, `data/main/`); the split is the file's name or its beginning (`test.jsonl`,
/// `train-00000-of-00002.parquet`) or a folder. A configuration that is no folder, and a split that no name tells,
/// stand for all files (`train` then).
pub fn data_files<'p>(paths: &[&'p str], config: Option<&str>, split: Option<&str>) -> Vec<&'p str> {
    let folders = |path: &str| -> Vec<String> {
        let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        parts.pop();
        parts
    };
    let in_config: Vec<&str> = match config {
        Some(config) => paths.iter().copied().filter(|p| folders(p).iter().any(|f| f == config)).collect(),
        None => Vec::new(),
    };
    let files = if in_config.is_empty() { paths.to_vec() } else { in_config };
    let Some(split) = split else { return files };
    let is_split = |path: &str, split: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let rest = name.strip_prefix(split);
        let named = rest.is_some_and(|rest| rest.starts_with(['.', '-', '_']));
        // The configuration's folder may be called like a split.
        named || folders(path).iter().rev().take_while(|f| config != Some(f.as_str())).any(|f| f == split)
    };
    let of_split: Vec<&str> = files.iter().copied().filter(|p| is_split(p, split)).collect();
    let nameless = |path: &&str| ["train", "test", "validation", "dev", "eval"].iter().any(|s| is_split(path, s));
    if of_split.is_empty() && split == "train" && !files.iter().any(nameless) {
        return files;
    }
    of_split
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken<'p>(paths: &[&'p str], want: &Want<'_>) -> Vec<&'p str> {
        choose(paths, want).unwrap().into_iter().map(|i| paths[i]).collect()
    }

    #[test]
    fn globs() {
        for (glob, text, is) in [
            ("*.json", "config.json", true),
            ("*.json", "a/config.json", true),
            ("main/*", "main/x.parquet", true),
            ("main/*", "other/x.parquet", false),
            ("model-?????-of-*", "model-00001-of-00002.safetensors", true),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbx", false),
            ("?", "ü", true),
            ("", "", true),
            ("a", "", false),
        ] {
            assert_eq!(matches(glob, text), is, "{glob} {text}");
        }
        let globs = ["*.bin".to_owned()];
        let want = Want { globs: &globs, ..Want::default() };
        assert_eq!(taken(&["a.bin", "a.json"], &want), ["a.bin"]);
        assert!(choose(&["a.json"], &want).unwrap_err().hint_text().unwrap().contains("a.json"));
    }

    #[test]
    fn a_model_takes_one_form_of_its_weights() {
        let paths = [
            ".gitattributes",
            "README.md",
            "additional_chat_templates/tools.jinja",
            "chat_template.jinja",
            "config.json",
            "consolidated.safetensors",
            "generation_config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "original/params.json",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "tokenizer.json",
            "tokenizer.model",
        ];
        let want = [
            "additional_chat_templates/tools.jinja",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model",
        ];
        assert_eq!(taken(&paths, &Want::default()), want);
        let single = ["config.json", "model.fp16.safetensors", "model.safetensors"];
        assert_eq!(taken(&single, &Want::default()), ["config.json", "model.safetensors"]);
        assert_eq!(taken(&["README.md", "m.Q4_K_M.gguf"], &Want::default()), ["m.Q4_K_M.gguf"]);
        let adapter = ["README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"];
        assert_eq!(taken(&adapter, &Want::default()), adapter[1..3]);
    }

    #[test]
    fn what_is_no_model_is_refused_with_the_reason() {
        for (paths, word) in [
            (&["config.json", "pytorch_model.bin"][..], "pickled"),
            (&["adapter_config.json", "adapter_model.bin"], "pickled"),
            (&["a.gguf", "b.gguf"], "2 GGUF"),
            (&["model.safetensors"], "config.json"),
            (&["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"], "1 of 2 shards"),
            (&["README.md"], "no weights"),
        ] {
            let error = choose(paths, &Want::default()).unwrap_err();
            assert!(error.to_string().contains(word) && error.hint_text().is_some(), "{paths:?}: {error}");
        }
    }

    #[test]
    fn a_data_set_takes_the_rows_of_its_configuration() {
        let gsm8k = [
            "README.md",
            "main/test-00000-of-00001.parquet",
            "main/train-00000-of-00001.parquet",
            "socratic/test-00000-of-00001.parquet",
        ];
        let want = Want { dataset: true, config: Some("main"), ..Want::default() };
        assert_eq!(taken(&gsm8k, &want), &gsm8k[..3]);
        assert_eq!(taken(&gsm8k, &Want { config: None, ..want }), gsm8k);
        assert_eq!(data_files(&gsm8k[1..], Some("main"), Some("test")), [gsm8k[1]]);
        let lines = ["README.md", "dataset_infos.json", "test.jsonl", "x.csv"];
        assert_eq!(taken(&lines, &want), ["README.md", "test.jsonl"]);
        assert!(choose(&["README.md", "a.py"], &want).is_err());
    }

    #[test]
    fn splits_are_told_by_names() {
        let paths = ["data/train-00000-of-00001.parquet", "data/test/0.parquet"];
        assert_eq!(data_files(&paths, None, Some("test")), [paths[1]]);
        assert_eq!(data_files(&paths, None, Some("validation")), [""; 0]);
        assert_eq!(data_files(&["rows.jsonl"], None, Some("train")), ["rows.jsonl"]);
        assert_eq!(data_files(&["test.jsonl"], None, Some("train")), [""; 0]);
        assert_eq!(
            data_files(&["test/train.jsonl", "test/test.jsonl"], Some("test"), Some("test")),
            ["test/test.jsonl"]
        );
    }
}
