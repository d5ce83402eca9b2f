//! The stage itself: a policy (or a model made from nothing) and reference solutions in, a trained one out.

use std::path::Path;
use std::sync::Arc;

use super::Config;
use super::{scratch, tokenizer};
use crate::data::Problem;
use crate::model::eos_ids;
use crate::rl::OptimizerKind;
use crate::rl::language::Language;
use crate::rl::metrics;
use crate::rl::settings::OptimizerSettings;
use crate::rl::supervised::{self, SupervisedSettings};
use crate::stages::inputs::PolicyFiles;
use crate::stages::material;
use crate::stages::train::Parts;
use crate::stages::train::finish::{Form, recent};
use crate::stages::{Context, Output};
use crate::store::{Handle, Location};
use crate::{Error, Result};

impl Config {
    /// The resolved settings; an error names the key that cannot be.
    pub fn settings(&self) -> Result<SupervisedSettings> {
        let bad = |what: &str| Err(Error::usage(what));
        if self.policy.is_some() == self.architecture.is_some() {
            return bad("sft wants either a policy to train or an architecture to make a model of");
        }
        if self.steps == 0 || self.batch == 0 || self.micro_batch_tokens == 0 || self.checkpoint_every == 0 {
            return bad("steps, batch, micro_batch_tokens and checkpoint_every must be above 0");
        }
        let finite = [self.lr, self.weight_decay, self.max_grad_norm].iter().all(|v| v.is_finite() && *v >= 0.0);
        let shares = (0.0..=1.0).contains(&self.warmup) && self.betas.iter().all(|b| (0.0..1.0).contains(b));
        if !finite || !shares {
            return bad("lr, weight_decay and max_grad_norm must be 0 or more, warmup within 0..1 and betas below 1");
        }
        Ok(SupervisedSettings {
            steps: self.steps,
            batch: self.batch,
            micro_batch_tokens: self.micro_batch_tokens,
            optimizer: OptimizerSettings {
                kind: OptimizerKind::AdamW,
                lr: self.lr,
                lr_schedule: self.lr_schedule,
                warmup: self.warmup,
                weight_decay: self.weight_decay,
                betas: self.betas,
                max_grad_norm: self.max_grad_norm,
                horizon: self.steps,
            },
            seed: self.seed,
            checkpoint_every: self.checkpoint_every,
        })
    }
}

/// Opens the language of a model folder for the stage's data.
pub type OpenLanguage<'a> = dyn Fn(&Path) -> Result<Box<dyn Language>> + 'a;

/// Writes a model folder with fresh weights and a tokenizer of the words of all prompts and solutions; the same every
/// time.
pub fn make(dir: &Path, config: &Config, problems: &[Problem], open: &OpenLanguage<'_>) -> Result<()> {
    let architecture = config.architecture.as_ref().ok_or_else(|| Error::usage("sft: no architecture is given"))?;
    if problems.is_empty() {
        return Err(
            Error::input("there is no problem to make a tokenizer of").hint("look at the data set of this stage")
        );
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    // Prompts are rendered with the folder's own chat template, so one without words is written first.
    let write = |texts: &[String]| tokenizer::write(dir, texts.iter().map(String::as_str), architecture.vocab_multiple);
    write(&[])?;
    let language = open(dir)?;
    let mut texts = Vec::with_capacity(2 * problems.len());
    for problem in problems {
        texts.push(language.render(problem)?);
        texts.push(language.ideal(problem));
    }
    scratch::write(dir, architecture, write(&texts)?, config.seed)
}

/// Trains on the problems' reference solutions, each closed by the end-of-sequence token; continues from
/// `context.work`.
pub fn run_with(context: &Context<'_>, config: &Config, parts: &dyn Parts) -> Result<Output> {
    let settings = config.settings()?;
    let problems = material::problems(context, "data", "train")?;
    let spec = material::spec(context, "data")?;
    let open = |dir: &Path| parts.language(dir, &spec);
    let (policy, form) = match &config.policy {
        Some(slot) => {
            let policy = context.policy(&slot.0)?;
            let form = Form::of(context, &slot.0, &policy)?;
            (policy, form)
        }
        None => {
            let model = context.work.join("init");
            make(&model, config, &problems, &open)?;
            (PolicyFiles { model, adapter: None, trainable_model: true }, Form::Model)
        }
    };
    let language = open(&policy.model)?;
    let mut engine = parts.engine(&policy, form.trainable(), context.threads)?;
    let engine = engine.as_mut();
    let limits = (spec.max_prompt_tokens.unwrap_or(usize::MAX), config.max_tokens);
    let rows = rows(context, config, limits, &policy.model, &problems, language.as_ref())?;
    let metrics_file =
        supervised::run(&mut *engine, &settings, &rows, &context.work, context.progress, context.cancel)?;
    let mut summary = recent(&metrics::read(&metrics_file)?, &["loss", "entropy", "train/tok_s"]);
    summary.insert("steps".to_owned(), settings.steps.into());
    summary.insert("rows".to_owned(), rows.len().into());
    let mut output = form.finish(context, &policy.model, engine, &[], &metrics_file, summary.into())?;
    // One model and no choice of checkpoints: a model like a downloaded one.
    if let Handle::Models { checkpoints } = &output.handle
        && let Some(path) = checkpoints.get("last")
    {
        output.handle = Handle::Model { at: Location::Own { path: path.clone() } };
    }
    Ok(output)
}

type Row = (Arc<[u32]>, Vec<u32>);

fn rows(
    context: &Context<'_>,
    config: &Config,
    (max_prompt, max_tokens): (usize, usize),
    model: &Path,
    problems: &[Problem],
    language: &dyn Language,
) -> Result<Vec<Row>> {
    let eos = eos_ids(model)?;
    let Some(&end) = eos.first() else {
        return Err(Error::input("the model names no end-of-sequence id")
            .hint("generation_config.json or config.json needs eos_token_id"));
    };
    let (mut rows, mut long) = (Vec::new(), 0);
    for problem in problems {
        let prompt = language.prompt(problem)?;
        let mut completion = language.encode(&language.ideal(problem))?;
        completion.push(end);
        if prompt.is_empty() || prompt.len() > max_prompt || prompt.len() + completion.len() > max_tokens {
            long += 1;
            continue;
        }
        rows.push(if config.train_prompt {
            let mut all = prompt;
            let rest = all.split_off(1);
            (Arc::from(all), rest.into_iter().chain(completion).collect())
        } else {
            (Arc::from(prompt), completion)
        });
    }
    if long > 0 {
        context.progress.say(&format!(
            "{long} of {} rows are longer than max_tokens or max_prompt_tokens and left out",
            problems.len()
        ));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Checkpoint, ModelConfig};

    /// Prompts as they are.
    struct Plain;

    impl Language for Plain {
        fn prompt(&self, _: &Problem) -> Result<Vec<u32>> {
            Ok(vec![1])
        }
        fn render(&self, problem: &Problem) -> Result<String> {
            Ok(problem.prompt.clone())
        }
        fn encode(&self, _: &str) -> Result<Vec<u32>> {
            Ok(vec![2])
        }
        fn decode(&self, _: &[u32]) -> Result<String> {
            Ok(String::new())
        }
        fn ideal(&self, problem: &Problem) -> String {
            problem.answer.clone()
        }
    }

    fn config() -> Config {
        serde_json::from_value(serde_json::json!({
            "architecture": {
                "hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64
            },
            "data": "arith", "steps": 3, "lr": 1e-3, "seed": 5,
        }))
        .unwrap()
    }

    #[test]
    fn a_model_made_from_nothing_is_the_same_every_time_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let problem = Problem {
            id: "1".into(),
            prompt: "Tom has 12 apples.".into(),
            answer: "12".into(),
            solution: None,
            tags: Default::default(),
        };
        let open = |_: &Path| -> Result<Box<dyn Language>> { Ok(Box::new(Plain)) };
        for name in ["a", "b"] {
            make(&dir.path().join(name), &config(), std::slice::from_ref(&problem), &open).unwrap();
        }
        assert!(
            String::from_utf8(std::fs::read(dir.path().join("a/tokenizer.json")).unwrap())
                .unwrap()
                .contains("\" apples\"")
        );
        let read = |name: &str, file: &str| std::fs::read(dir.path().join(name).join(file)).unwrap();
        for file in ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"] {
            assert_eq!(read("a", file), read("b", file), "{file}");
        }
        let model = dir.path().join("a");
        let parsed = ModelConfig::read(&model).unwrap();
        assert_eq!((parsed.hidden_size, parsed.head_dim, parsed.vocab_size % 128), (32, 16, 0));
        assert!(parsed.qkv_bias && parsed.tie_word_embeddings);
        assert_eq!(eos_ids(&model).unwrap(), [2, 0]);
        let embedding = Checkpoint::open(&model).unwrap().dense("model.embed_tokens.weight").unwrap();
        let n = embedding.data.len() as f32;
        let std = (embedding.data.iter().map(|v| v * v).sum::<f32>() / n).sqrt();
        assert!((std - 0.02).abs() < 0.002, "{std}");
    }

    #[test]
    fn a_policy_and_an_architecture_exclude_each_other() {
        assert!(config().settings().is_ok());
        let neither = Config { architecture: None, ..config() };
        assert!(neither.settings().is_err());
        let both = Config { policy: Some(crate::stages::StageRef("policy".into())), ..config() };
        assert!(both.settings().is_err());
    }
}
