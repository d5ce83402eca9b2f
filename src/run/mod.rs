//! The executor: a scheduler over a plan, with locks, progress and a clean stop.
//!
//! Workers take the first instance whose inputs are there, make it under its lock (or take it from the store), and
//! go on until nothing is left, something fails, or the user asks to stop.

pub mod diff;
pub mod dispatch;
mod events;
mod hook;
mod hub;
mod job;
pub mod live;
pub mod machine;
pub mod notify;
pub mod picture;
mod pins;
mod publish;
pub mod record;
pub mod reproduce;
mod schedule;
mod show;
mod signals;

pub use dispatch::Stages;
pub use events::{Deaf, Event, Listener};
pub use hook::{Hooked, MetricsHook};
pub use job::diverged;
pub use pins::{Resolver, Update, pin, requests};
pub use publish::{default_folder, publish};
pub use record::Overrides;
pub use show::{Bars, JsonLines, Lines, duration as text_of_seconds};
pub use signals::stop_on_interrupt;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Cancel;
use crate::error::Kind as Trouble;
use crate::hub::Hub;
use crate::pipeline::Graph;
use crate::plan::keys::{Surroundings, base_dir};
use crate::plan::{self, Action, Plan};
use crate::stages::Kind;
use crate::store::{Artifact, Store};
use crate::{Error, Result};
use job::{Claims, End, Job};
use schedule::{Limits, Next, Schedule, State};

/// How a run behaves; nothing here is part of a fingerprint.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub plan: plan::Options,
    /// Instances at once; without it several light ones, but one at a time of sft, train and eval.
    pub jobs: Option<usize>,
    /// A failure only stops what depends on it.
    pub keep_going: bool,
    /// CPU threads shared by everything that runs; all of the machine's where absent.
    pub threads: Option<usize>,
    /// GPUs that stages with `resources: {gpus: N}` get for themselves; without any they compute on the CPU.
    pub gpus: Vec<usize>,
    /// What the command line changed, for the record of the run.
    pub overrides: Overrides,
    /// Only this one instance: the others must be finished.
    pub only: Option<Only>,
    /// What reports keep of the pipeline, for `qerl reproduce`.
    pub recipe: Option<reproduce::Recipe>,
}

/// One instance of a graph, for a job of its own.
#[derive(Clone, Debug)]
pub struct Only {
    pub index: usize,
    /// Why inputs of it have no artifact, as far as that is known.
    pub reasons: BTreeMap<usize, String>,
}

/// Light stages (downloads, splits) mostly wait for the network or the disk.
const LIGHT_JOBS: usize = 4;

/// Everything that a run needs.
pub struct Executor<'a> {
    pub graph: &'a Graph,
    pub store: &'a Store,
    pub hub: &'a Hub,
    pub stages: &'a dyn Stages,
    pub resolver: &'a dyn Resolver,
    pub listener: &'a dyn Listener,
    pub cancel: Cancel,
    pub options: Options,
    /// qerl.lock beside the pipeline.
    pub lock_path: PathBuf,
}

/// How an instance ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    Ran(Box<Artifact>),
    Cached(Box<Artifact>),
    Failed(String),
    Skipped(String),
    Stopped,
}

/// What a run did.
#[derive(Debug)]
pub struct Summary {
    /// Selected instances in the graph's order.
    pub outcomes: Vec<(String, Kind, Outcome)>,
    pub seconds: f64,
    /// The first failure, or the request to stop.
    pub error: Option<Error>,
}

impl Summary {
    fn count(&self, keep: impl Fn(&Outcome) -> bool) -> usize {
        self.outcomes.iter().filter(|(_, _, outcome)| keep(outcome)).count()
    }

    pub fn ran(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Ran(_)))
    }

    pub fn cached(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Cached(_)))
    }

    pub fn failed(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Failed(_)))
    }

    pub fn skipped(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Skipped(_)))
    }

    pub fn stopped(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Stopped))
    }

    /// Artifacts of the report stages, with their stage's name.
    pub fn reports(&self) -> impl Iterator<Item = (&str, &Artifact)> {
        self.outcomes.iter().filter(|(_, kind, _)| *kind == Kind::Report).filter_map(|(name, _, outcome)| match outcome
        {
            Outcome::Ran(artifact) | Outcome::Cached(artifact) => Some((name.as_str(), artifact.as_ref())),
            _ => None,
        })
    }

    fn event(&self) -> Event {
        Event::Summary {
            ran: self.ran(),
            cached: self.cached(),
            failed: self.failed(),
            skipped: self.skipped(),
            stopped: self.stopped(),
            seconds: self.seconds,
        }
    }
}

/// What the workers share.
struct Shared<'a> {
    schedule: Mutex<Board<'a>>,
    changed: Condvar,
}

struct Board<'a> {
    schedule: Schedule<'a>,
    error: Option<Error>,
}

impl<'a> Shared<'a> {
    fn board(&self) -> MutexGuard<'_, Board<'a>> {
        // Every change of the board is one assignment, so a panic in a listener leaves it whole.
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything but the one instance is over: in the store, or failed elsewhere.
fn seed(schedule: &mut Schedule<'_>, plan: &Plan, only: &Only) {
    for entry in plan.entries.iter().filter(|entry| entry.index != only.index) {
        schedule.states[entry.index] = match &entry.action {
            Action::Cached(artifact) => State::Done { artifact: artifact.clone(), ran: false },
            _ => State::Failed(only.reasons.get(&entry.index).cloned().unwrap_or_else(|| "not finished".to_owned())),
        };
    }
}

impl Executor<'_> {
    /// The plan as it is now, offline.
    pub fn plan(&self) -> Result<Plan> {
        let lock = plan::lockfile::LockFile::read(&self.lock_path)?;
        plan::plan(&self.around(&lock)?, &self.options.plan)
    }

    /// The plan after everything is pinned that is not yet.
    ///
    /// # Errors
    /// When the hub does not know a revision, or a stage's input cannot be read.
    pub fn pinned_plan(&self) -> Result<Plan> {
        let selected = plan::select(self.graph, &self.options.plan.until)?;
        let wanted = requests(self.graph, &selected);
        let (lock, _) =
            pin(&wanted, &self.lock_path, &Update::Missing, self.store, self.resolver, self.listener, &self.cancel)?;
        plan::plan(&self.around(&lock)?, &self.options.plan)
    }

    fn around<'b>(&'b self, lock: &'b plan::lockfile::LockFile) -> Result<Surroundings<'b>> {
        let backend = crate::engine::cuda::device::chosen()?.backend()?;
        Ok(Surroundings { graph: self.graph, store: self.store, lock, base_dir: base_dir(self.graph), backend })
    }

    /// Pins what is not pinned, plans, does what is to be done, and leaves a record of it.
    ///
    /// # Errors
    /// Only for what prevents a start; failures of stages are in the summary.
    pub fn run(&self) -> Result<Summary> {
        let selected = plan::select(self.graph, &self.options.plan.until)?;
        let forced = plan::forced(self.graph, &self.options.plan.force)?;
        self.check_devices(&selected)?;
        if self.options.only.is_some() {
            // Whoever made a job of it keeps the record.
            return self.run_selected(&selected, &forced);
        }
        let journal = record::Journal::begin(self.store, self.graph, &self.options.overrides, self.listener);
        let recorded = Executor {
            listener: &journal,
            cancel: self.cancel.clone(),
            options: self.options.clone(),
            lock_path: self.lock_path.clone(),
            ..*self
        };
        let result = recorded.run_selected(&selected, &forced);
        journal.end(self.graph, &result);
        result
    }

    /// Refuses stages that ask for more GPUs than there are, where there are any.
    fn check_devices(&self, selected: &BTreeSet<usize>) -> Result<()> {
        let offered = self.options.gpus.len();
        let asks = |i: &&usize| self.graph.instances[**i].resources.gpus as usize > offered;
        match selected.iter().find(asks) {
            Some(index) if offered > 0 => {
                let instance = &self.graph.instances[*index];
                let wanted = instance.resources.gpus;
                Err(Error::usage(format!("{} asks for {wanted} GPUs, and there are {offered}", instance.name()))
                    .hint(format!("--set {}.resources.gpus={offered}, or give more with --gpus", instance.stage)))
            }
            _ => Ok(()),
        }
    }

    fn run_selected(&self, selected: &BTreeSet<usize>, forced: &BTreeSet<usize>) -> Result<Summary> {
        let clock = Instant::now();
        self.store.sweep_drafts()?;
        let wanted = requests(self.graph, selected);
        let (lock, _) =
            pin(&wanted, &self.lock_path, &Update::Missing, self.store, self.resolver, self.listener, &self.cancel)?;
        let around = self.around(&lock)?;
        let plan = plan::plan(&around, &self.options.plan)?;
        plan.check_versions()?;
        let counts = plan.counts();
        self.listener.hear(&Event::Planned {
            pipeline: plan.pipeline.clone(),
            stages: plan.entries.len(),
            cached: counts.cached,
            run: counts.run,
            same: counts.same,
        });
        for line in plan.space_warnings() {
            self.listener.hear(&Event::Said { name: None, line });
        }
        let limits = Limits {
            jobs: self.options.jobs.unwrap_or(LIGHT_JOBS).max(1),
            heavy: self.options.jobs.unwrap_or(1).max(1),
            threads: self.options.threads.unwrap_or_else(machine::threads).max(1),
            devices: self.options.gpus.clone(),
            memory: machine::memory().unwrap_or(u64::MAX),
        };
        let workers = (limits.jobs + limits.devices.len()).min(selected.len());
        let mut schedule = Schedule::new(self.graph, selected, limits);
        if let Some(only) = &self.options.only {
            seed(&mut schedule, &plan, only);
        }
        let shared = Shared { schedule: Mutex::new(Board { schedule, error: None }), changed: Condvar::new() };
        let claims = Claims::default();
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.work(&around, &shared, &claims, forced));
            }
        });
        let board = shared.schedule.into_inner().unwrap_or_else(PoisonError::into_inner);
        let summary = self.summary(board, clock.elapsed());
        self.listener.hear(&summary.event());
        Ok(summary)
    }

    fn summary(&self, board: Board<'_>, wall: Duration) -> Summary {
        let mut outcomes = Vec::new();
        for (instance, state) in self.graph.instances.iter().zip(board.schedule.states) {
            let outcome = match state {
                State::Done { artifact, ran: true } => Outcome::Ran(artifact),
                State::Done { artifact, ran: false } => Outcome::Cached(artifact),
                State::Failed(why) => Outcome::Failed(why),
                State::Skipped(why) => Outcome::Skipped(why),
                State::Waiting | State::Running | State::Stopped => Outcome::Stopped,
                State::Out => continue,
            };
            outcomes.push((instance.name(), instance.kind, outcome));
        }
        let mut error = board.error;
        if error.is_none() && outcomes.iter().any(|(_, _, o)| matches!(o, Outcome::Stopped)) {
            error = Some(
                Error::new(Trouble::Cancelled, "stopped on request")
                    .hint("the same command goes on from the last checkpoints"),
            );
        }
        Summary { outcomes, seconds: wall.as_secs_f64(), error }
    }

    /// One worker: takes instances until none is left.
    fn work(&self, around: &Surroundings<'_>, shared: &Shared<'_>, claims: &Claims, forced: &BTreeSet<usize>) {
        let mut board = shared.board();
        loop {
            match board.schedule.next(self.cancel.is_cancelled()) {
                Next::Over => {
                    shared.changed.notify_all();
                    return;
                }
                Next::Skip(index) => {
                    let name = self.graph.instances[index].name();
                    if let State::Skipped(why) = &board.schedule.states[index] {
                        self.listener.hear(&Event::Skipped { name, why: why.clone() });
                    }
                    shared.changed.notify_all();
                }
                // Woken by every change; the timeout is for Ctrl-C, which changes nothing on the board.
                Next::Wait => {
                    let waited = shared.changed.wait_timeout(board, Duration::from_millis(100));
                    board = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Next::Start { index, threads, devices } => {
                    let repeated = board.schedule.after[index].is_some();
                    let inputs = self.inputs(&board.schedule, index);
                    drop(board);
                    let forced = forced.contains(&index);
                    let job = Job { executor: self, around, claims, index, inputs, threads, devices, forced, repeated };
                    let result = job.run();
                    board = shared.board();
                    self.settle(&mut board, index, result);
                    shared.changed.notify_all();
                }
            }
        }
    }

    fn inputs(&self, schedule: &Schedule<'_>, index: usize) -> Vec<Result<Artifact, String>> {
        let edges = self.graph.instances[index].inputs.iter();
        edges
            .map(|edge| match &schedule.states[edge.from] {
                State::Done { artifact, .. } => Ok(artifact.as_ref().clone()),
                _ => Err(schedule.cause(edge.from)),
            })
            .collect()
    }

    /// Writes down how a job ended; a failure stops the others unless `--keep-going`.
    fn settle(&self, board: &mut Board<'_>, index: usize, result: Result<End>) {
        let name = self.graph.instances[index].name();
        board.schedule.states[index] = match result {
            Ok(End::Done { artifact, ran }) => State::Done { artifact, ran },
            Ok(End::SameAs(other)) => {
                board.schedule.after[index] = Some(other);
                State::Waiting
            }
            Err(error) if error.kind() == Trouble::Cancelled && self.cancel.is_cancelled() => {
                self.listener.hear(&Event::Stopped { name });
                State::Stopped
            }
            Err(error) => {
                let text = error.to_string();
                let hint = error.hint_text().map(str::to_owned);
                self.listener.hear(&Event::Failed { name: name.clone(), error: text.clone(), hint });
                if board.error.is_none() {
                    board.error = Some(error.within(&name));
                }
                if !self.options.keep_going {
                    self.cancel.cancel();
                }
                State::Failed(text)
            }
        };
    }
}
