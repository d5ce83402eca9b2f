//! [`Data`] -> HTML and Markdown through the templates under templates/.

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment};

use super::{Data, markup, view};
use crate::{Error, Result};

const HTML: &str = include_str!("../../templates/report.html.j2");
const STYLE: &str = include_str!("../../templates/style.css.j2");
const MARKDOWN: &str = include_str!("../../templates/report.md.j2");

/// Templates that replace the built-in ones.
#[derive(Clone, Debug, Default)]
pub struct Templates {
    pub html: Option<String>,
    pub markdown: Option<String>,
}

/// The files that a folder of templates may have.
pub const TEMPLATE_FILES: [&str; 2] = ["report.html.j2", "report.md.j2"];

impl Templates {
    /// Those of `folder`; at least one must be there.
    pub fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(Error::io("read", &path, e)),
            }
        };
        let found = Self { html: read(TEMPLATE_FILES[0])?, markdown: read(TEMPLATE_FILES[1])? };
        if found.html.is_none() && found.markdown.is_none() {
            return Err(Error::input(format!("{} has no template", folder.display()))
                .hint(format!("put {} or both there", TEMPLATE_FILES.join(" or "))));
        }
        Ok(found)
    }
}

/// The page: one file, no scripts, nothing loaded from outside.
pub fn html(data: &Data, templates: &Templates) -> Result<String> {
    render("report.html", templates.html.as_deref().unwrap_or(HTML), data)
}

/// The same as Markdown (tables only, no plots).
pub fn markdown(data: &Data, templates: &Templates) -> Result<String> {
    render("report.md", templates.markdown.as_deref().unwrap_or(MARKDOWN), data)
}

fn render(name: &str, template: &str, data: &Data) -> Result<String> {
    page(name, template, view::page(data))
}

/// `template` with `value`: HTML is escaped where `name` ends so; `style.css` can be included.
pub(super) fn page(name: &str, template: &str, value: serde_json::Value) -> Result<String> {
    let broken = |e: minijinja::Error| Error::failed(format!("the template of {name} failed: {e}"));
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).build().map_err(broken)?);
    environment.set_auto_escape_callback(
        |name| {
            if name.ends_with(".html") { AutoEscape::Html } else { AutoEscape::None }
        },
    );
    environment.add_filter("md", |text: String| markup::inline(&text));
    environment.add_filter("code", |text: String| markup::code(&text));
    environment.add_filter("fenced", |text: String| markup::fenced(&text));
    environment.add_filter("num", number);
    environment.set_fuel(Some(50_000_000));
    environment.add_template("style.css", STYLE).map_err(broken)?;
    environment.add_template(name, template).map_err(broken)?;
    let template = environment.get_template(name).map_err(broken)?;
    template.render(Serde(value)).map_err(broken)
}

/// A float without binary dust: 0.949999988079071 (an f32) is 0.95.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_without_binary_dust() {
        assert_eq!(number(f64::from(0.95f32)), "0.95");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(1.0), "1");
    }
}
