//! Chat templates: Jinja as transformers runs it, with limits on work and output.
//!
//! What transformers' sandbox has and this keeps: trim_blocks, lstrip_blocks, loop controls, Python's string methods,
//! `tojson` as `json.dumps` writes it, `raise_exception`, `strftime_now`, and generation tags without effect.

mod json;
mod methods;
mod source;

use std::path::Path;

use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde::Serialize;
use serde_json::Map;

use crate::{Error, Result};

/// Work that one rendering may do: bounds its time and, at 64 bytes a unit, the memory it creates.
const FUEL: u64 = 4_000_000;
/// Bytes of a rendered text.
const MAX_OUTPUT: usize = 16 << 20;
/// Bytes of a template.
const MAX_SOURCE: usize = 1 << 20;
/// What `strftime_now` calls now: the date that Llama's templates fall back to. The real one would give another prompt
/// each day, and a run that is resumed or repeated would not be the same.
const NOW: jiff::civil::DateTime = jiff::civil::datetime(2024, 7, 26, 0, 0, 0, 0);

const NAME: &str = "chat";

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    pub content: String,
}

impl Message {
    pub fn new(role: &'static str, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct Chat {
    environment: Environment<'static>,
    /// `bos_token` and the like, as the template may name them.
    tokens: Map<String, serde_json::Value>,
    takes_system: bool,
}

impl Chat {
    /// Parses `source`; `tokens` are the tokenizer's special tokens by their names in tokenizer_config.json.
    pub fn new(source: &str, tokens: Map<String, serde_json::Value>) -> Result<Self> {
        let mut environment = sandbox(UndefinedBehavior::Lenient);
        add(&mut environment, NAME, &source::without_generation_tags(source))
            .map_err(|e| e.within("the model's chat template"))?;
        let mut chat = Self { environment, tokens, takes_system: true };
        chat.takes_system = chat.keeps_system();
        Ok(chat)
    }

    /// Renders a conversation, up to where the model speaks with `generation_prompt`. A template without a system role
    /// gets the system text in front of the first user turn.
    pub fn render(&self, messages: &[Message], generation_prompt: bool) -> Result<String> {
        match messages {
            [system, rest @ ..] if system.role == "system" && !self.takes_system => {
                let mut rest = rest.to_vec();
                if system.content.is_empty() {
                    return self.render_as_is(&rest, generation_prompt);
                }
                match rest.iter_mut().find(|m| m.role == "user") {
                    Some(user) => user.content = format!("{}\n\n{}", system.content, user.content),
                    None => rest.insert(0, Message::new("user", system.content.clone())),
                }
                self.render_as_is(&rest, generation_prompt)
            }
            _ => self.render_as_is(messages, generation_prompt),
        }
    }

    /// Whether the template has a place for a system message.
    pub fn takes_system(&self) -> bool {
        self.takes_system
    }

    fn render_as_is(&self, messages: &[Message], generation_prompt: bool) -> Result<String> {
        let mut context: Map<String, serde_json::Value> = self.tokens.clone();
        let messages = serde_json::to_value(messages)
            .map_err(|e| Error::failed("the conversation cannot be given to the chat template").caused_by(e))?;
        context.insert("messages".to_owned(), messages);
        context.insert("tools".to_owned(), serde_json::Value::Null);
        context.insert("documents".to_owned(), serde_json::Value::Null);
        context.insert("add_generation_prompt".to_owned(), generation_prompt.into());
        render(&self.environment, NAME, Value::from(Serde(&context)))
            .map(|(text, _)| text)
            .map_err(|e| e.within("the model's chat template"))
    }

    /// Tries a system message: some templates refuse it, some leave it out without a word.
    fn keeps_system(&self) -> bool {
        const MARK: &str = "qerl-system-probe";
        let probe = [Message::new("system", MARK), Message::new("user", "?")];
        self.render_as_is(&probe, true).is_ok_and(|text| text.contains(MARK))
    }
}

/// An environment like transformers' sandbox, without templates.
pub(super) fn sandbox(undefined: UndefinedBehavior) -> Environment<'static> {
    let mut environment = Environment::new();
    let mut syntax = minijinja::syntax::SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    // Only delimiters can make it fail, and they are the standard ones.
    if let Ok(syntax) = syntax.build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(undefined);
    environment.set_unknown_method_callback(methods::call);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: &str, options: Kwargs| -> Result<String, minijinja::Error> {
        options.assert_all_used()?;
        jiff::fmt::strtime::format(format, NOW)
            .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, "strftime_now").with_source(e))
    });
    environment
}

/// Parses a template into the environment.
pub(super) fn add(environment: &mut Environment<'static>, name: &'static str, source: &str) -> Result<()> {
    if source.len() > MAX_SOURCE {
        return Err(Error::input(format!("a template of {} bytes is longer than {MAX_SOURCE}", source.len())));
    }
    environment.add_template_owned(name, source.to_owned()).map_err(|e| fault(&e))
}

/// Renders; also gives the value that the template set for the top-level variable `system`.
pub(super) fn render(environment: &Environment<'_>, name: &str, context: Value) -> Result<(String, Option<String>)> {
    let template = environment.get_template(name).map_err(|e| fault(&e))?;
    let mut output = Limited(Vec::new());
    let captured = template.render_captured_to(context, &mut output).map_err(|e| fault(&e))?;
    let system = captured.state().lookup("system").filter(|v| !v.is_undefined() && !v.is_none());
    let system = system.map(|value| value.to_string());
    drop(captured);
    let text = String::from_utf8(output.0).map_err(|e| Error::input("the output is not UTF-8").caused_by(e))?;
    Ok((text, system))
}

/// The whole message in one line: minijinja prints its cause separately.
fn fault(error: &minijinja::Error) -> Error {
    let at = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let mut message = format!("{at}{}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned));
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    let refused = Error::input(message);
    match error.kind() {
        ErrorKind::OutOfFuel => refused.hint("the template does more work than a prompt can need"),
        ErrorKind::SyntaxError => refused.hint("templates are Jinja; blocks of other extensions are not known"),
        _ => refused,
    }
}

/// Keeps at most [`MAX_OUTPUT`] bytes.
struct Limited(Vec<u8>);

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(std::io::Error::other(format!("the output is longer than {MAX_OUTPUT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The template of a model folder, where transformers looks for it: chat_template.jinja, then tokenizer_config.json
/// (the one called `default` where it has several), then chat_template.json.
pub fn find(dir: &Path, tokenizer_config: &Map<String, serde_json::Value>) -> Result<Option<String>> {
    let file = dir.join("chat_template.jinja");
    if file.is_file() {
        return super::files::read_text(&file, MAX_SOURCE as u64).map(Some);
    }
    let default = |templates: &Vec<serde_json::Value>| {
        let named = |t: &&serde_json::Value| t.get("name").and_then(|n| n.as_str()) == Some("default");
        templates.iter().find(named).and_then(|t| t.get("template")?.as_str()).map(str::to_owned)
    };
    match tokenizer_config.get("chat_template") {
        Some(serde_json::Value::String(text)) => return Ok(Some(text.clone())),
        Some(serde_json::Value::Array(templates)) => return Ok(default(templates)),
        _ => {}
    }
    let file = dir.join("chat_template.json");
    if file.is_file() {
        let json = super::files::read_json(&file)?;
        return Ok(json.get("chat_template").and_then(|t| t.as_str()).map(str::to_owned));
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
