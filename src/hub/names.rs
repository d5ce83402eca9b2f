//! Names that came from outside: repositories, revisions and file paths.

use crate::error::Kind;
use crate::{Error, Result};

/// `owner/name` (or `name`) of letters, digits, `-`, `_` and `.`, as the hub allows.
///
/// # Errors
/// Anything else.
pub fn check_repo(repo: &str) -> Result<()> {
    let part = |p: &str| {
        !p.is_empty()
            && p.len() <= 96
            && p.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && !p.starts_with(['-', '.'])
            && !p.ends_with(['-', '.'])
            && !p.contains("..")
            && !p.contains("--")
    };
    if repo.split('/').count() <= 2 && repo.split('/').all(part) {
        return Ok(());
    }
    Err(Error::usage(format!("`{}` is not the name of a hub repository", shown(repo)))
        .hint("write `owner/name`, `file:PATH` for something local, or `bundled`"))
}

/// A branch, tag, commit or `refs/pr/N`.
///
/// # Errors
/// Empty ones, and what could leave the cache's `refs` folder.
pub fn check_revision(revision: &str) -> Result<()> {
    check_path(revision).map_err(|_| {
        Error::usage(format!("`{}` is not a revision", shown(revision))).hint("give a branch, a tag or a commit")
    })
}

/// A commit as the hub writes it.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A relative path of plain components: no `..`, no root, no backslash, no NUL or control characters.
///
/// # Errors
/// Names that could leave the folder they are put into, on any system.
pub fn check_path(path: &str) -> Result<()> {
    let component = |c: &str| !c.is_empty() && c != "." && c != ".." && c.len() <= 255 && !is_reserved(c);
    let plain = !path.is_empty()
        && path.len() <= 1024
        && !path.chars().any(|c| c.is_control() || c == '\\')
        && path.split('/').all(component)
        // A drive (`C:x`) or a stream (`x:y`) where a colon means one.
        && path.as_bytes().get(1) != Some(&b':');
    if plain {
        return Ok(());
    }
    Err(Error::new(Kind::Integrity, format!("the file name `{}` is not safe", shown(path)))
        .hint("files are refused whose names hold `..`, a root, a backslash, control characters or a device's name; do not use this source"))
}

/// Names that mean a device on some system, and git's own folder.
fn is_reserved(component: &str) -> bool {
    const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];
    let lower = component.to_ascii_lowercase();
    let numbered = |name: &str| {
        lower.strip_prefix(name).is_some_and(|n| n.len() == 1 && n.bytes().all(|b| b.is_ascii_digit() && b != b'0'))
    };
    lower == ".git" || DEVICES.contains(&lower.as_str()) || numbered("com") || numbered("lpt")
}

/// Percent-encodes a path for an address; `/` stays.
pub(super) fn encode_path(path: &str) -> String {
    path.split('/').map(encode_segment).collect::<Vec<_>>().join("/")
}

/// Percent-encodes everything but RFC 3986's unreserved characters.
pub(super) fn encode_segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// Outside text for a message: escaped and short.
pub(super) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(120).flat_map(char::escape_debug).collect();
    if text.chars().nth(120).is_some() {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused() {
        for bad in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../b",
            "a/..",
            "a//b",
            "./a",
            "a/",
            "a\\b",
            "..\\x",
            "a\0b",
            "a\nb",
            "C:x",
            "C:/x",
            "nul",
            "a/Con",
            "lpt1/x",
            ".git/config",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        for good in [
            "config.json",
            "data/train-00000-of-00001.parquet",
            "a..b/c",
            ".gitattributes",
            "übung.txt",
            "con.json",
            "com/x",
        ] {
            assert!(check_path(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn repositories_and_revisions() {
        for good in ["Qwen/Qwen2.5-7B-Instruct", "gpt2", "open-r1/Big-Math-RL-Verified-Processed", "a/b_c"] {
            assert!(check_repo(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b/c", "../x", "a/..", "a b/c", "a/-b", "a--b/c", "a/b?x", "/a"] {
            assert!(check_repo(bad).is_err(), "{bad}");
        }
        assert!(check_revision("refs/pr/1").is_ok() && check_revision("main").is_ok());
        assert!(check_revision("../../x").is_err() && check_revision("").is_err());
        assert_eq!(encode_path("a b/c%d"), "a%20b/c%25d");
        assert_eq!(encode_segment("refs/pr/1"), "refs%2Fpr%2F1");
        assert!(is_commit(&"0a".repeat(20)) && !is_commit("main") && !is_commit(&"0A".repeat(20)));
    }
}
