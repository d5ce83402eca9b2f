//! `qerl score`: log-probs of token ids.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::generate::read;
use super::model_arg::ModelArg;
use super::out::write as out;
use super::text_model::counted;
use crate::control::Cancel;
use crate::engine::{Batch, Load, Pass, Row, Trainable, load};
use crate::model::ModelConfig;
use crate::{Error, Result, run};

/// Tokens between two looks at Ctrl-C; scores do not depend on it.
const CHUNK: usize = 4096;

/// Score token ids: log-probs and entropies as JSON
///
/// Every token but a row's first is scored. One JSON object per row goes to stdout, the mean over all to stderr.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// A JSON list of lists of token ids, or one list per line; `-` is stdin
    #[arg(long, value_name = "FILE|-")]
    ids: PathBuf,
    /// Divides the logits
    #[arg(long, default_value_t = 1.0)]
    temperature: f32,
    /// CPU threads; all by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Print all rows and the mean as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Scored {
    /// Of tokens 2 to n.
    log_probs: Vec<f32>,
    entropies: Vec<f32>,
    mean_nll: f64,
}

#[derive(Serialize)]
struct All {
    rows: Vec<Scored>,
    tokens: usize,
    mean_nll: f64,
}

pub fn run(args: &Args) -> Result<()> {
    if !(args.temperature > 0.0 && args.temperature.is_finite()) {
        return Err(Error::usage(format!("--temperature {} is not a number above 0", args.temperature))
            .hint("log-probs are those of softmax(logits / temperature); 1 is the model's own distribution"));
    }
    let files = args.model.files()?;
    let name = if args.ids == Path::new("-") { "stdin".to_owned() } else { args.ids.display().to_string() };
    let config = ModelConfig::read(&files.model)?;
    let rows = parse(&read(&args.ids)?, &config).map_err(|e| e.within(&name))?;
    let adapter = files.adapter.as_deref();
    let mut engine = load(&Load { model: &files.model, adapter, trainable: Trainable::None, threads: args.threads })?;
    let cancel = Cancel::new();
    run::stop_on_interrupt(&cancel, || eprintln!("\nstopping"))?;
    let mut scored = Vec::with_capacity(rows.len());
    let mut rest = rows.as_slice();
    while !rest.is_empty() {
        cancel.check()?;
        let mut tokens = 0;
        let fits = rest.iter().take_while(|row| {
            tokens += row.completion.len() + 1;
            tokens <= CHUNK
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        rest = later;
        let scores = engine.forward(&Batch { rows: now.to_vec(), temperature: args.temperature }, Pass::Score)?;
        for (log_probs, entropies) in scores.log_probs.into_iter().zip(scores.entropies) {
            let mean_nll = -sum(&log_probs) / log_probs.len() as f64;
            let row = Scored { log_probs, entropies, mean_nll };
            if !args.json {
                out(&(json(&row)? + "\n"))?;
            }
            scored.push(row);
        }
    }
    let tokens: usize = scored.iter().map(|row| row.log_probs.len()).sum();
    let mean_nll = -scored.iter().map(|row| sum(&row.log_probs)).sum::<f64>() / tokens as f64;
    if args.json {
        return out(&(json(&All { rows: scored, tokens, mean_nll })? + "\n"));
    }
    let (rows, tokens) = (counted(scored.len(), "row"), counted(tokens, "token"));
    eprintln!("{rows}, {tokens} scored, mean NLL {mean_nll:.4} nats");
    Ok(())
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x)).sum()
}

fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::failed("cannot write scores as JSON").caused_by(e))
}

/// One JSON document of rows, or one row per document.
fn parse(text: &str, config: &ModelConfig) -> Result<Vec<Row>> {
    const FORM: &str = "write [[1, 2, 3], [4, 5]], or one list per line; `--ids -` reads stdin";
    let mut rows = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let value = value.map_err(|e| Error::input("not valid JSON").caused_by(e).hint(FORM))?;
        match value {
            Value::Array(list) if list.first().is_some_and(Value::is_array) => rows.extend(list),
            other => rows.push(other),
        }
    }
    if rows.is_empty() {
        return Err(Error::input("holds no rows").hint(FORM));
    }
    let numbered = rows.iter().enumerate();
    numbered.map(|(i, value)| row(value, config).map_err(|e| e.within(format!("row {}", i + 1)))).collect()
}

fn row(value: &Value, config: &ModelConfig) -> Result<Row> {
    let list = value.as_array().ok_or_else(|| Error::input("this is not a list of token ids"))?;
    if list.len() < 2 {
        return Err(Error::input(format!("{} tokens leave none to score", list.len()))
            .hint("the first token of a row only conditions: give at least two"));
    }
    if list.len() > config.max_position {
        return Err(Error::input(format!(
            "{} tokens do not fit into the model's context of {}",
            list.len(),
            config.max_position
        )));
    }
    let id = |(at, value): (usize, &Value)| {
        let id = value.as_u64().ok_or_else(|| Error::input(format!("token {}: {value} is no token id", at + 1)))?;
        if id >= config.vocab_size as u64 {
            return Err(Error::input(format!(
                "token {}: id {id} is outside the vocabulary of {} ids",
                at + 1,
                config.vocab_size
            ))
            .hint("encode the text with this model's own tokenizer"));
        }
        u32::try_from(id).map_err(|_| Error::input(format!("token {}: {id} is no token id", at + 1)))
    };
    let ids = list.iter().enumerate().map(id).collect::<Result<Vec<u32>>>()?;
    Ok(Row { prompt: ids[..1].into(), completion: ids[1..].to_vec() })
}
