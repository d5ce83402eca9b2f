//! Names of artifacts: `PIPELINE:STAGE@AXIS=LABEL,...` -> the fingerprint that instance last had.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::draft::write_atomic;
use super::{Artifact, Store, is_fingerprint, unreadable};
use crate::{Error, Result};

/// `PIPELINE:STAGE@AXIS=LABEL,...`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub pipeline: String,
    pub stage: String,
    pub point: BTreeMap<String, String>,
}

impl Address {
    /// `train@seed=1,variant=x`, the axes sorted.
    pub fn instance(&self) -> String {
        if self.point.is_empty() {
            return self.stage.clone();
        }
        let point: Vec<String> = self.point.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
        format!("{}@{}", self.stage, point.join(","))
    }
}

/// Reads an address; the error says what one looks like.
pub fn parse_address(text: &str) -> Result<Address> {
    let wrong = |what: &str| {
        Error::usage(format!("`{text}` is not an address: {what}"))
            .hint("an address is PIPELINE:STAGE or PIPELINE:STAGE@AXIS=LABEL,AXIS=LABEL, such as tiny:train@seed=1")
    };
    let (pipeline, instance) = text.split_once(':').ok_or_else(|| wrong("there is no `:`"))?;
    let (stage, at) = instance.split_once('@').map_or((instance, None), |(stage, at)| (stage, Some(at)));
    if pipeline.is_empty() || stage.is_empty() {
        return Err(wrong("the pipeline's and the stage's name must not be empty"));
    }
    let mut point = BTreeMap::new();
    for pair in at.into_iter().flat_map(|at| at.split(',')) {
        let (axis, label) = pair.split_once('=').ok_or_else(|| wrong("after `@` come AXIS=LABEL pairs"))?;
        if point.insert(axis.to_owned(), label.to_owned()).is_some() {
            return Err(wrong(&format!("the axis `{axis}` stands twice")));
        }
    }
    Ok(Address { pipeline: pipeline.to_owned(), stage: stage.to_owned(), point })
}

impl Store {
    /// Remembers that `instance` of `pipeline` now is `fingerprint`.
    pub fn set_name(&self, pipeline: &str, instance: &str, fingerprint: &str) -> Result<()> {
        let path = self.name_path(pipeline, instance);
        if std::fs::read_to_string(&path).is_ok_and(|known| known == fingerprint) {
            return Ok(());
        }
        write_atomic(&path, fingerprint.as_bytes())
    }

    /// The fingerprint that `instance` of `pipeline` had when it last finished.
    pub fn named(&self, pipeline: &str, instance: &str) -> Result<Option<String>> {
        let path = self.name_path(pipeline, instance);
        match std::fs::read_to_string(&path) {
            Ok(text) if is_fingerprint(&text) => Ok(Some(text)),
            Ok(_) => Ok(None),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(unreadable(&path, e)),
        }
    }

    /// Instance name -> fingerprint, for one pipeline.
    pub fn names(&self, pipeline: &str) -> Result<BTreeMap<String, String>> {
        let folder = self.root.join("names").join(file_name(pipeline));
        Ok(list(&folder)?
            .into_iter()
            .filter_map(|(name, path)| Some((decode(&name), std::fs::read_to_string(path).ok()?)))
            .filter(|(_, fingerprint)| is_fingerprint(fingerprint))
            .collect())
    }

    /// Every pipeline that has finished something in this store.
    pub fn pipelines(&self) -> Result<Vec<String>> {
        Ok(list(&self.root.join("names"))?.into_keys().map(|name| decode(&name)).collect())
    }

    /// The artifact at `PIPELINE:STAGE@...`.
    pub fn resolve(&self, address: &str) -> Result<Artifact> {
        let parsed = parse_address(address)?;
        if let Some(fingerprint) = self.named(&parsed.pipeline, &parsed.instance())?
            && let Some(artifact) = self.get(&fingerprint)?
        {
            return Ok(artifact);
        }
        let known = self.names(&parsed.pipeline)?;
        let hint = if known.is_empty() {
            let pipelines = self.pipelines()?;
            match nearest(&parsed.pipeline, pipelines.iter()) {
                Some(name) => format!("did you mean the pipeline `{name}`?"),
                None => "run the pipeline first: `qerl run FILE`".to_owned(),
            }
        } else {
            let of_stage: Vec<&String> =
                known.keys().filter(|n| n.split('@').next() == Some(&parsed.stage)).take(12).collect();
            if of_stage.is_empty() {
                let stages =
                    known.keys().filter_map(|n| n.split('@').next()).collect::<std::collections::BTreeSet<_>>();
                format!("finished stages of that pipeline: {}", stages.into_iter().collect::<Vec<_>>().join(", "))
            } else {
                let names: Vec<String> = of_stage.iter().map(|n| format!("{}:{n}", parsed.pipeline)).collect();
                format!("finished instances of that stage: {}", names.join(" "))
            }
        };
        Err(Error::missing(format!("nothing finished is stored for `{address}`")).hint(hint))
    }

    fn name_path(&self, pipeline: &str, instance: &str) -> PathBuf {
        self.root.join("names").join(file_name(pipeline)).join(file_name(instance))
    }
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    known
        .map(|k| (strsim::jaro_winkler(name, k), k))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k)
}

/// File name -> path, temp files left out.
fn list(folder: &std::path::Path) -> Result<BTreeMap<String, PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(unreadable(folder, e)),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|e| unreadable(folder, e))?;
        if let Some(name) = entry.file_name().to_str()
            && !name.starts_with('.')
        {
            found.insert(name.to_owned(), entry.path());
        }
    }
    Ok(found)
}

/// A file name for any text: every byte but `[A-Za-z0-9_=@,-]` and inner dots is `%XX`.
pub fn file_name(text: &str) -> String {
    let mut out = String::new();
    for (i, byte) in text.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || b"_=@,-".contains(&byte) || (byte == b'.' && i > 0) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    if out.len() > 200 {
        // Too long for a file name; listing shows the hash, exact addresses still resolve.
        out = format!("%{}", blake3::hash(text.as_bytes()).to_hex());
    }
    out
}

fn decode(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut out = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| name.get(i + 1..i + 3).and_then(|h| u8::from_str_radix(h, 16).ok()));
        if let Some(Some(byte)) = hex {
            out.push(byte);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let address = parse_address("tiny:train@variant=nvfp4-aqn,seed=1").unwrap();
        assert_eq!(address.pipeline, "tiny");
        assert_eq!(address.instance(), "train@seed=1,variant=nvfp4-aqn");
        assert_eq!(parse_address("tiny:base").unwrap().instance(), "base");
        for bad in ["base", ":base", "tiny:", "tiny:train@seed", "tiny:train@a=1,a=2"] {
            assert_eq!(parse_address(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn names_survive_any_label() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let fingerprint = "a".repeat(64);
        for name in ["train@x=../../etc", "t@x=é/ü", ".hidden", "data.gsm8k.download", "a%2Fb"] {
            store.set_name("p/../q", name, &fingerprint).unwrap();
            assert_eq!(store.named("p/../q", name).unwrap().as_ref(), Some(&fingerprint));
            assert!(store.names("p/../q").unwrap().contains_key(name), "{name}");
        }
        assert_eq!(store.named("p", "none").unwrap(), None);
        assert_eq!(store.pipelines().unwrap(), ["p/../q"]);
    }
}
