//! Stages that do what their configuration says, and a bench that runs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use qerl::control::Cancel;
use qerl::hub::{Hub, HubConfig};
use qerl::pipeline::{Edge, Graph, Instance, Resources};
use qerl::plan::Plan;
use qerl::plan::lockfile::{LockedFile, Pin, Request};
use qerl::run::{Event, Executor, Listener, Options, Resolver, Stages, Summary};
use qerl::stages::{Context, Kind, Output};
use qerl::store::{Handle, Location, Store};
use qerl::{Error, Result};
use serde_json::{Value, json};

/// An instance under construction.
pub struct Made(pub Instance);

impl Made {
    pub fn at(mut self, axis: &str, label: &str) -> Self {
        self.0.point.insert(axis.to_owned(), label.to_owned());
        self
    }
}

pub fn instance(stage: &str, kind: Kind, config: Value, inputs: &[(&str, usize)]) -> Made {
    let edge = |(slot, from): &(&str, usize)| Edge {
        slot: (*slot).to_owned(),
        from: *from,
        checkpoint: "last".to_owned(),
        part: None,
    };
    Made(Instance {
        stage: stage.to_owned(),
        kind,
        point: BTreeMap::new(),
        config,
        inputs: inputs.iter().map(edge).collect(),
        needs: Vec::new(),
        resources: Resources::default(),
    })
}

#[derive(Default)]
struct Record {
    started: Vec<String>,
    resumed: Vec<String>,
    running: usize,
    most: usize,
    threads: Vec<usize>,
    input_errors: Vec<String>,
    secret_seen: bool,
    said: Vec<String>,
    waited: Vec<String>,
}

/// Writes down what runs and what is said.
#[derive(Default)]
struct Fakes(Mutex<Record>);

impl Listener for Fakes {
    fn hear(&self, event: &Event) {
        let mut record = self.0.lock().unwrap();
        match event {
            Event::Started { name, .. } => record.started.push(name.clone()),
            Event::Said { line, .. } => record.said.push(line.clone()),
            Event::Progress { note, .. } => record.said.push(note.clone()),
            Event::Waiting { holder, .. } => record.waited.push(holder.clone()),
            _ => {}
        }
    }
}

impl Stages for Fakes {
    fn run(&self, kind: Kind, config: &Value, context: &Context<'_>) -> Result<Output> {
        {
            let mut record = self.0.lock().unwrap();
            record.running += 1;
            record.most = record.most.max(record.running);
            record.threads.push(context.threads);
            record.input_errors.extend(context.inputs.iter().filter_map(|i| i.artifact.as_ref().err().cloned()));
        }
        let result = self.act(kind, config, context);
        self.0.lock().unwrap().running -= 1;
        result
    }
}

impl Fakes {
    fn act(&self, kind: Kind, config: &Value, context: &Context<'_>) -> Result<Output> {
        let out = context.output.join("out.txt");
        if let Some(ms) = config["sleep_ms"].as_u64() {
            std::thread::sleep(Duration::from_millis(ms));
        }
        if let Some(why) = config["panic"].as_str() {
            self.0.lock().unwrap().running -= 1;
            panic!("{why}");
        }
        if let Some(why) = config["fail"].as_str() {
            std::fs::write(&out, "half").unwrap();
            return Err(Error::failed(why));
        }
        if config["checkpoint_and_wait"] == json!(true) {
            let checkpoint = context.work.join("checkpoint");
            if checkpoint.exists() {
                let name = context.work.file_name().unwrap().to_string_lossy().into_owned();
                let mut record = self.0.lock().unwrap();
                let last = record.started.last().cloned().unwrap_or(name);
                record.resumed.push(last);
            } else {
                std::fs::write(&out, "half").unwrap();
                std::fs::write(&checkpoint, "step 1").unwrap();
                loop {
                    context.cancel.check()?;
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        if let Some(bytes) = config["bytes"].as_u64() {
            std::fs::write(&out, vec![1u8; bytes as usize]).map_err(|e| Error::io("write", &out, e))?;
        }
        let token = config["token"].as_str().unwrap_or("").to_owned();
        if token.contains("hunter2-hunter2") {
            self.0.lock().unwrap().secret_seen = true;
            context.progress.say(&format!("using {token}"));
            context.progress.at(1, &token);
        }
        let mut text = String::new();
        for key in ["size", "seed", "i", "revision"] {
            text += &format!("{key}={} ", config[key]);
        }
        for input in &context.inputs {
            if let Ok(artifact) = &input.artifact {
                text += &format!("{}={} ", input.slot, artifact.meta.digest);
            }
        }
        if config["bytes"].is_null() {
            std::fs::write(&out, text).map_err(|e| Error::io("write", &out, e))?;
        }
        let own = Location::Own { path: ".".to_owned() };
        let handle = match kind {
            Kind::Report => Handle::Report { files: BTreeMap::from([("md".to_owned(), "out.txt".to_owned())]) },
            _ => Handle::Model { at: own },
        };
        Ok(Output { declared: vec!["out.txt".to_owned()], handle, summary: json!({ "token": token }) })
    }
}

/// Resolves `main` to a commit that moves on when told to.
#[derive(Default)]
pub struct Moving(Mutex<(usize, usize)>);

impl Moving {
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().0
    }

    pub fn move_on(&self) {
        self.0.lock().unwrap().1 += 1;
    }

    pub fn first_commit(&self) -> String {
        "0".repeat(40)
    }
}

impl Resolver for Moving {
    fn resolve(&self, request: &Request, _: &Cancel) -> Result<Pin> {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        let commit = match request.revision.as_str() {
            "main" => state.1.to_string().repeat(40),
            other => other.to_owned(),
        };
        let file = LockedFile { path: "config.json".to_owned(), size: 7, sha256: Some("ab".repeat(32)), git: None };
        Ok(Pin { commit, files: vec![file] })
    }
}

/// A graph, a store and everything else that a run needs.
pub struct Bench {
    pub graph: Graph,
    pub store: Store,
    pub options: Options,
    pub resolver: Moving,
    fakes: Fakes,
    hub: Hub,
    cancel: Mutex<Cancel>,
    home: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Bench {
    pub fn new(instances: Vec<Made>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut bench = Self::at(dir.path(), instances);
        bench._dir = Some(dir);
        bench
    }

    pub fn at(home: &Path, instances: Vec<Made>) -> Self {
        Self {
            graph: Graph {
                name: "exp".to_owned(),
                file: home.join("exp.yaml"),
                instances: instances.into_iter().map(|made| made.0).collect(),
                axes: BTreeMap::new(),
                notes: Vec::new(),
            },
            store: Store::open(home.join("home")).unwrap().with_hub_cache(home.join("hub")),
            options: Options::default(),
            resolver: Moving::default(),
            fakes: Fakes::default(),
            hub: hub(home),
            cancel: Mutex::new(Cancel::new()),
            home: home.to_owned(),
            _dir: None,
        }
    }

    fn executor(&self) -> Executor<'_> {
        Executor {
            graph: &self.graph,
            store: &self.store,
            hub: &self.hub,
            stages: &self.fakes,
            resolver: &self.resolver,
            listener: &self.fakes,
            cancel: self.cancel.lock().unwrap().clone(),
            options: self.options.clone(),
            lock_path: self.lock_path(),
        }
    }

    /// A run; a failed one leaves the flag set, so each gets a fresh one.
    pub fn run(&self) -> Summary {
        let summary = self.executor().run().unwrap();
        if summary.failed() > 0 {
            self.uncancel();
        }
        summary
    }

    pub fn plan(&self) -> Plan {
        self.try_plan().unwrap()
    }

    pub fn try_plan(&self) -> Result<Plan> {
        self.executor().plan()
    }

    pub fn lock_path(&self) -> PathBuf {
        self.home.join("qerl.lock")
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    pub fn cancel(&self) {
        self.cancel.lock().unwrap().cancel();
    }

    pub fn uncancel(&self) {
        *self.cancel.lock().unwrap() = Cancel::new();
    }

    pub fn clear(&self) {
        *self.fakes.0.lock().unwrap() = Record::default();
    }

    /// Names of the stages that ran, in order of their start.
    pub fn log(&self) -> Vec<String> {
        self.fakes.0.lock().unwrap().started.clone()
    }

    pub fn resumed(&self) -> Vec<String> {
        self.fakes.0.lock().unwrap().resumed.clone()
    }

    pub fn said(&self) -> Vec<String> {
        self.fakes.0.lock().unwrap().said.clone()
    }

    pub fn waited(&self) -> Vec<String> {
        self.fakes.0.lock().unwrap().waited.clone()
    }

    pub fn most_at_once(&self) -> usize {
        self.fakes.0.lock().unwrap().most
    }

    pub fn threads(&self) -> Vec<usize> {
        self.fakes.0.lock().unwrap().threads.clone()
    }

    pub fn input_errors(&self) -> Vec<String> {
        self.fakes.0.lock().unwrap().input_errors.clone()
    }

    pub fn secret_seen(&self) -> bool {
        self.fakes.0.lock().unwrap().secret_seen
    }
}

/// Never asks the network: what it could be asked for is not there.
fn hub(home: &Path) -> Hub {
    let mut config = HubConfig::new("http://127.0.0.1:9", home.join("hub"));
    config.offline = true;
    Hub::new(config).unwrap()
}
