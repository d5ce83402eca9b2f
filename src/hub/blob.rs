//! One blob: verified where it lies already, else fetched from where an earlier attempt stopped.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::digest::{Hasher, read_pieces};
use super::fetch::Shared;
use super::http::{Failure, Wanted, passing};
use super::info::RemoteFile;
use super::pace::Pace;
use super::{cache, space};
use crate::error::Kind;
use crate::{Error, Result};

/// A file whose size or digest was wrong so often is wrong at its source.
const WRONG_LIMIT: u32 = 3;
/// An attempt that brought so much was no failure of the source.
const PROGRESS: u64 = 64 << 10;

pub(super) struct Blob<'a> {
    shared: &'a Shared<'a>,
    file: &'a RemoteFile,
    path: PathBuf,
}

/// What has arrived so far.
struct Part {
    path: PathBuf,
    out: File,
    len: u64,
    hasher: Hasher,
}

impl<'a> Blob<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, file: &'a RemoteFile) -> Self {
        Self { shared, file, path: shared.hub.cache().blob(shared.snapshot, &file.id) }
    }

    /// Returns once the blob lies in the cache, verified.
    pub(super) fn bring(&self) -> Result<()> {
        let Shared { hub, snapshot, stop, progress, .. } = self.shared;
        // A finished blob is never written again, so a sound one needs no lock (and the cache may be read-only).
        let there = hub.cache().has(snapshot, self.file);
        if there && self.is_sound()? {
            return Ok(());
        }
        let _held = hub.cache().lock(snapshot, &self.file.id, stop, || {
            progress.say(&format!("waiting for another process that fetches {}", self.file.path));
        })?;
        // Another process may have brought it meanwhile.
        if hub.cache().has(snapshot, self.file) {
            if self.is_sound()? {
                return Ok(());
            }
            progress.say(&format!("{} was damaged in the cache and is fetched again", self.file.path));
        }
        if self.path.symlink_metadata().is_ok() {
            std::fs::remove_file(&self.path).map_err(|e| Error::io("remove", &self.path, e))?;
        }
        self.download().map_err(|e| e.within(format!("`{}` of `{}`", self.file.path, snapshot.repo)))
    }

    /// Whether its bytes are right.
    fn is_sound(&self) -> Result<bool> {
        let Shared { hub, snapshot, stop, .. } = self.shared;
        let mut hasher = Hasher::new(&self.file.id, self.file.size);
        read_pieces(&self.path, stop, |bytes| {
            hasher.update(bytes);
            self.count(bytes.len() as u64);
        })?;
        if hasher.matches(&self.file.id) {
            return Ok(true);
        }
        self.uncount(self.file.size);
        if hub.config().offline {
            return Err(Error::new(
                Kind::Integrity,
                format!(
                    "`{}` of `{}` is damaged in the cache, and HF_HUB_OFFLINE is set",
                    self.file.path, snapshot.repo
                ),
            )
            .hint("unset HF_HUB_OFFLINE to fetch it again"));
        }
        Ok(false)
    }

    fn count(&self, bytes: u64) {
        self.shared.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn uncount(&self, bytes: u64) {
        self.shared.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn download(&self) -> Result<()> {
        let Shared { hub, stop, .. } = self.shared;
        let mut part = self.open_part()?;
        let (mut failures, mut wrong, mut etag) = (0, 0, None);
        loop {
            stop.check()?;
            let before = part.len;
            let problem = match self.attempt(&mut part, &mut etag) {
                Ok(()) if part.len == self.file.size => match self.finish(part)? {
                    Ok(()) => return Ok(()),
                    Err(again) => {
                        part = again;
                        self.corrupt("its digest is not the one that the hub names")
                    }
                },
                Ok(()) => passing("the file ended too early"),
                Err(failure) => failure,
            };
            match problem {
                Failure::Passing(error, pause) => {
                    failures = if part.len >= before + PROGRESS { 1 } else { failures + 1 };
                    if failures > hub.http.retries() {
                        return Err(error);
                    }
                    hub.http.pause(failures, pause, stop)?;
                }
                Failure::Final(error) if error.kind() == Kind::Integrity => {
                    wrong += 1;
                    self.restart(&mut part)?;
                    etag = None;
                    if wrong >= WRONG_LIMIT {
                        drop(part.out);
                        let _ = std::fs::remove_file(&part.path);
                        return Err(error);
                    }
                    hub.http.pause(wrong, None, stop)?;
                }
                Failure::Final(error) => return Err(error),
            }
        }
    }

    /// One request, written as far as it comes. The source's mistakes are failures of kind `Integrity`.
    fn attempt(&self, part: &mut Part, etag: &mut Option<String>) -> Result<(), Failure> {
        let Shared { hub, snapshot, stop, .. } = self.shared;
        if part.len == self.file.size {
            return Ok(());
        }
        let url = hub.file_url(snapshot, &self.file.path);
        let wanted = Wanted {
            repo: &snapshot.repo,
            dataset: snapshot.dataset,
            revision: &snapshot.commit,
            file: Some(&self.file.path),
        };
        // The blob's name is a digest of its bytes, so a part of an earlier run needs no validator: were it of
        // another file, the digest would tell.
        let answer = hub.http.open(&url, &wanted, part.len, etag.as_deref(), stop)?;
        if let Some(size) = answer.size
            && size != self.file.size
        {
            let sizes = format!("it has {} where {} were promised", space::human(size), space::human(self.file.size));
            return Err(self.corrupt(&sizes));
        }
        if answer.start != part.len {
            if answer.start != 0 {
                return Err(self.corrupt("the server sent another part than was asked for"));
            }
            self.restart(part)?;
        }
        *etag = answer.etag;
        let mut body = answer.body;
        let mut buffer = vec![0; 256 << 10];
        let mut pace = Pace::new(hub.http.stall());
        loop {
            stop.check()?;
            let n = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(hub.http.broken(e)),
            };
            if part.len + n as u64 > self.file.size {
                return Err(self.corrupt(&format!("it is longer than the promised {}", space::human(self.file.size))));
            }
            part.out.write_all(&buffer[..n]).map_err(|e| Error::io("write", &part.path, e))?;
            part.hasher.update(&buffer[..n]);
            part.len += n as u64;
            self.count(n as u64);
            pace.saw(n)?;
        }
    }

    fn corrupt(&self, why: &str) -> Failure {
        Failure::Final(
            Error::new(Kind::Integrity, format!("what the server sends is wrong: {why}"))
                .hint("try again later, or another HF_ENDPOINT; nothing of it was kept"),
        )
    }

    /// The unfinished file, with what an earlier attempt left in it.
    fn open_part(&self) -> Result<Part> {
        let Shared { hub, snapshot, stop, .. } = self.shared;
        let path = hub.cache().part(snapshot, &self.file.id);
        cache::create_dir(path.parent().unwrap_or(Path::new(".")))?;
        let out = File::options().create(true).truncate(false).write(true).open(&path);
        let out = out.map_err(|e| Error::io("write", &path, e))?;
        let mut part = Part { path, out, len: 0, hasher: Hasher::new(&self.file.id, self.file.size) };
        let len = part.out.metadata().map_err(|e| Error::io("read", &part.path, e))?.len();
        if len > self.file.size {
            self.restart(&mut part)?;
            return Ok(part);
        }
        let hasher = &mut part.hasher;
        part.len = read_pieces(&part.path, stop, |bytes| hasher.update(bytes))?;
        self.count(part.len);
        part.out.seek(SeekFrom::Start(part.len)).map_err(|e| Error::io("read", &part.path, e))?;
        Ok(part)
    }

    fn restart(&self, part: &mut Part) -> Result<()> {
        let empty = part.out.set_len(0).and_then(|()| part.out.seek(SeekFrom::Start(0)));
        empty.map_err(|e| Error::io("write", &part.path, e))?;
        self.uncount(part.len);
        part.len = 0;
        part.hasher = Hasher::new(&self.file.id, self.file.size);
        Ok(())
    }

    /// Gives the blob its name if its bytes are right, else gives the part back.
    fn finish(&self, mut part: Part) -> Result<Result<(), Part>> {
        let fresh = Hasher::new(&self.file.id, self.file.size);
        if !std::mem::replace(&mut part.hasher, fresh).matches(&self.file.id) {
            return Ok(Err(part));
        }
        part.out.sync_all().map_err(|e| Error::io("write", &part.path, e))?;
        std::fs::rename(&part.path, &self.path).map_err(|e| Error::io("put into the cache", &self.path, e))?;
        Ok(Ok(()))
    }
}
