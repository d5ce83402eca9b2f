//! From a finished run to the stage's output: adapters or models by checkpoint name, metrics, a summary.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::engine::{Engine, NamedTensor, Trainable};
use crate::model::{Adapter, ModelConfig, copy_companions, read_json, write_dense};
use crate::rl::{metrics, tensorboard};
use crate::stages::inputs::PolicyFiles;
use crate::stages::{Context, Output};
use crate::store::{Handle, Location};
use crate::tensors::DType;
use crate::{Error, Result};

/// What is being trained, as its files are written again.
pub enum Form {
    Adapter { template: Box<Adapter>, model: Location },
    Model,
}

impl Form {
    /// An adapter where the policy has one; an unquantized model else.
    pub fn of(context: &Context<'_>, slot: &str, policy: &PolicyFiles) -> Result<Self> {
        match &policy.adapter {
            Some(dir) => Ok(Self::Adapter {
                template: Box::new(Adapter::read(dir, &ModelConfig::read(&policy.model)?)?),
                model: context.model_location(slot)?,
            }),
            None if policy.trainable_model => Ok(Self::Model),
            None => Err(Error::usage("a quantized model cannot be trained without an adapter")
                .hint("put a `lora` stage between `quantize` and this one, or train the model in bf16")),
        }
    }

    /// What the engine shall train.
    pub fn trainable(&self) -> Trainable {
        match self {
            Self::Adapter { template, .. } => Trainable::Adapter { norms: template.norms },
            Self::Model => Trainable::All,
        }
    }

    /// Folder of a checkpoint inside the artifact.
    fn folder(&self, name: &str) -> String {
        match self {
            Self::Adapter { .. } => format!("adapters/{name}"),
            Self::Model => format!("models/{name}"),
        }
    }

    /// Writes one checkpoint; gives its files relative to the artifact.
    fn write(&self, output: &Path, name: &str, model: &Path, parameters: &[NamedTensor]) -> Result<Vec<String>> {
        let folder = self.folder(name);
        let dir = output.join(&folder);
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
        let files = match self {
            Self::Adapter { template, .. } => template.with_values(parameters)?.write(&dir)?,
            Self::Model => {
                let mut files = write_dense(&dir, &read_json(model)?.1, parameters, DType::BF16)?;
                files.extend(copy_companions(model, &dir)?);
                files
            }
        };
        Ok(files.into_iter().map(|file| format!("{folder}/{file}")).collect())
    }

    /// Writes all checkpoints and the metrics. `kept` holds further checkpoints than `last`; names without parameters
    /// of their own (`best` where nothing was evaluated) are `last`.
    pub fn finish(
        self,
        context: &Context<'_>,
        model: &Path,
        engine: &dyn Engine,
        kept: &[(String, Vec<NamedTensor>)],
        metrics_file: &Path,
        summary: Value,
    ) -> Result<Output> {
        let mut declared = self.write(&context.output, "last", model, &engine.parameters()?)?;
        let mut names = BTreeMap::from([("last".to_owned(), self.folder("last"))]);
        for (name, parameters) in kept {
            declared.extend(self.write(&context.output, name, model, parameters)?);
            names.insert(name.clone(), self.folder(name));
        }
        names.entry("best".to_owned()).or_insert_with(|| self.folder("last"));
        let records = metrics::read(metrics_file)?;
        let copy = context.output.join("metrics.jsonl");
        std::fs::copy(metrics_file, &copy).map_err(|e| Error::io("write", &copy, e))?;
        metrics::write_parquet(&context.output.join("metrics.parquet"), &records)?;
        // The name that TensorBoard looks for.
        tensorboard::write(&context.output.join("events.out.tfevents.0.qerl"), &records)?;
        let handle = match self {
            Self::Adapter { model, .. } => Handle::Adapter { model, adapters: names },
            Self::Model => Handle::Models { checkpoints: names },
        };
        Ok(Output { declared, handle, summary })
    }
}

/// Means over the last steps, for people and reports.
pub fn recent(records: &[serde_json::Map<String, Value>], names: &[&str]) -> serde_json::Map<String, Value> {
    const LAST: usize = 10;
    let tail = &records[records.len().saturating_sub(LAST)..];
    let mean = |name: &str| {
        let values: Vec<f64> = tail.iter().filter_map(|r| r.get(name).and_then(Value::as_f64)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    names.iter().map(|name| ((*name).to_owned(), json!(mean(name)))).collect()
}
