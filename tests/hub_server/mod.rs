//! A hub in small, for tests: serves a folder over HTTP as huggingface.co does, and misbehaves when told to.
//!
//! `ROOT/models/OWNER/NAME/...` and `ROOT/datasets/OWNER/NAME/...` are repositories; every revision but `gone` is
//! their one commit. Large kinds of files are redirected to a second origin, as the hub does with its storage.
#![allow(dead_code)] // Each test crate uses a part of it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::Digest;

/// What goes wrong; changed while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Requests to the hub itself need this token.
    pub token: Option<String>,
    /// 403 with `GatedRepo`.
    pub gated: bool,
    /// Answered to the next requests of files instead of what was asked for.
    pub statuses: VecDeque<u16>,
    /// So many answers with a file end after so many bytes of the body.
    pub cut: Option<(usize, usize)>,
    /// So many answers with a file say nothing more after so many bytes.
    pub stall: Option<(usize, usize)>,
    /// So many answers with a file have a wrong byte.
    pub corrupt: usize,
    /// Listings promise one byte more.
    pub wrong_size: bool,
    /// Every answer is the whole file.
    pub ignore_range: bool,
    /// Pause after each piece of 16 KiB.
    pub slow: Option<Duration>,
    /// Further names in listings.
    pub extra_names: Vec<String>,
    /// Descriptions come without sizes and digests, as some mirrors do it.
    pub no_sizes: bool,
    /// Entries on a page of a tree; the page after the last names itself as the next where `endless`.
    pub page: Option<usize>,
    pub endless: bool,
    /// The next page is said to be at another host.
    pub page_elsewhere: bool,
    /// Answer to every request of the API.
    pub api_body: Option<String>,
    /// Where large files are redirected to, in place of the second origin.
    pub redirect: Option<String>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// At the second origin.
    pub storage: bool,
    pub path: String,
    pub token: Option<String>,
    pub range: Option<String>,
    pub if_range: Option<String>,
}

struct Shared {
    root: PathBuf,
    faults: Mutex<Faults>,
    seen: Mutex<Vec<Seen>>,
    stop: AtomicBool,
    hub: String,
    storage: String,
}

/// Stops when dropped.
pub struct Server(Arc<Shared>);

impl Server {
    pub fn start(root: &Path) -> Self {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, storage) = (bind(), bind());
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            root: root.to_path_buf(),
            faults: Mutex::default(),
            seen: Mutex::default(),
            stop: AtomicBool::new(false),
            hub: address(&hub),
            storage: address(&storage),
        });
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if shared.stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let shared = shared.clone();
                    // A client that hangs up is no failure of the server.
                    std::thread::spawn(move || drop(shared.answer(stream, is_storage)));
                }
            });
        }
        Self(shared)
    }

    /// For `HF_ENDPOINT`.
    pub fn endpoint(&self) -> &str {
        &self.0.hub
    }

    pub fn storage(&self) -> &str {
        &self.0.storage
    }

    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.faults.lock().unwrap()
    }

    /// All requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.seen.lock().unwrap())
    }

    /// The commit of every repository.
    pub fn commit() -> String {
        "0123456789abcdef0123456789abcdef01234567".to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        for address in [&self.0.hub, &self.0.storage] {
            let _ = TcpStream::connect(address.trim_start_matches("http://"));
        }
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

pub fn git_id(bytes: &[u8]) -> String {
    let mut hasher = sha1::Sha1::new();
    sha1::Digest::update(&mut hasher, format!("blob {}\0", bytes.len()));
    sha1::Digest::update(&mut hasher, bytes);
    sha1::Digest::finalize(hasher).iter().map(|b| format!("{b:02x}")).collect()
}

fn pointer(sha: &str, size: usize) -> String {
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n")
}

fn is_large(path: &str) -> bool {
    [".safetensors", ".parquet", ".gguf", ".bin"].iter().any(|end| path.ends_with(end))
}

fn files_of(folder: &Path, prefix: &str, out: &mut Vec<String>) {
    let mut items: Vec<_> = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path()).collect();
    items.sort();
    for path in items {
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            files_of(&path, &format!("{name}/"), out);
        } else {
            out.push(name);
        }
    }
}

fn decode(text: &str) -> String {
    let (mut out, bytes) = (Vec::new(), text.as_bytes());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| u8::from_str_radix(text.get(i + 1..i + 3)?, 16).ok()).flatten();
        out.push(hex.unwrap_or(bytes[i]));
        i += if hex.is_some() { 3 } else { 1 };
    }
    String::from_utf8(out).unwrap()
}

type Headers = Vec<(&'static str, String)>;

fn reply(stream: &mut TcpStream, status: u16, headers: &Headers, body: &[u8]) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    stream.write_all(body)
}

fn refuse(stream: &mut TcpStream, status: u16, code: &str) -> std::io::Result<()> {
    let headers = vec![("X-Error-Code", code.to_owned()), ("X-Error-Message", "as the test wants".to_owned())];
    reply(stream, status, &headers, b"{}")
}

impl Shared {
    fn answer(&self, mut stream: TcpStream, storage: bool) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut reader = BufReader::new(stream.try_clone()?).take(64 << 10);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut seen = Seen { storage, path: path.clone(), token: None, range: None, if_range: None };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            let value = Some(value.to_owned());
            match name.to_ascii_lowercase().as_str() {
                "authorization" => seen.token = value,
                "range" => seen.range = value,
                "if-range" => seen.if_range = value,
                _ => {}
            }
        }
        self.seen.lock().unwrap().push(seen.clone());
        let faults = self.faults.lock().unwrap().clone();
        if storage {
            let path = path.split('?').next().unwrap_or_default();
            return self.file(&mut stream, &decode(path.trim_start_matches('/')), &seen);
        }
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        if let Some(token) = &faults.token
            && seen.token.as_deref() != Some(&format!("Bearer {token}"))
        {
            return refuse(&mut stream, 401, "RepoNotFound");
        }
        if faults.gated {
            return refuse(&mut stream, 403, "GatedRepo");
        }
        match path.strip_prefix("/api/") {
            Some(api) => self.api(&mut stream, api, query, &faults),
            None => self.resolve(&mut stream, path, &seen, &faults),
        }
    }

    /// `models/OWNER/NAME/revision/REV` and `models/OWNER/NAME/tree/COMMIT`.
    fn api(&self, stream: &mut TcpStream, path: &str, query: &str, faults: &Faults) -> std::io::Result<()> {
        if let Some(body) = &faults.api_body {
            return reply(stream, 200, &Vec::new(), body.as_bytes());
        }
        let parts: Vec<String> = path.split('/').map(decode).collect();
        let [kind, owner, name, what, revision] = parts.as_slice() else { return refuse(stream, 404, "") };
        let repo = format!("{kind}/{owner}/{name}");
        let folder = self.root.join(&repo);
        if !folder.is_dir() {
            return refuse(stream, 404, "RepoNotFound");
        }
        if revision == "gone" {
            return refuse(stream, 404, "RevisionNotFound");
        }
        let mut names = Vec::new();
        files_of(&folder, "", &mut names);
        let more = usize::from(faults.wrong_size);
        let mut entries: Vec<(String, usize, String, Option<String>)> = names
            .into_iter()
            .map(|name| {
                let bytes = std::fs::read(folder.join(&name)).unwrap();
                let lfs = is_large(&name).then(|| sha256(&bytes));
                // Of large files git holds a pointer.
                let git = match &lfs {
                    Some(sha) => git_id(pointer(sha, bytes.len()).as_bytes()),
                    None => git_id(&bytes),
                };
                (name, bytes.len() + more, git, lfs)
            })
            .collect();
        entries.extend(faults.extra_names.iter().map(|name| (name.clone(), 1, git_id(b"x"), None)));
        if what == "tree" {
            let at: usize = query.split('&').find_map(|q| q.strip_prefix("cursor=")).map_or(0, |c| c.parse().unwrap());
            let page = faults.page.unwrap_or(1000);
            let entry = |(name, size, git, lfs): &(String, usize, String, Option<String>)| {
                let mut entry = json!({"type": "file", "path": name, "size": size, "oid": git});
                if let Some(sha) = lfs {
                    entry["lfs"] = json!({"oid": sha, "size": size, "pointerSize": 130});
                }
                entry
            };
            let mut list: Vec<Value> = entries.iter().skip(at).take(page).map(entry).collect();
            list.push(json!({"type": "directory", "path": "folder", "oid": git_id(b""), "size": 0}));
            let mut headers = Headers::new();
            let last = at + page >= entries.len();
            if !last || faults.endless {
                let host = if faults.page_elsewhere { &self.storage } else { &self.hub };
                let next = if last { at } else { at + page };
                headers.push(("Link", format!("<{host}/api/{path}?recursive=true&cursor={next}>; rel=\"next\"")));
            }
            return reply(stream, 200, &headers, Value::Array(list).to_string().as_bytes());
        }
        let sibling = |(name, size, git, lfs): &(String, usize, String, Option<String>)| {
            let mut sibling = json!({"rfilename": name});
            if !faults.no_sizes {
                sibling["size"] = json!(size);
                sibling["blobId"] = json!(git);
                if let Some(sha) = lfs {
                    sibling["lfs"] = json!({"sha256": sha, "size": size, "pointerSize": 130});
                }
            }
            sibling
        };
        let siblings: Vec<Value> = entries.iter().map(sibling).collect();
        let body = json!({"id": format!("{owner}/{name}"), "sha": Server::commit(), "siblings": siblings});
        reply(stream, 200, &Vec::new(), body.to_string().as_bytes())
    }

    /// `/OWNER/NAME/resolve/COMMIT/PATH` and `/datasets/OWNER/NAME/resolve/COMMIT/PATH`.
    fn resolve(&self, stream: &mut TcpStream, path: &str, seen: &Seen, faults: &Faults) -> std::io::Result<()> {
        let path = path.trim_start_matches('/');
        let (kind, rest) = match path.strip_prefix("datasets/") {
            Some(rest) => ("datasets", rest),
            None => ("models", path),
        };
        let Some((repo, rest)) = rest.split_once("/resolve/") else { return refuse(stream, 404, "") };
        let Some((_, name)) = rest.split_once('/') else { return refuse(stream, 404, "") };
        let file = format!("{kind}/{repo}/{name}");
        if !self.root.join(decode(&file)).is_file() {
            return refuse(stream, 404, "EntryNotFound");
        }
        if !is_large(name) {
            return self.file(stream, &decode(&file), seen);
        }
        let bytes = std::fs::read(self.root.join(decode(&file)))?;
        let target = faults.redirect.clone().unwrap_or_else(|| format!("{}/{file}?signature=s", self.storage));
        let headers = vec![
            ("Location", target),
            ("X-Linked-Size", bytes.len().to_string()),
            ("X-Linked-Etag", format!("\"{}\"", sha256(&bytes))),
            ("X-Repo-Commit", Server::commit()),
        ];
        reply(stream, 302, &headers, b"")
    }

    fn file(&self, stream: &mut TcpStream, file: &str, seen: &Seen) -> std::io::Result<()> {
        let Ok(mut bytes) = std::fs::read(self.root.join(file)) else { return refuse(stream, 404, "EntryNotFound") };
        let etag = format!("\"{}\"", sha256(&bytes));
        // Faults that are counted are used up by the answer that shows them.
        let (status, cut, stall, corrupt, slow, ignore) = {
            let mut faults = self.faults.lock().unwrap();
            let take = |fault: &mut Option<(usize, usize)>| match fault {
                Some((at, left)) if *left > 0 => {
                    *left -= 1;
                    Some(*at)
                }
                _ => None,
            };
            let (cut, stall) = (take(&mut faults.cut), take(&mut faults.stall));
            let corrupt = faults.corrupt > 0;
            faults.corrupt = faults.corrupt.saturating_sub(1);
            (faults.statuses.pop_front(), cut, stall, corrupt, faults.slow, faults.ignore_range)
        };
        if let Some(status) = status {
            return reply(stream, status, &vec![("Retry-After", "0".to_owned())], b"");
        }
        let whole = bytes.len();
        if corrupt {
            bytes[whole / 2] ^= 1;
        }
        let same = seen.if_range.as_ref().is_none_or(|tag| *tag == etag);
        let from =
            seen.range.as_deref().and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let from = from.filter(|_| same && !ignore);
        if from.is_some_and(|from| from >= whole) {
            return reply(stream, 416, &vec![("Content-Range", format!("bytes */{whole}"))], b"");
        }
        let body = &bytes[from.unwrap_or(0)..];
        let mut headers =
            vec![("ETag", etag), ("Accept-Ranges", "bytes".to_owned()), ("Content-Length", body.len().to_string())];
        if let Some(from) = from {
            headers.push(("Content-Range", format!("bytes {from}-{}/{whole}", whole - 1)));
        }
        reply(stream, if from.is_some() { 206 } else { 200 }, &headers, b"")?;
        let end = cut.or(stall).unwrap_or(body.len()).min(body.len());
        for piece in body[..end].chunks(16 << 10) {
            stream.write_all(piece)?;
            slow.inspect(|pause| std::thread::sleep(*pause));
        }
        stream.flush()?;
        if stall.is_some() {
            std::thread::sleep(Duration::from_secs(3));
        }
        Ok(())
    }
}
