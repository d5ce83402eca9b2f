//! Three ways to show a run: bars on a terminal, plain lines elsewhere, JSON lines for programs. None uses colour.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::events::{Event, Listener};
use crate::plan::bytes;

/// How often a plain line tells of a running stage.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// How often a JSON line does.
const JSON_EVERY: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line for an event that every way shows, if it is worth one.
fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::Planned { pipeline, stages, cached, run: 0, same } => {
            let all = cached + same;
            return (all == *stages).then(|| format!("{pipeline}: nothing to do, all {stages} stages are cached"));
        }
        Event::Planned { pipeline, stages, cached, run, .. } => {
            format!("{pipeline}: {stages} stages, {cached} cached, {run} to run")
        }
        Event::Pinned { request, commit } => format!("pinned {request} to {commit} in qerl.lock"),
        Event::Started { name, reason, .. } => format!("{name}: started ({reason})"),
        Event::Progress { .. } | Event::Metrics { .. } | Event::Cached { .. } => return None,
        Event::Said { name: Some(name), line } => format!("{name}: {line}"),
        Event::Said { name: None, line } => line.clone(),
        Event::Waiting { name, holder } => format!("{name}: waiting for {holder}, which makes the same artifact"),
        Event::Finished { name, seconds, bytes: size, .. } => {
            format!("{name}: done in {} ({})", duration(*seconds), bytes(*size))
        }
        Event::Failed { name, error, hint } => match hint {
            Some(hint) => format!("{name}: failed: {error}\n  hint: {hint}"),
            None => format!("{name}: failed: {error}"),
        },
        Event::Skipped { name, why } => format!("{name}: skipped, because {why}"),
        Event::Stopped { name } => format!("{name}: stopped, its last checkpoint is kept"),
        Event::Report { path } => format!("report: {}", path.display()),
        Event::Summary { ran: 0, failed: 0, skipped: 0, stopped: 0, .. } => return None,
        Event::Summary { ran, cached, failed, skipped, stopped, seconds } => {
            let mut parts = vec![format!("ran {ran}"), format!("cached {cached}")];
            for (n, what) in [(failed, "failed"), (skipped, "skipped"), (stopped, "stopped")] {
                if *n > 0 {
                    parts.push(format!("{what} {n}"));
                }
            }
            format!("{} in {}", parts.join(", "), duration(*seconds))
        }
    })
}

/// `4.2 s`, `3 min 05 s`, `2 h 07 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=59 => format!("{seconds:.1} s"),
        60..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

fn quantity(n: u64, unit: &str) -> String {
    if unit == "bytes" { bytes(n) } else { n.to_string() }
}

/// Plain lines: start, every ten seconds, done.
pub struct Lines {
    out: Mutex<Box<dyn Write + Send>>,
    running: Mutex<HashMap<String, (Instant, Instant)>>,
}

impl Lines {
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self { out: Mutex::new(Box::new(out)), running: Mutex::new(HashMap::new()) }
    }

    fn write(&self, text: &str) {
        // Nobody listens on a closed pipe; the work goes on.
        let _ = writeln!(lock(&self.out), "{text}");
    }
}

impl Listener for Lines {
    fn hear(&self, event: &Event) {
        match event {
            Event::Started { name, .. } => {
                lock(&self.running).insert(name.clone(), (Instant::now(), Instant::now()));
            }
            Event::Progress { name, done, total, unit, note } => {
                let mut running = lock(&self.running);
                let Some((started, told)) = running.get_mut(name) else { return };
                if told.elapsed() < LINE_EVERY {
                    return;
                }
                *told = Instant::now();
                let mut text = format!("{name}: ");
                match total {
                    Some(total) if *total > 0 => {
                        let share = *done as f64 / *total as f64;
                        text += &format!(
                            "{:.0}% ({} of {} {unit})",
                            100.0 * share,
                            quantity(*done, unit),
                            quantity(*total, unit)
                        );
                        if share > 0.0 && share < 1.0 {
                            let left = started.elapsed().as_secs_f64() * (1.0 - share) / share;
                            text += &format!(", {} left", duration(left));
                        }
                    }
                    _ => text += &format!("{} {unit}", quantity(*done, unit)),
                }
                if !note.is_empty() {
                    text += &format!(", {note}");
                }
                drop(running);
                self.write(&text);
            }
            Event::Finished { name, .. } | Event::Failed { name, .. } | Event::Stopped { name } => {
                lock(&self.running).remove(name);
            }
            _ => {}
        }
        if let Some(text) = line(event) {
            self.write(&text);
        }
    }
}

/// One bar per running stage; lines scroll by above them.
pub struct Bars {
    multi: MultiProgress,
    running: Mutex<HashMap<String, ProgressBar>>,
}

impl Bars {
    /// Draws on stderr.
    pub fn new() -> Self {
        let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        Self { multi, running: Mutex::new(HashMap::new()) }
    }
}

impl Default for Bars {
    fn default() -> Self {
        Self::new()
    }
}

fn style(total: Option<u64>, unit: &str) -> ProgressStyle {
    let count = if unit == "bytes" { ("{decimal_bytes}", "{decimal_total_bytes}") } else { ("{pos}", "{len}") };
    let template = match total {
        Some(_) => format!("{{prefix}} [{{bar:24}}] {}/{} {unit}, {{eta}} left  {{wide_msg}}", count.0, count.1),
        None if unit.is_empty() => "{prefix} {spinner} {elapsed}  {wide_msg}".to_owned(),
        None => format!("{{prefix}} {{spinner}} {} {unit} {{elapsed}}  {{wide_msg}}", count.0),
    };
    // The templates are ours; should one be refused, the default style still shows the numbers.
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

impl Listener for Bars {
    fn hear(&self, event: &Event) {
        match event {
            Event::Started { name, .. } => {
                let bar =
                    self.multi.add(ProgressBar::no_length().with_style(style(None, "")).with_prefix(name.clone()));
                bar.enable_steady_tick(Duration::from_millis(500));
                lock(&self.running).insert(name.clone(), bar);
                return;
            }
            Event::Progress { name, done, total, unit, note } => {
                if let Some(bar) = lock(&self.running).get(name) {
                    if bar.length() != *total {
                        bar.set_style(style(*total, unit));
                        if let Some(total) = total {
                            bar.set_length(*total);
                        }
                        // A resumed stage starts in the middle: its rate counts from here.
                        bar.set_position(*done);
                        bar.reset_eta();
                    }
                    bar.set_position(*done);
                    bar.set_message(note.clone());
                }
            }
            Event::Finished { name, .. } | Event::Failed { name, .. } | Event::Stopped { name } => {
                if let Some(bar) = lock(&self.running).remove(name) {
                    bar.finish_and_clear();
                    self.multi.remove(&bar);
                }
            }
            _ => {}
        }
        if let Some(text) = line(event) {
            let _ = self.multi.println(text);
        }
    }
}

/// Every event as one line of JSON.
pub struct JsonLines {
    out: Mutex<Box<dyn Write + Send>>,
    told: Mutex<HashMap<String, Instant>>,
}

impl JsonLines {
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self { out: Mutex::new(Box::new(out)), told: Mutex::new(HashMap::new()) }
    }
}

impl Listener for JsonLines {
    fn hear(&self, event: &Event) {
        if let Event::Progress { name, .. } = event {
            let mut told = lock(&self.told);
            if told.get(name).is_some_and(|at| at.elapsed() < JSON_EVERY) {
                return;
            }
            told.insert(name.clone(), Instant::now());
        }
        if let Ok(text) = serde_json::to_string(event) {
            let mut out = lock(&self.out);
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Buffer {
        fn text(&self) -> String {
            String::from_utf8(lock(&self.0).clone()).unwrap()
        }
    }

    #[test]
    fn lines_tell_of_start_and_end_and_of_nothing_to_do() {
        let buffer = Buffer::default();
        let lines = Lines::new(buffer.clone());
        let planned = |run| Event::Planned { pipeline: "tiny".into(), stages: 3, cached: 3 - run, run, same: 0 };
        lines.hear(&planned(0));
        lines.hear(&planned(2));
        lines.hear(&Event::Started {
            name: "train@seed=1".into(),
            kind: "train",
            fingerprint: "f".into(),
            reason: "never run".into(),
            threads: 2,
        });
        lines.hear(&Event::Progress {
            name: "train@seed=1".into(),
            done: 1,
            total: Some(2),
            unit: "steps",
            note: "x".into(),
        });
        lines.hear(&Event::Finished { name: "train@seed=1".into(), fingerprint: "f".into(), seconds: 65.0, bytes: 10 });
        assert_eq!(
            buffer.text(),
            "tiny: nothing to do, all 3 stages are cached\ntiny: 3 stages, 1 cached, 2 to run\n\
             train@seed=1: started (never run)\ntrain@seed=1: done in 1 min 05 s (10 B)\n"
        );
    }

    #[test]
    fn json_lines_are_json() {
        let buffer = Buffer::default();
        let json = JsonLines::new(buffer.clone());
        json.hear(&Event::Skipped { name: "a".into(), why: "b failed".into() });
        let value: serde_json::Value = serde_json::from_str(buffer.text().trim()).unwrap();
        assert_eq!(value, serde_json::json!({"event": "skipped", "name": "a", "why": "b failed"}));
    }
}
