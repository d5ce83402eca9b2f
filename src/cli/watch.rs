//! `qerl watch`: a run's stages, curves and latest figures in the terminal, while it goes on or afterwards.

use std::fmt::Write as _;
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::out::write as out;
use crate::run::picture::{Picture, Stage};
use crate::run::record::{RunRecord, RunState, find_run, run_folder};
use crate::run::text_of_seconds;
use crate::store::Store;
use crate::{Error, Result};

/// Show the stages and curves of a run in the terminal, until it is over
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An id of `qerl runs ls`, the beginning of one, `last` or `last~N`
    #[arg(default_value = "last")]
    run: String,
    /// Print how it stands now and end
    #[arg(long)]
    once: bool,
    /// Print JSON: the events as they come, or with --once one object
    #[arg(long)]
    json: bool,
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Columns of a curve.
const WIDTH: usize = 40;
/// Curves of a training, as far as it has them.
const CURVES: [&str; 7] =
    ["reward", "rollout/accuracy", "eval/accuracy", "entropy", "kl", "aqn/sigma", "completions/mean_length"];
/// Figures without a curve.
const FIGURES: [&str; 4] = ["grad_norm", "rollout/tok_s", "train/tok_s", "memory/peak_gib"];

/// A run's events.jsonl, read as it grows.
struct Tail {
    path: PathBuf,
    at: u64,
    rest: Vec<u8>,
}

impl Tail {
    /// The whole lines that came since the last call. A run that has not written any yet has none.
    fn more(&mut self) -> Result<Vec<Value>> {
        let failed = |e| Error::io("read", &self.path, e);
        let mut file = match std::fs::File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        file.seek(SeekFrom::Start(self.at)).map_err(failed)?;
        self.at += file.read_to_end(&mut self.rest).map_err(failed)? as u64;
        let whole = self.rest.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        // A line that a full disk cut short is left out.
        Ok(lines.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }
}

pub fn run(args: &Args) -> Result<()> {
    let store = Store::from_env()?;
    let record = find_run(&store, &args.run)?;
    let mut tail = Tail { path: run_folder(&store, &record).join("events.jsonl"), at: 0, rest: Vec::new() };
    let terminal = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if args.once {
        let mut picture = Picture::default();
        tail.more()?.iter().for_each(|event| picture.hear(event, &store));
        return if args.json { out(&json(&record, &picture)?) } else { out(&screen(&record, &picture, colour)) };
    }
    let mut picture = Picture::default();
    let mut drawn = String::new();
    loop {
        // The state first: what is written after it stands is read in the next turn.
        let record = find_run(&store, &record.id)?;
        for event in tail.more()? {
            picture.hear(&event, &store);
            if args.json {
                out(&format!("{event}\n"))?;
            } else if !terminal {
                plain(&event, &picture)?;
            }
        }
        if terminal && !args.json {
            let text = screen(&record, &picture, colour);
            if text != drawn {
                // Home, then every line over the old one, and nothing of it below.
                out(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")))?;
                drawn = text;
            }
        }
        if record.state != RunState::Running {
            return if args.json || terminal {
                Ok(())
            } else {
                out(&format!("{} {}\n", record.id, record.state.name()))
            };
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn json(record: &RunRecord, picture: &Picture) -> Result<String> {
    let failed = |e| Error::failed("cannot write JSON").caused_by(e);
    let mut value = serde_json::to_value(picture).map_err(failed)?;
    value["id"] = record.id.clone().into();
    value["state"] = record.state.name().into();
    Ok(serde_json::to_string_pretty(&value).map_err(failed)? + "\n")
}

/// Text of a run in one line without anything that a terminal obeys.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'), " ")
}

fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-3..1e5).contains(&magnitude) {
        let digits = if magnitude >= 1000.0 || value.fract() == 0.0 { 0 } else { 4 };
        format!("{value:.digits$}")
    } else {
        format!("{value:.2e}")
    }
}

/// One line for an event, where it has news.
fn plain(event: &Value, picture: &Picture) -> Result<()> {
    let name = event["name"].as_str().unwrap_or_default();
    let line = match event["event"].as_str().unwrap_or_default() {
        "metrics" => {
            let Some(figures) = event["figures"].as_object() else { return Ok(()) };
            let shown = CURVES.iter().chain(&FIGURES).filter_map(|key| Some((key, figures.get(*key)?)));
            let shown: Vec<String> = shown
                .map(|(key, v)| format!("{key} {}", v.as_f64().map_or_else(|| "nan".to_owned(), number)))
                .collect();
            format!("{name}: step {}, {}", figures.get("step").unwrap_or(&Value::Null), shown.join(", "))
        }
        "said" => picture.said.last().cloned().unwrap_or_default(),
        "started" | "cached" | "finished" | "failed" | "skipped" | "stopped" | "waiting" => {
            let Some(stage) = picture.stages.iter().find(|s| s.name == name) else { return Ok(()) };
            let note = if stage.note.is_empty() { String::new() } else { format!(": {}", stage.note) };
            format!("{name}: {}{note}", stage.state)
        }
        _ => return Ok(()),
    };
    out(&format!("{}\n", clean(&line)))
}

/// How the run stands, for a terminal of 80 columns or more.
fn screen(record: &RunRecord, picture: &Picture, colour: bool) -> String {
    let paint = |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    let time = record.seconds.map(|s| format!(", {}", text_of_seconds(s))).unwrap_or_default();
    let mut text = format!(
        "{}  {}  {}{time}\n",
        paint("1", &clean(&record.pipeline)),
        record.id,
        state(record.state.name(), colour)
    );
    // Writing to a String cannot fail.
    for stage in picture.trainings() {
        let step = stage.step().map(|s| format!("step {s}")).unwrap_or_default();
        let _ = writeln!(text, "\n{}  {}  {step}", paint("1", &clean(&stage.name)), state(stage.state, colour));
        for metric in CURVES {
            let values = stage.values(metric);
            // No KL term, no noise: that says nothing.
            if values.iter().all(|v| *v == 0.0 || v.is_nan()) {
                continue;
            }
            let last = values.last().copied().unwrap_or(f64::NAN);
            let last = if last.is_nan() { "nan".to_owned() } else { number(last) };
            let _ = writeln!(text, "  {metric:<24} {:<WIDTH$} {last:>10}", paint("36", &curve(&values)));
        }
        let figures: Vec<String> = FIGURES
            .iter()
            .filter_map(|key| Some(format!("{key} {}", number(stage.latest.get(*key)?.as_f64()?))))
            .collect();
        if !figures.is_empty() {
            let _ = writeln!(text, "  {}", figures.join("  "));
        }
    }
    text.push('\n');
    let width = picture.stages.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).min(48);
    for Stage { name, state: now, note, seconds, .. } in &picture.stages {
        let time = seconds.map(text_of_seconds).unwrap_or_default();
        let note: String = clean(note).chars().take(100).collect();
        let padding = " ".repeat(8usize.saturating_sub(now.len()));
        let line = format!("{}{padding} {:<width$} {time} {note}", state(now, colour), clean(name));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for line in &picture.said {
        let line: String = clean(line).chars().take(160).collect();
        let _ = writeln!(text, "{line}");
    }
    text
}

fn state(name: &str, colour: bool) -> String {
    let code = match name {
        "failed" | "killed" => "31",
        "running" | "waiting" => "33",
        "done" | "cached" => "32",
        _ => "0",
    };
    if colour { format!("\x1b[{code}m{name}\x1b[0m") } else { name.to_owned() }
}

/// At most [`WIDTH`] bars from the lowest to the highest value, each the mean of its steps; a gap where none is finite.
fn curve(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let columns = values.len().min(WIDTH);
    let bar = |column: usize| {
        let part = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        let part: Vec<f64> = part.iter().copied().filter(|v| v.is_finite()).collect();
        if part.is_empty() {
            return ' ';
        }
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        let share = if high > low { (mean - low) / (high - low) } else { 0.5 };
        BARS[((share * 7.0).round() as usize).min(7)]
    };
    let text: String = (0..columns).map(bar).collect();
    // Formatting pads by characters, which colour codes would upset.
    format!("{text}{}", " ".repeat(WIDTH - columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_shows_its_range_and_its_gaps() {
        assert_eq!(curve(&[0.0, 1.0, f64::NAN, 0.5]).trim_end(), "▁█ ▅");
        assert_eq!(curve(&[3.0]).trim_end(), "▅");
        assert_eq!(curve(&[]).chars().count(), WIDTH);
        let long: Vec<f64> = (0..1000).map(f64::from).collect();
        let text = curve(&long);
        assert_eq!((text.chars().count(), text.chars().next(), text.chars().last()), (WIDTH, Some('▁'), Some('█')));
    }

    #[test]
    fn a_terminal_obeys_nothing_of_a_run() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d"), "a [2Jb c d");
    }

    #[test]
    fn a_growing_file_gives_each_whole_line_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut tail = Tail { path: path.clone(), at: 0, rest: Vec::new() };
        assert_eq!(tail.more().unwrap(), Vec::<Value>::new());
        std::fs::write(&path, "{\"a\":1}\n{\"b\"").unwrap();
        assert_eq!(tail.more().unwrap(), [serde_json::json!({"a": 1})]);
        std::fs::write(&path, "{\"a\":1}\n{\"b\":2}\n").unwrap();
        assert_eq!(tail.more().unwrap(), [serde_json::json!({"b": 2})]);
    }
}
