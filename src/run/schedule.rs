//! Which instance may start next: the state of every instance of a run.

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline::Graph;
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

/// How many may run at once, and on what.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Instances that compute on the CPU.
    pub jobs: usize,
    /// Of those that keep every core busy (sft, train, eval).
    pub heavy: usize,
    /// CPU threads of all together.
    pub threads: usize,
    /// GPUs to hand out. Without any, stages that ask for one compute on the CPU.
    pub devices: Vec<usize>,
    /// Bytes that all together may ask for; a single instance always may.
    pub memory: u64,
}

/// What a running instance has taken.
#[derive(Debug)]
struct Held {
    devices: Vec<usize>,
    cpus: usize,
    memory: u64,
}

#[derive(Debug)]
pub struct Schedule<'a> {
    graph: &'a Graph,
    pub states: Vec<State>,
    /// Instances whose key turned out to equal that of another: they wait for it.
    pub after: Vec<Option<usize>>,
    limits: Limits,
    held: BTreeMap<usize, Held>,
}

/// What a worker does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Start { index: usize, threads: usize, devices: Vec<usize> },
    Skip(usize),
    Wait,
    Over,
}

impl<'a> Schedule<'a> {
    pub fn new(graph: &'a Graph, selected: &BTreeSet<usize>, limits: Limits) -> Self {
        let n = graph.instances.len();
        let states = (0..n).map(|i| if selected.contains(&i) { State::Waiting } else { State::Out }).collect();
        Self { graph, states, after: vec![None; n], limits, held: BTreeMap::new() }
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
        let states = &self.states;
        self.held.retain(|index, _| matches!(states[*index], State::Running));
        let mut ready = Vec::new();
        for index in 0..self.states.len() {
            if !matches!(self.states[index], State::Waiting) {
                continue;
            }
            match self.readiness(index) {
                Readiness::Ready => ready.push(index),
                Readiness::Never(why) => {
                    self.states[index] = State::Skipped(why);
                    return Next::Skip(index);
                }
                Readiness::NotYet => {}
            }
        }
        if let Some((index, threads, held)) = self.startable(&ready) {
            let devices = held.devices.clone();
            self.states[index] = State::Running;
            self.held.insert(index, held);
            return Next::Start { index, threads, devices };
        }
        if self.held.is_empty() {
            // Only a cycle, which no graph has, could bring us here; waiting for it would never end.
            let stuck = self.states.iter().position(|s| matches!(s, State::Waiting));
            if let Some(index) = stuck {
                self.states[index] = State::Skipped("it waits for itself".to_owned());
                return Next::Skip(index);
            }
        }
        Next::Wait
    }

    fn on_gpu(&self, index: usize) -> bool {
        self.graph.instances[index].resources.gpus > 0 && !self.limits.devices.is_empty()
    }

    /// Whether an instance keeps every core busy.
    fn is_heavy(&self, index: usize) -> bool {
        matches!(self.graph.instances[index].kind, Kind::Sft | Kind::Train | Kind::Eval) && !self.on_gpu(index)
    }

    /// The first of `ready` for which there is room, its threads and what it takes.
    fn startable(&self, ready: &[usize]) -> Option<(usize, usize, Held)> {
        let limits = &self.limits;
        let on_cpu = self.held.keys().filter(|i| !self.on_gpu(**i)).count();
        let heavy_running = self.held.keys().filter(|i| self.is_heavy(**i)).count();
        let heavy_ready = ready.iter().filter(|i| self.is_heavy(**i)).count();
        let busy: BTreeSet<usize> = self.held.values().flat_map(|h| h.devices.iter().copied()).collect();
        let cpus: usize = self.held.values().map(|h| h.cpus).sum();
        let memory: u64 = self.held.values().fold(0, |sum, h| sum.saturating_add(h.memory));
        let alone = self.held.is_empty();
        for &index in ready {
            let wants = &self.graph.instances[index].resources;
            let mut held = Held {
                devices: Vec::new(),
                cpus: (wants.cpus as usize).min(limits.threads),
                // Checked when the file was read.
                memory: wants.memory_bytes().ok().flatten().unwrap_or(0),
            };
            let crowded = cpus + held.cpus > limits.threads || memory.saturating_add(held.memory) > limits.memory;
            if !alone && crowded && (held.cpus > 0 || held.memory > 0) {
                continue;
            }
            let fair = if self.on_gpu(index) {
                let free = limits.devices.iter().copied().filter(|d| !busy.contains(d));
                held.devices = free.take(wants.gpus as usize).collect();
                if held.devices.len() < wants.gpus as usize {
                    continue;
                }
                limits.threads * held.devices.len() / limits.devices.len()
            } else {
                let heavy = self.is_heavy(index);
                if on_cpu >= limits.jobs || (heavy && heavy_running >= limits.heavy) {
                    continue;
                }
                let sharing = if heavy { (heavy_running + heavy_ready).min(limits.heavy) } else { on_cpu + 1 };
                limits.threads / sharing.max(1)
            };
            let threads = if held.cpus > 0 { held.cpus } else { fair };
            return Some((index, threads.max(1), held));
        }
        None
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Instance, Resources};

    fn graph(stages: &[(Kind, Resources)]) -> Graph {
        let instance = |(i, (kind, resources)): (usize, &(Kind, Resources))| Instance {
            stage: format!("s{i}"),
            kind: *kind,
            point: BTreeMap::new(),
            config: serde_json::Value::Null,
            inputs: Vec::new(),
            needs: Vec::new(),
            resources: resources.clone(),
        };
        Graph {
            name: "x".to_owned(),
            file: "x.yaml".into(),
            instances: stages.iter().enumerate().map(instance).collect(),
            axes: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    fn limits(devices: &[usize]) -> Limits {
        Limits { jobs: 2, heavy: 1, threads: 8, devices: devices.to_vec(), memory: 32 << 30 }
    }

    fn gpus(gpus: u32) -> Resources {
        Resources { gpus, ..Resources::default() }
    }

    /// Starts all that can start: (index, threads, devices).
    fn start(schedule: &mut Schedule<'_>) -> Vec<(usize, usize, Vec<usize>)> {
        let mut started = Vec::new();
        while let Next::Start { index, threads, devices } = schedule.next(false) {
            started.push((index, threads, devices));
        }
        started
    }

    fn schedule<'a>(graph: &'a Graph, limits: Limits) -> Schedule<'a> {
        Schedule::new(graph, &(0..graph.instances.len()).collect(), limits)
    }

    #[test]
    fn every_gpu_stage_has_its_own_devices() {
        let graph = graph(&[
            (Kind::Train, gpus(1)),
            (Kind::Train, gpus(2)),
            (Kind::Eval, gpus(1)),
            (Kind::Train, gpus(1)),
            (Kind::Eval, gpus(0)),
        ]);
        let mut schedule = schedule(&graph, limits(&[3, 5, 7]));
        // The fourth finds no device; the last one needs none and runs on the CPU.
        assert_eq!(start(&mut schedule), [(0, 2, vec![3]), (1, 5, vec![5, 7]), (4, 8, vec![])]);
        schedule.states[0] = State::Failed("it diverged".to_owned());
        assert_eq!(start(&mut schedule), [(2, 2, vec![3])]);
        schedule.states[1] = State::Stopped;
        assert_eq!(start(&mut schedule), [(3, 2, vec![5])]);
        assert_eq!(schedule.next(false), Next::Wait);
    }

    #[test]
    fn without_devices_gpu_stages_take_turns_on_the_cpu() {
        let graph = graph(&[(Kind::Train, gpus(1)), (Kind::Eval, gpus(4)), (Kind::Split, gpus(0))]);
        let mut schedule = schedule(&graph, limits(&[]));
        assert_eq!(start(&mut schedule), [(0, 8, vec![]), (2, 4, vec![])]);
        schedule.states[0] = State::Stopped;
        assert_eq!(start(&mut schedule), [(1, 8, vec![])]);
    }

    #[test]
    fn jobs_bound_cpu_stages_and_not_those_on_gpus() {
        let graph = graph(&[
            (Kind::Lora, gpus(0)),
            (Kind::Lora, gpus(0)),
            (Kind::Lora, gpus(0)),
            (Kind::Train, gpus(1)),
            (Kind::Train, gpus(1)),
        ]);
        let started = start(&mut schedule(&graph, limits(&[0, 1])));
        assert_eq!(started.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 1, 3, 4]);
    }

    #[test]
    fn cpus_and_memory_are_set_aside() {
        let wants =
            |cpus: u32, memory: &str| Resources { cpus, memory: Some(memory.to_owned()), ..Resources::default() };
        let limits = Limits { jobs: 9, ..limits(&[]) };
        let graph = graph(&[
            (Kind::Quantize, wants(6, "20GiB")),
            (Kind::Quantize, wants(4, "1GiB")),
            (Kind::Quantize, wants(2, "20GiB")),
            (Kind::Quantize, wants(2, "4GiB")),
            (Kind::Quantize, wants(99, "900GiB")),
        ]);
        let mut schedule = schedule(&graph, limits);
        assert_eq!(start(&mut schedule), [(0, 6, vec![]), (3, 2, vec![])]);
        schedule.states[0] = State::Stopped;
        assert_eq!(start(&mut schedule), [(1, 4, vec![]), (2, 2, vec![])]);
        for i in [1, 2, 3] {
            schedule.states[i] = State::Stopped;
        }
        // More than the machine has: it runs, but alone.
        assert_eq!(start(&mut schedule), [(4, 8, vec![])]);
    }
}
