//! How a run stands, put together from its events: every stage's state, and the curves of its trainings.
//!
//! The same events reach it while they happen (`qerl run --live`) and from events.jsonl (`qerl watch`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::report::{Point, Row, curve_metrics};
use crate::rl::metrics;
use crate::store::Store;

/// A stage that the run has spoken of.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stage {
    /// `train@seed=1`.
    pub name: String,
    /// `running`, `waiting`, `cached`, `done`, `failed`, `skipped` or `stopped`.
    pub state: &'static str,
    /// Why it failed, was skipped or diverged; how far it is while it runs.
    pub note: String,
    /// Wall time of a finished one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The figures of the latest step, under their names in metrics.jsonl.
    pub latest: Map<String, Value>,
    /// Metric -> optimizer step -> value; NaN where it was not finite.
    #[serde(serialize_with = "pairs")]
    pub curves: BTreeMap<String, BTreeMap<u64, f64>>,
}

/// As `[[step, value], ...]`: JSON has no NaN, so a gap is null.
fn pairs<S: serde::Serializer>(
    curves: &BTreeMap<String, BTreeMap<u64, f64>>,
    out: S,
) -> std::result::Result<S::Ok, S::Error> {
    let list = |points: &BTreeMap<u64, f64>| points.iter().map(|(step, v)| json!([step, v])).collect::<Vec<_>>();
    out.collect_map(curves.iter().map(|(name, points)| (name, list(points))))
}

impl Stage {
    fn add(&mut self, figures: &Map<String, Value>) {
        let Some(step) = figures.get("step").and_then(Value::as_u64) else { return };
        for metric in curve_metrics() {
            if let Some(value) = figures.get(metric) {
                let value = value.as_f64().unwrap_or(f64::NAN);
                self.curves.entry(metric.to_owned()).or_default().insert(step, value);
            }
        }
        if self.latest.get("step").and_then(Value::as_u64).is_none_or(|last| last <= step) {
            self.latest = figures.clone();
        }
    }

    /// The step that it has reached.
    pub fn step(&self) -> Option<u64> {
        self.latest.get("step").and_then(Value::as_u64)
    }

    /// A curve's values in the order of the steps.
    pub fn values(&self, metric: &str) -> Vec<f64> {
        self.curves.get(metric).into_iter().flat_map(BTreeMap::values).copied().collect()
    }
}

/// How a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Picture {
    pub pipeline: String,
    /// How many stages the run has, and how many of these were finished before it.
    pub stages_in_all: u64,
    pub over: bool,
    pub stages: Vec<Stage>,
    /// What was said last: warnings and decisions.
    pub said: Vec<String>,
}

/// So many lines of what was said are kept.
const SAID: usize = 8;

impl Picture {
    fn stage(&mut self, name: &str) -> &mut Stage {
        let at = self.stages.iter().position(|s| s.name == name).unwrap_or_else(|| {
            self.stages.push(Stage { name: name.to_owned(), ..Stage::default() });
            self.stages.len() - 1
        });
        &mut self.stages[at]
    }

    /// Takes in one event as it stands in events.jsonl. What steps of an earlier run left is read from `store`: a
    /// resumed training tells its further steps only, a cached one none.
    pub fn hear(&mut self, event: &Value, store: &Store) {
        let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
        let name = text("name");
        match text("event") {
            "planned" => {
                self.pipeline = text("pipeline").to_owned();
                self.stages_in_all = event.get("stages").and_then(Value::as_u64).unwrap_or_default();
            }
            "started" => {
                let earlier = (text("kind") == "train").then(|| store.work(text("fingerprint")));
                let stage = self.stage(name);
                stage.state = "running";
                stage.note.clear();
                earlier.iter().for_each(|folder| recall(stage, folder));
            }
            "progress" => {
                let count = |key: &str| event.get(key).and_then(Value::as_u64);
                let of = count("total").map(|total| format!(" of {total}")).unwrap_or_default();
                let done = count("done").unwrap_or_default();
                self.stage(name).note = format!("{done}{of} {}", text("unit")).trim_end().to_owned();
            }
            "metrics" => {
                if let Some(figures) = event.get("figures").and_then(Value::as_object) {
                    self.stage(name).add(figures);
                }
            }
            "waiting" => {
                let stage = self.stage(name);
                stage.state = "waiting";
                stage.note = format!("for {}", text("holder"));
            }
            state @ ("cached" | "finished") => {
                let entry = store.entry(text("fingerprint")).ok();
                let stage = self.stage(name);
                stage.state = if state == "cached" { "cached" } else { "done" };
                stage.seconds = event.get("seconds").and_then(Value::as_f64);
                if !stage.note.starts_with("diverged") {
                    stage.note.clear();
                }
                entry.iter().for_each(|folder| recall(stage, folder));
            }
            "diverged" => self.stage(name).note = format!("diverged: {}", text("why")),
            "failed" => {
                let stage = self.stage(name);
                (stage.state, stage.note) = ("failed", text("error").to_owned());
            }
            "skipped" => {
                let stage = self.stage(name);
                (stage.state, stage.note) = ("skipped", text("why").to_owned());
            }
            "stopped" => self.stage(name).state = "stopped",
            "said" => {
                let line = if name.is_empty() { text("line").to_owned() } else { format!("{name}: {}", text("line")) };
                self.said.push(line);
                let extra = self.said.len().saturating_sub(SAID);
                self.said.drain(..extra);
            }
            "summary" => self.over = true,
            // Later versions may tell more.
            _ => {}
        }
    }

    /// Stages with curves.
    pub fn trainings(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|s| s.curves.values().any(|c| !c.is_empty()))
    }

    /// The trainings as a report's plots take them.
    pub fn rows(&self) -> Vec<Row> {
        let point = |(step, v): (&u64, &f64)| Point { step: *step as f64, mean: *v, low: *v, high: *v };
        let row = |stage: &Stage| Row {
            label: stage.name.clone(),
            curves: stage.curves.iter().map(|(m, c)| (m.clone(), c.iter().map(point).collect())).collect(),
            ..Row::default()
        };
        self.trainings().map(row).collect()
    }
}

/// Adds the steps of a metrics.jsonl in `folder`, where there is one.
fn recall(stage: &mut Stage, folder: &Path) {
    // It is for show: one that cannot be read leaves what the events told.
    for record in metrics::read(&folder.join("metrics.jsonl")).unwrap_or_default() {
        stage.add(&record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("store")).unwrap();
        (dir, store)
    }

    #[test]
    fn events_make_states_and_curves_with_gaps() {
        let (_dir, store) = store();
        let mut picture = Picture::default();
        let figures = |step: u64, reward: Value| json!({"event": "metrics", "name": "train", "figures": {"step": step, "reward": reward}});
        for event in [
            json!({"event": "planned", "pipeline": "p", "stages": 3, "cached": 1, "run": 2, "same": 0}),
            json!({"event": "started", "name": "train", "kind": "train", "fingerprint": "ab"}),
            figures(1, json!(0.5)),
            figures(2, Value::Null),
            figures(3, json!(0.75)),
            json!({"event": "failed", "name": "eval", "error": "no"}),
            json!({"event": "something new"}),
        ] {
            picture.hear(&event, &store);
        }
        assert_eq!((picture.pipeline.as_str(), picture.stages_in_all, picture.over), ("p", 3, false));
        let train = &picture.stages[0];
        assert_eq!((train.state, train.step()), ("running", Some(3)));
        let values = train.values("reward");
        assert!(values[0] == 0.5 && values[1].is_nan() && values[2] == 0.75, "{values:?}");
        assert_eq!((picture.stages[1].state, picture.stages[1].note.as_str()), ("failed", "no"));
        let text = serde_json::to_value(&picture).unwrap();
        assert_eq!(text["stages"][0]["curves"]["reward"], json!([[1, 0.5], [2, null], [3, 0.75]]));
        assert_eq!(picture.rows().len(), 1, "only what has curves");
    }

    #[test]
    fn a_resumed_training_shows_its_earlier_steps_too() {
        let (_dir, store) = store();
        let work = store.work("cd");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::write(work.join("metrics.jsonl"), "{\"step\":1,\"reward\":0.25}\n{\"step\":2,\"reward\":0.5}\n")
            .unwrap();
        let mut picture = Picture::default();
        picture.hear(&json!({"event": "started", "name": "t", "kind": "train", "fingerprint": "cd"}), &store);
        picture.hear(&json!({"event": "metrics", "name": "t", "figures": {"step": 3, "reward": 0.75}}), &store);
        assert_eq!(picture.stages[0].values("reward"), [0.25, 0.5, 0.75]);
    }
}
