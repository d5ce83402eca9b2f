//! `/api/models|datasets/REPO/revision/REV?blobs=true` and `/tree/`: the commit behind a revision and its files.

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

    /// The id becomes a file name: digits only, and as many as its kind has.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Sha256(id) => id.len() == 64 && names::is_commit(id),
            Self::Git(id) => names::is_commit(id),
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

/// A page of `/api/models|datasets/REPO/tree/COMMIT` has at most 1,000 entries today.
const MAX_PAGE: u64 = 32 << 20;
const MAX_FILES: usize = 1_000_000;

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    size: Option<u64>,
    oid: Option<String>,
    lfs: Option<Lfs>,
}

/// What is asked, for messages.
#[derive(Clone, Copy)]
struct Asked<'a> {
    http: &'a Http,
    wanted: Wanted<'a>,
    cancel: &'a Cancel,
}

pub(super) fn resolve(
    http: &Http,
    repo: &str,
    dataset: bool,
    revision: &str,
    listing_limit: usize,
    cancel: &Cancel,
) -> Result<Snapshot> {
    let asked = Asked { http, wanted: Wanted { repo, dataset, revision, file: None }, cancel };
    let url = format!("{}/revision/{}?blobs=true", asked.api(), names::encode_segment(revision));
    let (bytes, _) = http.get(&url, &asked.wanted, MAX_ANSWER, cancel)?;
    let answer: Answer = serde_json::from_slice(&bytes).map_err(|e| asked.not_a_hub(e))?;
    drop(bytes);
    // Very long descriptions are cut short, and some mirrors leave sizes and digests out.
    let lacking = |s: &Sibling| s.lfs.is_none() && (s.size.is_none() || s.blob_id.is_none());
    if answer.siblings.len() < listing_limit && !answer.siblings.iter().any(lacking) {
        return snapshot(answer, repo, dataset, revision);
    }
    let commit = answer.sha.as_deref().filter(|sha| names::is_commit(sha)).ok_or_else(|| no_commit(repo))?;
    let siblings = tree(&asked, commit)?;
    snapshot(Answer { siblings, ..answer }, repo, dataset, revision)
}

/// All files of a commit, page by page.
fn tree(asked: &Asked<'_>, commit: &str) -> Result<Vec<Sibling>> {
    let mut next = Some(format!("{}/tree/{commit}?recursive=true", asked.api()));
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    while let Some(url) = next {
        if !seen.insert(url.clone()) || files.len() > MAX_FILES {
            return Err(bad(asked.wanted.repo, "never ends".to_owned()));
        }
        let (bytes, after) = asked.http.get(&url, &asked.wanted, MAX_PAGE, asked.cancel)?;
        let page: Vec<TreeEntry> = serde_json::from_slice(&bytes).map_err(|e| asked.not_a_hub(e))?;
        files.extend(page.into_iter().filter(|entry| entry.kind == "file").map(|entry| Sibling {
            rfilename: entry.path,
            size: entry.size,
            blob_id: entry.oid,
            lfs: entry.lfs,
        }));
        next = after;
    }
    Ok(files)
}

impl Asked<'_> {
    fn api(&self) -> String {
        let kind = if self.wanted.dataset { "datasets" } else { "models" };
        format!("{}/api/{kind}/{}", self.http.endpoint(), self.wanted.repo)
    }

    fn not_a_hub(&self, error: serde_json::Error) -> Error {
        let repo = self.wanted.repo;
        Error::new(Kind::Network, format!("the hub answered something else than a description of `{repo}`"))
            .hint("check HF_ENDPOINT: a proxy or login page may answer in the hub's place")
            .caused_by(error)
    }
}

fn bad(repo: &str, what: String) -> Error {
    Error::new(Kind::Network, format!("the hub's description of `{repo}` {what}"))
        .hint("check HF_ENDPOINT; a mirror must answer as the hub does, with `?blobs=true`")
}

fn no_commit(repo: &str) -> Error {
    bad(repo, "names no commit".to_owned())
}

fn snapshot(answer: Answer, repo: &str, dataset: bool, revision: &str) -> Result<Snapshot> {
    let commit = answer.sha.filter(|sha| names::is_commit(sha)).ok_or_else(|| no_commit(repo))?;
    let mut files = Vec::with_capacity(answer.siblings.len());
    for sibling in answer.siblings {
        let path = sibling.rfilename;
        names::check_path(&path).map_err(|e| e.within(format!("repository `{repo}`")))?;
        let (size, id) = match sibling.lfs {
            Some(lfs) => (
                lfs.size.or(sibling.size),
                lfs.sha256
                    .or_else(|| lfs.oid.map(|oid| oid.trim_start_matches("sha256:").to_owned()))
                    .map(BlobId::Sha256),
            ),
            None => (sibling.size, sibling.blob_id.map(BlobId::Git)),
        };
        match (size, id.filter(BlobId::is_valid)) {
            (Some(size), Some(id)) => files.push(RemoteFile { path, size, id }),
            _ => return Err(bad(repo, format!("has no size or digest of `{path}`"))),
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    check_tree(repo, &files)?;
    Ok(Snapshot { repo: repo.to_owned(), dataset, revision: revision.to_owned(), commit, files })
}

/// Every path once, and none both a file and a folder. `files` are sorted.
pub(super) fn check_tree(repo: &str, files: &[RemoteFile]) -> Result<()> {
    let all: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    if let Some(twice) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(bad(repo, format!("lists `{}` twice", twice[0].path)));
    }
    let folders = |file: &RemoteFile| {
        let path = file.path.clone();
        path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect::<Vec<_>>()
    };
    match files.iter().flat_map(folders).find(|folder| all.contains(folder.as_str())) {
        Some(both) => Err(bad(repo, format!("has `{both}` both as a file and as a folder"))),
        None => Ok(()),
    }
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
        for (path, id) in
            [("../x", git.as_str()), ("/x", &git), ("a\\\\b", &git), ("nul", &git), ("x", "../../evil"), ("x", "")]
        {
            let text =
                format!(r#"{{"sha":"{commit}","siblings":[{{"rfilename":"{path}","size":1,"blobId":"{id}"}}]}}"#);
            assert!(parse(&text).is_err(), "{text}");
        }
        assert!(parse(r#"{"sha":"../..","siblings":[]}"#).is_err());
        assert!(parse(r#"{"siblings":[]}"#).is_err());
        let file = |path: &str| format!(r#"{{"rfilename":"{path}","size":1,"blobId":"{git}"}}"#);
        for (one, two) in [("a", "a"), ("a", "a/b"), ("a/b/c", "a")] {
            let text = format!(r#"{{"sha":"{commit}","siblings":[{},{}]}}"#, file(one), file(two));
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}
