//! A reward computed by an external program: one JSON object per line in, one per line out.
//!
//! In:  `{"id": 7, "prompt": "...", "completion": "...", "answer": "...", "tokens": 12, "truncated": false}`
//! Out: `{"id": 7, "reward": 0.5}`; `null` abstains.
//!
//! The program is started once and answers one line at a time. An answer that is late, garbled or missing counts as
//! an abstention; a late or dead program is started again. One that fails too often in a row ends training, because
//! a reward that always abstains would train on nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::Sample;
use crate::control::Cancel;
use crate::{Error, Result};

/// Longest answer line that is read.
const MAX_LINE: u64 = 1 << 20;
/// Failures in a row (late, dead, garbled) after which training ends.
const MAX_FAILURES: usize = 16;
/// What a program may take for its first answer, where that is more than its time limit: it loads its libraries.
const START: Duration = Duration::from_secs(60);
/// Bytes of its last words that are shown when it fails.
const MAX_WORDS: usize = 400;
/// How often a waiting caller looks whether it was cancelled.
const POLL: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Answer {
    id: u64,
    reward: Option<f64>,
}

const HINT: &str = "run the program by hand: it gets one JSON line and must answer {\"id\": ..., \"reward\": ...} on a \
    line, flushed, with the same id and a finite number or null";

/// A running program and its pipes.
struct Process {
    child: Child,
    lines: Receiver<String>,
    input: Sender<String>,
    /// The end of what it wrote to stderr.
    words: Arc<Mutex<Vec<u8>>>,
}

impl Process {
    /// How it ended. Its pipes are closed, so it is about to; what it said last has a moment to arrive.
    fn ended(mut self) -> String {
        std::thread::sleep(POLL);
        let code = self.child.try_wait().ok().flatten().map(|status| format!(" ({status})")).unwrap_or_default();
        format!("{code}{}", self.last_words())
    }

    fn last_words(&self) -> String {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&words);
        match text.trim_end().lines().next_back() {
            Some(line) if !line.is_empty() => format!("; its stderr ends in `{}`", line.trim()),
            _ => String::new(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already dead is fine; waiting frees the process entry.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An external reward; see the module header for the protocol.
pub struct Program {
    name: String,
    command: Vec<String>,
    dir: PathBuf,
    timeout: Duration,
    process: Option<Process>,
    next_id: u64,
    failures: usize,
    last_failure: String,
}

impl Program {
    /// Nothing is started yet. A relative program path with a separator starts at `dir`.
    pub fn new(name: &str, command: &[String], timeout: f64, dir: &Path) -> Self {
        Self {
            name: name.to_owned(),
            command: command.to_vec(),
            dir: dir.to_owned(),
            timeout: Duration::from_secs_f64(timeout),
            process: None,
            next_id: 0,
            failures: 0,
            last_failure: String::new(),
        }
    }

    fn start(&self) -> Result<Process> {
        let program = Path::new(&self.command[0]);
        let program = if program.components().count() > 1 { self.dir.join(program) } else { program.to_owned() };
        let mut child = Command::new(&program)
            .args(&self.command[1..])
            .current_dir(if self.dir.as_os_str().is_empty() { Path::new(".") } else { &self.dir })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::io(&format!("start reward `{}`:", self.name), &program, e))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(mut stderr)) = pipes else {
            return Err(Error::failed(format!("reward `{}` has no pipes", self.name)));
        };
        // Own threads for both directions: a program that does not read, or talks too much, blocks only them.
        let (input, requests) = mpsc::channel::<String>();
        std::thread::spawn(move || {
            for line in requests {
                if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        let (sender, lines) = mpsc::sync_channel(64);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                    Ok(n) if n > 0 => {
                        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        });
        let words = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&words);
        std::thread::spawn(move || {
            let mut chunk = [0; 1024];
            while let Ok(n @ 1..) = stderr.read(&mut chunk) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&chunk[..n]);
                let surplus = kept.len().saturating_sub(MAX_WORDS);
                kept.drain(..surplus);
            }
        });
        Ok(Process { child, lines, input, words })
    }

    /// Starts the program and asks it about one sample, so that one that cannot work is noticed before training.
    pub fn probe(&mut self, sample: &Sample<'_>, cancel: &Cancel) -> Result<()> {
        self.ask(sample, cancel, self.timeout.max(START))?;
        if self.failures == 0 {
            return Ok(());
        }
        Err(Error::usage(format!("reward `{}` does not answer: {}", self.name, self.last_failure)).hint(HINT))
    }

    /// The reward of one sample; `None` abstains.
    pub fn score(&mut self, sample: &Sample<'_>, cancel: &Cancel) -> Result<Option<f64>> {
        self.ask(sample, cancel, self.timeout)
    }

    fn ask(&mut self, sample: &Sample<'_>, cancel: &Cancel, limit: Duration) -> Result<Option<f64>> {
        let id = self.next_id;
        self.next_id += 1;
        let process = match self.process.take() {
            Some(process) => process,
            None => self.start()?,
        };
        let request = serde_json::json!({
            "id": id, "prompt": sample.prompt, "completion": sample.completion, "answer": sample.answer,
            "tokens": sample.tokens, "truncated": sample.truncated,
        });
        // A closed channel means a dead program: the wait below notices.
        let _ = process.input.send(format!("{request}\n"));
        let deadline = Instant::now() + limit;
        loop {
            cancel.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match process.lines.recv_timeout(left.min(POLL)) {
                Ok(line) => match serde_json::from_str::<Answer>(&line) {
                    // An answer to an earlier request that was given up on.
                    Ok(answer) if answer.id < id => {}
                    Ok(Answer { id: got, reward }) if got == id && reward.is_none_or(f64::is_finite) => {
                        self.process = Some(process);
                        self.failures = 0;
                        return Ok(reward);
                    }
                    _ => {
                        self.process = Some(process);
                        let shown: String = line.trim_end().chars().take(80).collect();
                        return self.fail(format!("it answered `{shown}` to id {id}"));
                    }
                },
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                // Given up on: a new one is started for the next sample.
                Err(RecvTimeoutError::Timeout) => {
                    let words = process.last_words();
                    return self.fail(format!("no answer within {limit:?}{words}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let words = process.ended();
                    return self.fail(format!("it ended{words}"));
                }
            }
        }
    }

    /// Counts a failure as an abstention, until there are too many.
    fn fail(&mut self, why: String) -> Result<Option<f64>> {
        self.failures += 1;
        self.last_failure = why;
        if self.failures < MAX_FAILURES {
            return Ok(None);
        }
        Err(Error::failed(format!(
            "reward `{}` failed {MAX_FAILURES} times in a row: {}",
            self.name, self.last_failure
        ))
        .hint(HINT))
    }
}
