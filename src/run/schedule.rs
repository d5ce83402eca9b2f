//! Which instance may start next: the state of every instance of a run.

use std::collections::BTreeSet;

use crate::pipeline::{Graph, Instance};
use crate::plan::dependencies;
use crate::stages::Kind;
use crate::store::Artifact;

/// What has become of an instance.
#[derive(Clone, Debug)]
pub enum State {
    Waiting,
    Running,
    Done {
        artifact: Box<Artifact>,
        ran: bool,
    },
    Failed(String),
    Skipped(String),
    /// Stopped on request, or not started because of one.
    Stopped,
    /// Not selected by `--until`.
    Out,
}

impl State {
    fn is_over(&self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }
}

/// How many may run at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub jobs: usize,
    /// Of those that keep every core busy (sft, train, eval).
    pub heavy: usize,
    pub threads: usize,
}

#[derive(Debug)]
pub struct Schedule<'a> {
    graph: &'a Graph,
    pub states: Vec<State>,
    /// Instances whose key turned out to equal that of another: they wait for it.
    pub after: Vec<Option<usize>>,
    limits: Limits,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Start { index: usize, threads: usize },
    Skip(usize),
    Wait,
    Over,
}

impl<'a> Schedule<'a> {
    pub fn new(graph: &'a Graph, selected: &BTreeSet<usize>, limits: Limits) -> Self {
        let n = graph.instances.len();
        let states = (0..n).map(|i| if selected.contains(&i) { State::Waiting } else { State::Out }).collect();
        Self { graph, states, after: vec![None; n], limits }
    }

    /// The first instance that can start or can never start. With `halted`, nothing starts any more.
    pub fn next(&mut self, halted: bool) -> Next {
        if halted {
            for state in &mut self.states {
                if matches!(state, State::Waiting) {
                    *state = State::Stopped;
                }
            }
        }
        if self.states.iter().all(State::is_over) {
            return Next::Over;
        }
        let running: Vec<usize> = self.indices(|s| matches!(s, State::Running)).collect();
        let heavy_running = running.iter().filter(|i| is_heavy(&self.graph.instances[**i])).count();
        let waiting: Vec<usize> = self.indices(|s| matches!(s, State::Waiting)).collect();
        let mut ready = Vec::new();
        for index in waiting {
            match self.readiness(index) {
                Readiness::Ready => ready.push(index),
                Readiness::Never(why) => {
                    self.states[index] = State::Skipped(why);
                    return Next::Skip(index);
                }
                Readiness::NotYet => {}
            }
        }
        if running.len() >= self.limits.jobs {
            return Next::Wait;
        }
        let heavy_ready = ready.iter().filter(|i| is_heavy(&self.graph.instances[**i])).count();
        for index in ready {
            let heavy = is_heavy(&self.graph.instances[index]);
            if heavy && heavy_running >= self.limits.heavy {
                continue;
            }
            let sharing = if heavy { (heavy_running + heavy_ready).min(self.limits.heavy) } else { running.len() + 1 };
            let threads = (self.limits.threads / sharing.max(1)).max(1);
            self.states[index] = State::Running;
            return Next::Start { index, threads };
        }
        if running.is_empty() {
            // Only a cycle, which no graph has, could bring us here; waiting for it would never end.
            let stuck = self.indices(|s| matches!(s, State::Waiting)).next();
            if let Some(index) = stuck {
                self.states[index] = State::Skipped("it waits for itself".to_owned());
                return Next::Skip(index);
            }
        }
        Next::Wait
    }

    fn indices(&self, keep: impl Fn(&State) -> bool) -> impl Iterator<Item = usize> {
        self.states.iter().enumerate().filter(move |(_, s)| keep(s)).map(|(i, _)| i)
    }

    /// Why an instance that is over has no artifact: its own failure, or the first one behind it that made it be
    /// skipped, with what went wrong there.
    pub fn cause(&self, index: usize) -> String {
        let (mut at, mut seen) = (index, BTreeSet::new());
        loop {
            match &self.states[at] {
                State::Failed(why) if at == index => return why.clone(),
                State::Failed(why) => return format!("{} failed: {why}", self.graph.instances[at].name()),
                State::Skipped(why) => {
                    let instance = &self.graph.instances[at];
                    let lost = |d: &usize| matches!(self.states[*d], State::Failed(_) | State::Skipped(_));
                    match dependencies(instance).chain(self.after[at]).find(lost) {
                        Some(next) if seen.insert(next) => at = next,
                        _ => return format!("skipped: {why}"),
                    }
                }
                _ => return "not finished".to_owned(),
            }
        }
    }

    fn readiness(&self, index: usize) -> Readiness {
        let instance = &self.graph.instances[index];
        let mut pending = false;
        let mut lost = None;
        for dependency in dependencies(instance).chain(self.after[index]) {
            match &self.states[dependency] {
                State::Done { .. } => {}
                State::Waiting | State::Running => pending = true,
                State::Failed(_) => lost = lost.or(Some((dependency, "failed"))),
                State::Skipped(_) => lost = lost.or(Some((dependency, "was skipped"))),
                State::Stopped => lost = lost.or(Some((dependency, "was stopped"))),
                State::Out => lost = lost.or(Some((dependency, "was left out"))),
            }
        }
        let Some((lost, how)) = lost else {
            return if pending { Readiness::NotYet } else { Readiness::Ready };
        };
        let why = format!("{} {how}", self.graph.instances[lost].name());
        let gathers = instance.kind == Kind::Report
            && instance
                .needs
                .iter()
                .all(|d| matches!(self.states[*d], State::Done { .. } | State::Waiting | State::Running));
        let any_done = instance.inputs.iter().any(|e| matches!(self.states[e.from], State::Done { .. }));
        match (gathers, pending, any_done) {
            (true, true, _) => Readiness::NotYet,
            // A report shows the failed ones beside the others.
            (true, false, true) => Readiness::Ready,
            _ => Readiness::Never(why),
        }
    }
}

#[derive(Debug)]
enum Readiness {
    Ready,
    NotYet,
    Never(String),
}

fn is_heavy(instance: &Instance) -> bool {
    matches!(instance.kind, Kind::Sft | Kind::Train | Kind::Eval)
}
