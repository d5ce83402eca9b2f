//! `/api/models|datasets/REPO/revision/REV?blobs=true`: the commit behind a revision and its files.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::http::{Http, Wanted};
use super::names;
use crate::control::Cancel;
use crate::error::Kind;
use crate::{Error, Result};

/// The answer of a repository with 100,000 files is about 30 MB.
const MAX_ANSWER: u64 = 256 << 20;

/// What the hub names a file's content by; also its name among the cache's blobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobId {
    /// Large files (LFS, Xet).
    Sha256(String),
    /// Files kept in git itself: sha1 of `blob SIZE\0` and the content.
    Git(String),
}

impl BlobId {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(id) | Self::Git(id) => id,
        }
    }
}

/// One file of a commit, as the hub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Checked: see [`names::check_path`].
    pub path: String,
    pub size: u64,
    pub id: BlobId,
}

/// A commit and its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub repo: String,
    pub dataset: bool,
    /// As it was asked for.
    pub revision: String,
    pub commit: String,
    /// In order of their paths.
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Answer {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    oid: Option<String>,
    size: Option<u64>,
}

pub(super) fn resolve(http: &Http, repo: &str, dataset: bool, revision: &str, cancel: &Cancel) -> Result<Snapshot> {
    let kind = if dataset { "datasets" } else { "models" };
    let url = format!(
        "{}/api/{kind}/{repo}/revision/{}?blobs=true",
        http.endpoint(),
        names::encode_segment(revision)
    );
    let wanted = Wanted { repo, dataset, revision, file: None };
    let bytes = http.get(&url, &wanted, MAX_ANSWER, cancel)?;
    let answer: Answer = serde_json::from_slice(&bytes).map_err(|e| {
        Error::new(Kind::Network, format!("{} answered something else than a description of `{repo}`", http.endpoint()))
            .hint("check HF_ENDPOINT: a proxy or login page may answer in the hub's place")
            .caused_by(e)
    })?;
    snapshot(answer, repo, dataset, revision)
}

fn snapshot(answer: Answer, repo: &str, dataset: bool, revision: &str) -> Result<Snapshot> {
    let bad = |what: String| {
        Error::new(Kind::Network, format!("the hub's description of `{repo}` {what}"))
            .hint("check HF_ENDPOINT; a mirror must answer as the hub does, with `?blobs=true`")
    };
    let commit = answer.sha.filter(|sha| names::is_commit(sha)).ok_or_else(|| bad("names no commit".into()))?;
    let mut files = Vec::with_capacity(answer.siblings.len());
    let mut seen = BTreeSet::new();
    for sibling in answer.siblings {
        let path = sibling.rfilename;
        names::check_path(&path).map_err(|e| e.within(format!("repository `{repo}`")))?;
        if !seen.insert(path.clone()) {
            return Err(bad(format!("lists `{path}` twice")));
        }
        let (size, id) = match sibling.lfs {
            Some(lfs) => (
                lfs.size.or(sibling.size),
                lfs.sha256.or_else(|| lfs.oid.map(|oid| oid.trim_start_matches("sha256:").to_owned())).map(BlobId::Sha256),
            ),
            None => (sibling.size, sibling.blob_id.map(BlobId::Git)),
        };
        // The id becomes a file name.
        let id = id.filter(|id| match id {
            BlobId::Sha256(id) => id.len() == 64 && names::is_commit(id),
            BlobId::Git(id) => names::is_commit(id),
        });
        match (size, id) {
            (Some(size), Some(id)) => files.push(RemoteFile { path, size, id }),
            _ => return Err(bad(format!("has no size or digest of `{path}`"))),
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Snapshot { repo: repo.to_owned(), dataset, revision: revision.to_owned(), commit, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Snapshot> {
        snapshot(serde_json::from_str(json).unwrap(), "a/b", false, "main")
    }

    #[test]
    fn files_carry_size_and_digest() {
        let (commit, git, lfs) = ("0f".repeat(20), "1e".repeat(20), "2d".repeat(32));
        let got = parse(&format!(
            r#"{{"sha":"{commit}","siblings":[{{"rfilename":"w/m.safetensors","size":9,"blobId":"{git}","lfs":{{"sha256":"{lfs}","size":9,"pointerSize":1}}}},{{"rfilename":"config.json","size":3,"blobId":"{git}"}}]}}"#
        ))
        .unwrap();
        assert_eq!(got.commit, commit);
        assert_eq!(got.files[0], RemoteFile { path: "config.json".into(), size: 3, id: BlobId::Git(git) });
        assert_eq!(got.files[1], RemoteFile { path: "w/m.safetensors".into(), size: 9, id: BlobId::Sha256(lfs) });
    }

    #[test]
    fn hostile_answers_are_refused() {
        let (commit, git) = ("0f".repeat(20), "1e".repeat(20));
        for (path, id) in [("../x", git.as_str()), ("/x", &git), ("a\\\\b", &git), ("x", "../../evil"), ("x", "")] {
            let text = format!(r#"{{"sha":"{commit}","siblings":[{{"rfilename":"{path}","size":1,"blobId":"{id}"}}]}}"#);
            assert!(parse(&text).is_err(), "{text}");
        }
        assert!(parse(r#"{"sha":"../..","siblings":[]}"#).is_err());
        assert!(parse(r#"{"siblings":[]}"#).is_err());
    }
}
