//! What qerl itself costs: planning 1000 finished stages (time and memory, in a process of its own), and how soon a
//! sweep of 1000 points starts its first stage.
//!
//! `cargo bench --bench plan`. Stages are stand-ins that write one line; reading the file, expanding, fingerprints,
//! looking into the store and scheduling are the real ones.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use qerl::control::Cancel;
use qerl::hub::{Hub, HubConfig};
use qerl::pipeline::{Graph, Options, load};
use qerl::plan::keys::{Surroundings, base_dir};
use qerl::plan::{self, Action};
use qerl::run::{Event, Executor, Listener, Stages};
use qerl::stages::{Context, Kind, Output};
use qerl::store::{Handle, Location, Store};
use qerl::{Error, Result};
use serde_json::Value;

/// Groups of quantize, lora and eval: with the model 1000 stages in the file.
const GROUPS: usize = 333;
const POINTS: usize = 1000;

fn stages() -> String {
    let mut text = "name: many\nstages:\n  - {id: model, run: {download: {repo: bundled}}}\n".to_owned();
    for i in 0..GROUPS {
        text += &format!(
            "  - {{id: base{i}, run: {{quantize: {{model: model, format: nvfp4}}}}}}\n  \
               - {{id: lora{i}, run: {{lora: {{model: base{i}, rank: 4, seed: {i}}}}}}}\n  \
               - {{id: eval{i}, run: {{eval: {{policy: {{stage: lora{i}, checkpoint: init}}, data: [sums], seed: {i}}}}}}}\n"
        );
    }
    text
}

fn sweep() -> String {
    let seeds: Vec<String> = (0..POINTS).map(|i| i.to_string()).collect();
    format!(
        "name: sweep\nsweep: {{seed: [{}]}}\nstages:\n  - {{id: model, run: {{download: {{repo: bundled}}}}}}\n  \
         - {{id: lora, run: {{lora: {{model: model, rank: 4, seed: \"${{sweep.seed}}\"}}}}}}\n  \
         - {{id: eval, run: {{eval: {{policy: {{stage: lora, checkpoint: init}}, data: [sums]}}}}}}\n  \
         - {{id: report, run: {{report: {{gather: [eval], rows: seed}}}}}}\n",
        seeds.join(", ")
    )
}

/// Writes one line that depends on what it was made of.
struct Lines;

impl Stages for Lines {
    fn run(&self, kind: Kind, config: &Value, context: &Context<'_>) -> Result<Output> {
        let path = context.output.join("out");
        let inputs: Vec<&str> =
            context.inputs.iter().filter_map(|i| i.artifact.as_ref().ok()).map(|a| a.meta.digest.as_str()).collect();
        std::fs::write(&path, format!("{config} {inputs:?}")).map_err(|e| Error::io("write", &path, e))?;
        let handle = match kind {
            Kind::Report => Handle::Report { files: [("md".to_owned(), "out".to_owned())].into() },
            _ => Handle::Model { at: Location::Own { path: ".".to_owned() } },
        };
        Ok(Output { declared: vec!["out".to_owned()], handle, summary: Value::Null })
    }
}

/// Remembers when the first stage started, and stops there where asked to.
struct First {
    clock: Instant,
    at: Mutex<Option<f64>>,
    stop: Option<Cancel>,
}

impl Listener for First {
    fn hear(&self, event: &Event) {
        if let Event::Started { .. } = event {
            let mut at = self.at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if at.is_none() {
                *at = Some(self.clock.elapsed().as_secs_f64());
                if let Some(cancel) = &self.stop {
                    cancel.cancel();
                }
            }
        }
    }
}

fn graph(file: &Path) -> Result<Graph> {
    Ok(load(file, &Options::default())?)
}

/// Runs a pipeline; gives the seconds from the start of reading it to the start of its first stage.
fn run(dir: &Path, file: &str, stop_at_first: bool) -> Result<Option<f64>> {
    let clock = Instant::now();
    let graph = graph(&dir.join(file))?;
    let store = Store::open(dir.join("home"))?.with_hub_cache(dir.join("hub"));
    let mut config = HubConfig::new("http://127.0.0.1:9", dir.join("hub"));
    config.offline = true;
    let hub = Hub::new(config)?;
    let cancel = Cancel::new();
    let first = First { clock, at: Mutex::new(None), stop: stop_at_first.then(|| cancel.clone()) };
    let executor = Executor {
        graph: &graph,
        store: &store,
        hub: &hub,
        stages: &Lines,
        resolver: &hub,
        listener: &first,
        cancel,
        options: qerl::run::Options { jobs: Some(2), ..qerl::run::Options::default() },
        lock_path: dir.join("qerl.lock"),
    };
    let summary = executor.run()?;
    if let Some(error) = summary.error.filter(|_| !stop_at_first) {
        return Err(error);
    }
    Ok(*first.at.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// In a process of its own, so that its memory is the plan's: prints milliseconds, peak kB, and what is cached.
fn plan_alone(dir: &Path) -> Result<()> {
    let clock = Instant::now();
    let graph = graph(&dir.join("many.yaml"))?;
    let store = Store::open(dir.join("home"))?.with_hub_cache(dir.join("hub"));
    let lock = plan::read_lock(&graph)?;
    let around = Surroundings { graph: &graph, store: &store, lock: &lock, base_dir: base_dir(&graph), backend: "cpu" };
    let plan = plan::plan(&around, &plan::Options::default())?;
    let seconds = clock.elapsed().as_secs_f64();
    let cached = plan.entries.iter().filter(|e| matches!(e.action, Action::Cached(_))).count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or(" ? kB").trim().to_owned();
    println!("{:.0} ms, peak {peak}, {cached} of {} cached", 1e3 * seconds, plan.entries.len());
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|a| a == "--alone") {
        return plan_alone(Path::new(args.get(at + 1).map_or(".", String::as_str)));
    }
    let dir = tempfile::tempdir().map_err(|e| Error::io("create", std::env::temp_dir(), e))?;
    for (name, text) in [("many.yaml", stages()), ("sweep.yaml", sweep())] {
        let path = dir.path().join(name);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    let clock = Instant::now();
    run(dir.path(), "many.yaml", false)?;
    println!("1000 stages made in {:.1} s", clock.elapsed().as_secs_f64());
    for _ in 0..3 {
        let program = std::env::current_exe().map_err(|e| Error::io("find", "this program", e))?;
        let output = Command::new(&program).arg("--alone").arg(dir.path()).output();
        let output = output.map_err(|e| Error::io("start", &program, e))?;
        print!("plan of 1000 finished stages: {}", String::from_utf8_lossy(&output.stdout));
    }
    let first = run(dir.path(), "sweep.yaml", true)?;
    println!("sweep of {POINTS} points: first stage after {:.3} s", first.unwrap_or(f64::NAN));
    Ok(())
}
