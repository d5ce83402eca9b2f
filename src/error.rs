//! The one error type: what kind of trouble, what happened, and what to do next.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of trouble it is; decides the exit code and whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command line or the pipeline file is wrong (exit code 2).
    Usage,
    /// A file or model or data set that was read is malformed.
    Input,
    /// Something named does not exist.
    Missing,
    /// The network or a hub answered badly.
    Network,
    /// The disk: full, unreadable, not writable.
    Storage,
    /// A size or digest does not match.
    Integrity,
    /// The device or its memory.
    Device,
    /// The user asked to stop.
    Cancelled,
    /// Training diverged, a reward program failed, and the like.
    Failed,
}

/// A lower-case message fragment, the next step for the user, and the cause beneath.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync + 'static>>,
}

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Kind::Input, message)
    }

    pub fn missing(message: impl Into<String>) -> Self {
        Self::new(Kind::Missing, message)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    pub fn cancelled() -> Self {
        Self::new(Kind::Cancelled, "stopped on request")
    }

    /// An I/O error on `path`, with a hint where the cause is a full or read-only disk.
    pub fn io(action: &str, path: impl AsRef<std::path::Path>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as E;
        let kind = match source.kind() {
            E::NotFound => Kind::Missing,
            _ => Kind::Storage,
        };
        let hint = match source.kind() {
            E::StorageFull | E::QuotaExceeded => Some(
                "the disk is full: free some space (`qerl doctor` shows what the cache holds) and run again; finished stages are kept",
            ),
            E::PermissionDenied => Some("check who owns the file and its folder"),
            E::ReadOnlyFilesystem => Some("the file system is read-only: choose another folder"),
            _ => None,
        };
        let mut error = Self::new(kind, format!("cannot {action} {}", path.as_ref().display()));
        error.hint = hint.map(str::to_owned);
        error.source = Some(Box::new(source));
        error
    }

    /// Adds what the user can do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts `what: ` before the message.
    #[must_use]
    pub fn within(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// 2 for a wrong command line or pipeline, 130 after Ctrl-C, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Usage => 2,
            Kind::Cancelled => 130,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let text = cause.to_string();
            if !self.message.contains(&text) {
                write!(f, ": {text}")?;
            }
            source = cause.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as &(dyn std::error::Error + 'static))
    }
}
