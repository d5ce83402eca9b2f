//! `qerl chat`: a conversation, line by line.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::model_arg::ModelArg;
use super::out::write as out;
use super::sampling_args::SamplingArgs;
use super::text_model::{TextModel, speed};
use crate::control::Cancel;
use crate::data::chat::Message;
use crate::engine::{Request, Sampling};
use crate::rl::random::key;
use crate::{Error, Result};

/// Talk with a model, line by line
///
/// Each line of stdin is a turn; answers go to stdout as they come. /reset forgets the conversation, /exit or Ctrl-D ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// CPU threads; all by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let sampling = args.sampling.check()?;
    let model = TextModel::open(&args.model.files()?, args.threads)?;
    if model.text.chat().is_none() {
        eprintln!("note: this model has no chat template; turns are put one behind the other");
    }
    let cancel = Cancel::new();
    let answering = Arc::new(AtomicBool::new(false));
    stop_on_interrupt(&cancel, &answering)?;
    let system = args.system.as_ref().map(|text| Message::new("system", text));
    let mut talk = Talk { model, sampling, args, cancel, system, turns: Vec::new(), asked: 0 };
    let at_terminal = std::io::stdin().is_terminal();
    if at_terminal {
        eprintln!("/reset forgets the conversation, /exit or Ctrl-D ends it");
    }
    let mut input = std::io::stdin().lock();
    loop {
        if at_terminal {
            eprint!("> ");
        }
        let mut line = String::new();
        if input.read_line(&mut line).map_err(|e| Error::io("read", "stdin", e))? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/reset" => {
                talk.turns.clear();
                eprintln!("the conversation starts anew");
            }
            text => {
                answering.store(true, Ordering::SeqCst);
                talk.answer(text, at_terminal)?;
                answering.store(false, Ordering::SeqCst);
            }
        }
    }
}

struct Talk<'a> {
    model: TextModel,
    sampling: Sampling,
    args: &'a Args,
    cancel: Cancel,
    system: Option<Message>,
    /// User and assistant by turns.
    turns: Vec<Message>,
    /// Questions so far, those before a reset too: each gets a seed of its own.
    asked: u64,
}

impl Talk<'_> {
    /// Asks the model and prints what it says while it says it.
    fn answer(&mut self, text: &str, show_speed: bool) -> Result<()> {
        self.turns.push(Message::new("user", text));
        let prompt = self.prompt()?;
        let seed = key(self.args.sampling.seed, "chat", self.asked, 0);
        self.asked += 1;
        let max_new_tokens = self.args.sampling.max_new_tokens;
        let request = Request { prompt, max_new_tokens, sampling: self.sampling, seed };
        let start = Instant::now();
        let (text, mut ids, mut shown) = (&self.model.text, Vec::new(), Shown::default());
        let made = self.model.engine.stream(&request, text.eos(), &self.cancel, &mut |id| {
            ids.push(id);
            say(shown.more(&text.decode(&ids)?))
        })?;
        let answer = text.decode(&made.tokens)?;
        say(&(shown.rest(&answer) + "\n"))?;
        self.turns.push(Message::new("assistant", answer));
        if show_speed {
            let count = made.tokens.len();
            eprintln!("({count} tokens, {})", speed(count, start.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    /// The conversation as ids; its oldest turns are forgotten where it has grown too long for the model.
    fn prompt(&mut self) -> Result<Arc<[u32]>> {
        let context = self.model.engine.config().max_position;
        // Room for an answer, as long as that leaves half of the context to the conversation.
        let room = self.args.sampling.max_new_tokens.min(context / 2);
        let mut forgotten = 0;
        loop {
            let messages: Vec<Message> = self.system.iter().chain(&self.turns).cloned().collect();
            let ids = self.model.ids(&messages)?;
            if ids.len() + room <= context || self.turns.len() <= 2 {
                if forgotten > 0 {
                    eprintln!("note: the oldest {forgotten} turns no longer fit into the context and are forgotten");
                }
                return Ok(ids);
            }
            self.turns.drain(..2);
            forgotten += 2;
        }
    }
}

/// To stdout at once.
fn say(text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    out(text)?;
    std::io::stdout().flush().map_err(|e| Error::io("write to", "stdout", e))
}

/// How much of an answer stands on the screen. A text that grows token by token may end within a character.
#[derive(Debug, Default)]
struct Shown(String);

impl Shown {
    /// What can be printed now, `text` being all so far.
    fn more<'a>(&mut self, text: &'a str) -> &'a str {
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let Some(new) = whole.strip_prefix(self.0.as_str()) else { return "" };
        self.0.push_str(new);
        new
    }

    /// What is missing of the finished `text`; all of it where a tokenizer went back on what it had said.
    fn rest(&self, text: &str) -> String {
        text.strip_prefix(self.0.as_str()).map_or_else(|| format!("\n{text}"), str::to_owned)
    }
}

/// While the model answers, Ctrl-C stops it cleanly; while the command waits for a line, it ends at once.
fn stop_on_interrupt(cancel: &Cancel, answering: &Arc<AtomicBool>) -> Result<()> {
    let (cancel, answering) = (cancel.clone(), answering.clone());
    ctrlc::set_handler(move || {
        if !answering.load(Ordering::SeqCst) || cancel.is_cancelled() {
            eprintln!();
            std::process::exit(130);
        }
        cancel.cancel();
    })
    .map_err(|e| Error::failed("cannot listen for Ctrl-C").caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shown_in_whole_characters() {
        let mut shown = Shown::default();
        let steps = ["a", "a\u{fffd}", "aé", "aé", "aé b"];
        assert_eq!(steps.map(|text| shown.more(text)), ["a", "", "é", "", " b"]);
        assert_eq!(shown.rest("aé b\u{fffd}"), "\u{fffd}", "broken to the end: said as it is");
        assert_eq!(shown.more("other"), "");
        assert_eq!(shown.rest("other"), "\nother");
    }
}
