//! `--metrics-hook`: a program of the user that gets every training step's figures as a JSON line.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Event, Listener};
use crate::{Error, Result};

/// Lines that wait for a slow hook; further ones are dropped, as training waits for nobody.
const QUEUE: usize = 4096;
/// How long a hook may take to finish after its last line.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running hook. It gets lines `{"stage": "train@seed=1", "step": 12, "reward": 0.5, ...}` on stdin, and its end of
/// file when the run is over; what it prints goes to stderr.
#[derive(Debug)]
pub struct MetricsHook {
    lines: Mutex<Option<SyncSender<String>>>,
    dropped: Mutex<usize>,
    writer: JoinHandle<()>,
    child: Child,
}

impl MetricsHook {
    /// Starts `command` in a shell: it is the user's own command line.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn start(command: &str) -> Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(std::io::stderr())
            // Ctrl-C is for qerl, whose last steps the hook still hears.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::failed("cannot start the metrics hook").caused_by(e))?;
        let stdin = child.stdin.take().ok_or_else(|| Error::failed("the metrics hook has no stdin"))?;
        let (sender, lines) = sync_channel(QUEUE);
        let writer = std::thread::spawn(move || pass_on(stdin, &lines));
        Ok(Self { lines: Mutex::new(Some(sender)), dropped: Mutex::new(0), writer, child })
    }

    fn send(&self, stage: &str, figures: &serde_json::Map<String, serde_json::Value>) {
        let mut line = serde_json::Map::from_iter([("stage".to_owned(), stage.into())]);
        line.extend(figures.clone());
        let line = format!("{}\n", serde_json::Value::Object(line));
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_none_or(|sender| sender.try_send(line).is_err()) {
            *self.dropped.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }

    /// Closes the hook's input and waits for its end; gives what went wrong, which is no reason to fail a run.
    pub fn finish(mut self) -> Option<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                _ => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Some(format!("the metrics hook did not end within {PATIENCE:?} and was stopped"));
                }
            }
        };
        // Its input is closed by now, so the writer has ended or is about to.
        let _ = self.writer.join();
        let dropped = *self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        match (status.success(), dropped) {
            (true, 0) => None,
            (true, n) => Some(format!("{n} steps did not reach the metrics hook")),
            (false, n) => Some(format!("the metrics hook ended with {status}; {n} steps did not reach it")),
        }
    }
}

fn pass_on(mut stdin: std::process::ChildStdin, lines: &Receiver<String>) {
    for line in lines {
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            break;
        }
    }
}

/// A listener with a hook beside it.
pub struct Hooked<'a> {
    pub inner: &'a dyn Listener,
    pub hook: Option<&'a MetricsHook>,
}

impl Listener for Hooked<'_> {
    fn hear(&self, event: &Event) {
        if let (Some(hook), Event::Metrics { name, figures }) = (self.hook, event) {
            hook.send(name, figures);
        }
        self.inner.hear(event);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Deaf;
    use super::*;

    fn figures(step: u64) -> Event {
        let figures = serde_json::Map::from_iter([("step".to_owned(), step.into()), ("reward".to_owned(), 0.5.into())]);
        Event::Metrics { name: "train@seed=1".to_owned(), figures }
    }

    #[test]
    fn a_hook_gets_every_step_as_a_line_and_the_end_of_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lines");
        let hook = MetricsHook::start(&format!("cat > {}; echo end >> {0}", file.display())).unwrap();
        let hooked = Hooked { inner: &Deaf, hook: Some(&hook) };
        (1..=3).for_each(|step| hooked.hear(&figures(step)));
        hooked.hear(&Event::Stopped { name: "other".to_owned() });
        assert_eq!(hook.finish(), None);
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[3]), (4, "end"));
        let second: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(second, serde_json::json!({"stage": "train@seed=1", "step": 2, "reward": 0.5}));
    }

    #[test]
    fn a_hook_that_fails_is_said_and_hurts_nobody() {
        let hook = MetricsHook::start("exit 3").unwrap();
        let hooked = Hooked { inner: &Deaf, hook: Some(&hook) };
        for step in 0..QUEUE as u64 + 10 {
            hooked.hear(&figures(step));
        }
        assert!(hook.finish().unwrap().contains("exit status: 3"));
    }
}
