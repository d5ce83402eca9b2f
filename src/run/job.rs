//! One instance: from its inputs' artifacts to its own, out of the cache or by running the stage.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::Executor;
use super::events::{Event, JobProgress, scrub};
use crate::pipeline::Instance;
use crate::plan::keys::{Keyed, Source, Surroundings, keyed, reveal_secrets, slots};
use crate::plan::{Found, Reason, find};
use crate::stages::{Context, Input, Kind, Output, download, train};
use crate::store::{Artifact, Draft, Finished, Lock, Lookup, Provenance, remove_tree, short};
use crate::{Error, Result};

/// How a job ended well.
pub(super) enum End {
    Done {
        artifact: Box<Artifact>,
        ran: bool,
    },
    /// The instance with this index has the same key and is being made.
    SameAs(usize),
}

/// Fingerprint -> the instance of this run that makes it.
pub(super) type Claims = Mutex<HashMap<String, usize>>;

pub(super) struct Job<'a> {
    pub executor: &'a Executor<'a>,
    pub around: &'a Surroundings<'a>,
    pub claims: &'a Claims,
    pub index: usize,
    /// In the order of the instance's inputs.
    pub inputs: Vec<Result<Artifact, String>>,
    pub threads: usize,
    pub forced: bool,
    /// It waited for an equal instance, whose artifact it now takes.
    pub repeated: bool,
}

impl Job<'_> {
    fn instance(&self) -> &Instance {
        &self.around.graph.instances[self.index]
    }

    pub fn run(&self) -> Result<End> {
        let executor = self.executor;
        let instance = self.instance();
        let name = instance.name();
        let sources: Vec<Source<'_>> = self
            .inputs
            .iter()
            .map(|input| match input {
                Ok(artifact) => Source::Done(artifact),
                Err(why) => Source::Failed(why),
            })
            .collect();
        let keyed = keyed(self.around, instance, &sources)?;
        if let Some(request) = &keyed.unresolved {
            return Err(
                Error::missing(format!("the revision of {request} is not pinned")).hint("`qerl lock FILE` resolves it")
            );
        }
        let fingerprint = keyed.key.fingerprint();
        if !self.repeated {
            let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(&other) = claims.get(&fingerprint) {
                return Ok(End::SameAs(other));
            }
            claims.insert(fingerprint.clone(), self.index);
        }
        let forced = self.forced && !self.repeated;
        let mut reason = Reason::Forced;
        if !forced {
            match find(executor.store, &self.around.graph.name, &name, &keyed.key, executor.options.plan.versions)? {
                Found::Hit(artifact) if self.is_usable(&name, &artifact)? => return self.hit(&name, artifact),
                Found::Hit(_) => reason = Reason::Moved,
                Found::Not(why) => reason = why,
                Found::Older(old) => {
                    return Err(crate::plan::version_error(&name, &old.meta, keyed.key.version));
                }
            }
        }
        let held = executor.store.lock(&fingerprint, &name, &executor.cancel, |holder| {
            let holder = holder.map_or_else(|| "another process".to_owned(), |h| h.to_string());
            executor.listener.hear(&Event::Waiting { name: name.clone(), holder });
        })?;
        match executor.store.lookup(&fingerprint)? {
            // Made by another process while we waited.
            Lookup::Hit(artifact) if !forced && self.is_usable(&name, &artifact)? => return self.hit(&name, artifact),
            Lookup::Hit(_) | Lookup::Missing => {}
            Lookup::Bad(what) => {
                let place = executor.store.quarantine(&fingerprint, &held)?;
                let line = format!("the stored artifact was damaged ({what}); set aside in {}", place.display());
                executor.listener.hear(&Event::Said { name: Some(name.clone()), line });
            }
        }
        let work = executor.store.work(&fingerprint);
        if forced {
            remove_tree(&work)?;
        }
        let fresh = !work.exists();
        std::fs::create_dir_all(&work).map_err(|e| Error::io("create", &work, e))?;
        if fresh
            && !forced
            && let Some(earlier) = train::earlier::find(executor.store, &keyed.key)?
        {
            train::earlier::take_over(&earlier, &work)?;
        }
        let draft = executor.store.begin(&fingerprint, &held)?;
        executor.listener.hear(&Event::Started {
            name: name.clone(),
            kind: instance.kind.name(),
            fingerprint: fingerprint.clone(),
            reason: reason.to_string(),
            threads: self.threads,
        });
        let end = self.make(&name, &fingerprint, keyed, draft, &held);
        if end.is_err() {
            // Succeeds only where the stage left no checkpoint.
            let _ = std::fs::remove_dir(&work);
        }
        end
    }

    /// A finished download refers to files outside of the store: what is lost of them is fetched again here.
    fn is_usable(&self, name: &str, artifact: &Artifact) -> Result<bool> {
        let instance = self.instance();
        if instance.kind != Kind::Download {
            return Ok(true);
        }
        let executor = self.executor;
        let repo = instance.config.get("repo").and_then(Value::as_str).unwrap_or_default();
        let progress = self.progress(name, Vec::new());
        download::refresh(executor.hub, &self.around.base_dir, repo, artifact, &progress, &executor.cancel)
    }

    fn progress(&self, name: &str, secrets: Vec<String>) -> JobProgress<'_> {
        let listener = self.executor.listener;
        JobProgress { name: name.to_owned(), listener, secrets, state: Mutex::new((None, "")) }
    }

    fn hit(&self, name: &str, artifact: Box<Artifact>) -> Result<End> {
        let fingerprint = artifact.meta.fingerprint.clone();
        self.executor.store.set_name(&self.around.graph.name, name, &fingerprint)?;
        self.executor.listener.hear(&Event::Cached { name: name.to_owned(), fingerprint });
        Ok(End::Done { artifact, ran: false })
    }

    /// Runs the stage and stores what it made.
    fn make(&self, name: &str, fingerprint: &str, keyed: Keyed, draft: Draft<'_>, _held: &Lock) -> Result<End> {
        let executor = self.executor;
        let (config, secrets) = reveal_secrets(&keyed.config)?;
        let progress = self.progress(name, secrets.clone());
        let context = Context {
            inputs: self.stage_inputs(),
            output: draft.dir().to_path_buf(),
            work: executor.store.work(fingerprint),
            store: executor.store,
            progress: &progress,
            cancel: &executor.cancel,
            threads: self.threads,
            base_dir: self.around.base_dir.clone(),
            hub: executor.hub,
        };
        let started = jiff::Timestamp::now();
        let clock = Instant::now();
        let kind = self.instance().kind;
        let result = catch_unwind(AssertUnwindSafe(|| executor.stages.run(kind, &config, &context)));
        let result = result.unwrap_or_else(|payload| Err(panicked(payload.as_ref())));
        let Output { declared, handle, summary } = result.map_err(|error| scrubbed(error, &secrets))?;
        let seconds = clock.elapsed().as_secs_f64();
        let values: Vec<&str> = self
            .inputs
            .iter()
            .map(|input| input.as_ref().map_or("", |artifact| artifact.meta.fingerprint.as_str()))
            .collect();
        let inputs: BTreeMap<String, String> = slots(&self.instance().inputs, &values)
            .into_iter()
            .filter(|(_, _, fingerprint)| !fingerprint.is_empty())
            .map(|(slot, _, fingerprint)| (slot, fingerprint.to_owned()))
            .collect();
        let provenance = Provenance {
            qerl_version: env!("CARGO_PKG_VERSION").to_owned(),
            pipeline: self.around.graph.name.clone(),
            instance: name.to_owned(),
            host: crate::store::host_name(),
            device: super::machine::cpu_name(self.threads),
            started: started.to_string(),
            wall_seconds: seconds,
        };
        let summary = scrubbed_value(summary, &secrets);
        let artifact = draft.commit(&keyed.key, Finished { declared, handle, summary, inputs, provenance })?;
        executor.store.set_name(&self.around.graph.name, name, fingerprint)?;
        // The artifact is safe; checkpoints that cannot be removed now only take space until `cache gc`.
        if let Err(error) = remove_tree(&executor.store.work(fingerprint)) {
            let line = format!("the checkpoints of {} stay: {error}", short(fingerprint));
            executor.listener.hear(&Event::Said { name: Some(name.to_owned()), line });
        }
        let bytes = artifact.meta.files.values().map(|f| f.size).sum();
        let fingerprint = fingerprint.to_owned();
        executor.listener.hear(&Event::Finished { name: name.to_owned(), fingerprint, seconds, bytes });
        Ok(End::Done { artifact: Box::new(artifact), ran: true })
    }

    fn stage_inputs(&self) -> Vec<Input> {
        let edges = self.instance().inputs.iter().zip(&self.inputs);
        edges
            .map(|(edge, artifact)| {
                let producer = &self.around.graph.instances[edge.from];
                Input {
                    slot: edge.slot.clone(),
                    stage: producer.stage.clone(),
                    point: producer.point.clone(),
                    checkpoint: edge.checkpoint.clone(),
                    part: edge.part.clone(),
                    artifact: artifact.clone(),
                }
            })
            .collect()
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let what = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned());
    Error::failed(format!("the stage panicked: {what}"))
        .hint("this is a bug in qerl: please report it with the pipeline")
}

/// The same error with secrets blacked out, its causes flattened into the message where one shows a secret.
fn scrubbed(error: Error, secrets: &[String]) -> Error {
    let text = error.to_string();
    let clean = scrub(&text, secrets);
    let hint = error.hint_text().map(|h| scrub(h, secrets));
    if clean == text && hint.as_deref() == error.hint_text() {
        return error;
    }
    let new = Error::new(error.kind(), clean);
    match hint {
        Some(hint) => new.hint(hint),
        None => new,
    }
}

fn scrubbed_value(value: Value, secrets: &[String]) -> Value {
    match value {
        Value::String(text) => Value::String(scrub(&text, secrets)),
        Value::Array(items) => Value::Array(items.into_iter().map(|v| scrubbed_value(v, secrets)).collect()),
        Value::Object(map) => Value::Object(map.into_iter().map(|(k, v)| (k, scrubbed_value(v, secrets))).collect()),
        other => other,
    }
}
