//! `qerl generate`: completions of prompts.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use super::bar::Bar;
use super::model_arg::ModelArg;
use super::out::write as out;
use super::sampling_args::SamplingArgs;
use super::text_model::{TextModel, counted, speed};
use crate::control::{Cancel, Progress};
use crate::data::chat::Message;
use crate::engine::{Completion, Finish, Request};
use crate::rl::random::key;
use crate::{Error, Result, run};

/// Complete prompts with a model
///
/// Prompts are put as a user's turn in the model's chat template (--raw: fed as they are). Texts go to stdout, the speed
/// to stderr.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// The prompt; may be repeated
    #[arg(long, value_name = "TEXT", required_unless_present = "prompts", conflicts_with = "prompts")]
    prompt: Vec<String>,
    /// JSON lines, each a text or an object with `prompt`; `-` is stdin
    #[arg(long, value_name = "FILE.jsonl|-")]
    prompts: Option<PathBuf>,
    /// Feed the text as it is, without the chat template
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Completions per prompt; several need a temperature
    #[arg(long, value_name = "N", default_value_t = 1)]
    samples: usize,
    /// CPU threads; all by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Print one JSON object per completion: prompt, text, tokens, log_probs, finish
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    prompt: &'a str,
    text: String,
    tokens: &'a [u32],
    log_probs: &'a [f32],
    finish: &'static str,
}

pub fn run(args: &Args) -> Result<()> {
    let sampling = args.sampling.check()?;
    if args.samples == 0 {
        return Err(Error::usage("--samples 0 generates nothing"));
    }
    if args.samples > 1 && args.sampling.is_greedy() {
        return Err(Error::usage("several samples at temperature 0 are all the same")
            .hint("give --temperature, for instance 1, or leave --samples out"));
    }
    let files = args.model.files()?;
    let prompts = match &args.prompts {
        Some(path) => read_prompts(path)?,
        None => args.prompt.clone(),
    };
    let mut model = TextModel::open(&files, args.threads)?;
    let mut requests = Vec::with_capacity(prompts.len() * args.samples);
    for (i, text) in prompts.iter().enumerate() {
        let prompt = ids(&model, args, text).map_err(|e| e.within(format!("prompt {}", i + 1)))?;
        for sample in 0..args.samples {
            let seed = key(args.sampling.seed, "generate", i as u64, sample as u64);
            let max_new_tokens = args.sampling.max_new_tokens;
            requests.push(Request { prompt: prompt.clone(), max_new_tokens, sampling, seed });
        }
    }
    let cancel = Cancel::new();
    run::stop_on_interrupt(&cancel, || eprintln!("\nstopping"))?;
    let bar = Bar::new();
    bar.total(requests.len() as u64, "completions");
    let start = Instant::now();
    let mut drawn = 0;
    let completions = model.engine.generate(&requests, model.text.eos(), &cancel, &mut |finished, new| {
        drawn += new;
        bar.at(finished as u64, &speed(drawn, start.elapsed().as_secs_f64()));
    })?;
    let seconds = start.elapsed().as_secs_f64();
    drop(bar);
    for (i, completion) in completions.iter().enumerate() {
        let (prompt, sample) = (i / args.samples, i % args.samples);
        let text = model.text.decode(&completion.tokens)?;
        if args.json {
            out(&line(&prompts[prompt], text, completion)?)?;
        } else {
            // One completion is its text and nothing else; several need a mark.
            if completions.len() > 1 {
                out(&format!("# prompt {}, sample {}\n", prompt + 1, sample + 1))?;
            }
            out(&(text + "\n"))?;
        }
    }
    let tokens: usize = completions.iter().map(|c| c.tokens.len()).sum();
    let count = counted(completions.len(), "completion");
    eprintln!("{count}, {} in {seconds:.1} s, {}", counted(tokens, "token"), speed(tokens, seconds));
    Ok(())
}

fn ids(model: &TextModel, args: &Args, text: &str) -> Result<std::sync::Arc<[u32]>> {
    let ids: std::sync::Arc<[u32]> = if args.raw {
        model.text.encode_prompt(text)?.into()
    } else {
        let system = args.system.as_ref().map(|system| Message::new("system", system));
        let messages: Vec<Message> = system.into_iter().chain([Message::new("user", text)]).collect();
        model.ids(&messages)?
    };
    if ids.is_empty() {
        return Err(Error::input("there is not a single token to start from").hint("give a text that is not empty"));
    }
    Ok(ids)
}

fn line(prompt: &str, text: String, completion: &Completion) -> Result<String> {
    let finish = match completion.finish {
        Finish::Eos => "eos",
        Finish::Length => "length",
    };
    let line = Line { prompt, text, tokens: &completion.tokens, log_probs: &completion.log_probs, finish };
    let json = serde_json::to_string(&line);
    Ok(json.map_err(|e| Error::failed("cannot write a completion as JSON").caused_by(e))? + "\n")
}

/// A file's text; `-` is stdin.
pub(super) fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|e| Error::io("read", "stdin", e))?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))
}

fn read_prompts(path: &Path) -> Result<Vec<String>> {
    let text = read(path)?;
    let mut prompts = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("{} line {}", path.display(), i + 1);
        let value: Value =
            serde_json::from_str(line).map_err(|e| Error::input(format!("{} is not valid JSON", at())).caused_by(e))?;
        let prompt = value.get("prompt").unwrap_or(&value).as_str().ok_or_else(|| {
            Error::input(format!("{} holds no prompt", at())).hint("each line is a text, or an object with `prompt`")
        })?;
        prompts.push(prompt.to_owned());
    }
    if prompts.is_empty() {
        return Err(Error::input(format!("{} holds no prompts", path.display())));
    }
    Ok(prompts)
}
