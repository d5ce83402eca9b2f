//! Tells a program of the user's how a run went: one JSON object on its standard input per message.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::events::{Event, Listener};

/// A program that takes longer is left to itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// `CMD ARG ...` as an argument list: split at blanks, never given to a shell.
pub fn command(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Gives one message; the error is a line for the user. A program that fails stops no run.
///
/// # Errors
/// When it cannot be started, fails, or takes longer than half a minute.
pub fn send(command: &[String], message: &Value) -> Result<(), String> {
    let Some((program, args)) = command.split_first() else { return Ok(()) };
    let told = |what: String| format!("--notify {program}: {what}");
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| told(e.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read, such as `touch file`, closes the pipe.
        let _ = writeln!(input, "{message}");
    }
    let clock = Instant::now();
    loop {
        match child.try_wait().map_err(|e| told(e.to_string()))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(told(format!("it ended with {status}"))),
            None if clock.elapsed() > PATIENCE => return Err(told("it takes long and is left to itself".to_owned())),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Passes events on, and tells the program of failures and of the end.
pub struct Notifier<'a> {
    listener: &'a dyn Listener,
    command: Vec<String>,
    pipeline: Mutex<String>,
}

impl<'a> Notifier<'a> {
    pub fn new(listener: &'a dyn Listener, command: Vec<String>) -> Self {
        Self { listener, command, pipeline: Mutex::default() }
    }
}

impl Listener for Notifier<'_> {
    fn hear(&self, event: &Event) {
        self.listener.hear(event);
        let mut pipeline = self.pipeline.lock().unwrap_or_else(PoisonError::into_inner);
        let message = match event {
            Event::Planned { pipeline: name, .. } => {
                pipeline.clone_from(name);
                return;
            }
            Event::Failed { name, error, .. } => {
                json!({"event": "failed", "pipeline": *pipeline, "name": name, "error": error})
            }
            Event::Diverged { name, why } => {
                json!({"event": "diverged", "pipeline": *pipeline, "name": name, "error": why})
            }
            Event::Summary { ran, cached, failed, skipped, stopped, seconds } => json!({
                "event": if failed + skipped + stopped > 0 { "failed" } else { "done" }, "pipeline": *pipeline,
                "ran": ran, "cached": cached, "failed": failed, "skipped": skipped, "stopped": stopped,
                "seconds": seconds,
            }),
            _ => return,
        };
        drop(pipeline);
        if let Err(line) = send(&self.command, &message) {
            self.listener.hear(&Event::Said { name: None, line });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_gets_one_line_of_json_and_no_shell() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let text = format!("tee -a {}", out.display());
        send(&command(&text), &json!({"event": "done"})).unwrap();
        send(&command(&text), &json!({"event": "failed", "error": "a\n$(b)"})).unwrap();
        assert_eq!(
            std::fs::read_to_string(&out).unwrap(),
            "{\"event\":\"done\"}\n{\"event\":\"failed\",\"error\":\"a\\n$(b)\"}\n"
        );
        assert!(send(&command("false"), &json!({})).unwrap_err().contains("ended with"));
        assert!(send(&command("no-such-program-here"), &json!({})).is_err());
    }
}
