//! Where the hub and its cache are, as the environment of the Hugging Face tools says.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};

/// An access token; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// # Errors
    /// When it holds characters that cannot stand in a header (a stray line break, most often).
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::usage("the hub token is empty or holds blanks or control characters")
                .hint("set HF_TOKEN to the token exactly as the hub shows it, `hf_...`"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The token itself, only to black it out of texts.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Everything a [`super::Hub`] depends on.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// `https://huggingface.co` or a mirror.
    pub endpoint: String,
    /// Sent to the endpoint's origin only.
    pub token: Option<Token>,
    /// A PEM file of root certificates to trust in place of those that come with qerl.
    pub certificates: Option<PathBuf>,
    /// Holds `models--owner--name` and `datasets--owner--name`.
    pub cache: PathBuf,
    /// Never touch the network.
    pub offline: bool,
    /// Without a byte for so long, a connection counts as stalled.
    pub stall: Duration,
    /// Failures of one request without progress in between before it is given up.
    pub retries: u32,
    /// The first pause after a failure; doubled each time, at most 30 s.
    pub backoff: Duration,
    /// Files fetched at once.
    pub parallel: usize,
    /// A description with so many files may be cut short: the tree is then listed page by page.
    pub listing_limit: usize,
}

impl HubConfig {
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: endpoint.into(),
            token: None,
            certificates: None,
            cache: cache.into(),
            offline: false,
            stall: Duration::from_secs(10),
            retries: 5,
            backoff: Duration::from_millis(500),
            parallel: 4,
            // From here on huggingface_hub lists page by page as well.
            listing_limit: 50_000,
        }
    }

    /// # Errors
    /// When a variable is malformed, or neither a cache nor a home folder is named.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(&variable)
    }

    /// As [`HubConfig::from_env`] with another source of variables.
    pub(super) fn from_vars(var: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let cache = cache_from_vars(var)?;
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let mut config = Self::new(endpoint.trim().trim_end_matches('/'), cache);
        config.offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().any(|name| {
            var(name).is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
        });
        if let Some(text) = var("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds: u64 = text.trim().parse().ok().filter(|s| (1..=3600).contains(s)).ok_or_else(|| {
                Error::usage(format!("HF_HUB_DOWNLOAD_TIMEOUT is `{text}`")).hint("give whole seconds from 1 to 3600")
            })?;
            config.stall = Duration::from_secs(seconds);
        }
        config.certificates = var("SSL_CERT_FILE").or_else(|| var("REQUESTS_CA_BUNDLE")).map(|path| expand(&path, var));
        config.token = match var("HF_TOKEN").or_else(|| var("HUGGING_FACE_HUB_TOKEN")) {
            Some(text) => Some(Token::new(&text)?),
            None => {
                let file = match var("HF_TOKEN_PATH") {
                    Some(path) => Some(expand(&path, var)),
                    None => home(var).map(|home| home.join("token")),
                };
                match file.map(|path| (std::fs::read_to_string(&path), path)) {
                    Some((Ok(text), path)) if !text.trim().is_empty() => {
                        Some(Token::new(&text).map_err(|e| e.within(path.display()))?)
                    }
                    _ => None,
                }
            }
        };
        Ok(config)
    }
}

/// The folder of the hub's cache that all tools share: `HF_HUB_CACHE`, else `HF_HOME/hub`, else
/// `$XDG_CACHE_HOME/huggingface/hub`, else `~/.cache/huggingface/hub`.
///
/// # Errors
/// When none of these is set.
pub fn cache_folder() -> Result<PathBuf> {
    cache_from_vars(&variable)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `HF_HOME` or what stands for it.
fn home(var: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    match (var("HF_HOME"), var("XDG_CACHE_HOME"), var("HOME")) {
        (Some(home), _, _) => Some(expand(&home, var)),
        (None, Some(cache), _) => Some(expand(&cache, var).join("huggingface")),
        (None, None, Some(user)) => Some(Path::new(&user).join(".cache/huggingface")),
        (None, None, None) => None,
    }
}

fn cache_from_vars(var: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    let folder = match var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE")) {
        Some(cache) => Some(expand(&cache, var)),
        None => home(var).map(|home| home.join("hub")),
    };
    folder.ok_or_else(|| {
        Error::usage("no folder for the hub's cache: none of HF_HUB_CACHE, HF_HOME, HOME is set")
            .hint("set HF_HOME to a folder with space for models")
    })
}

/// `~` as the shell would.
fn expand(path: &str, var: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    match (path.strip_prefix("~/"), var("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> HubConfig {
        HubConfig::from_vars(&|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned())).unwrap()
    }

    #[test]
    fn folders_follow_the_tools_order() {
        assert_eq!(config(&[("HOME", "/u")]).cache, Path::new("/u/.cache/huggingface/hub"));
        assert_eq!(config(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
        assert_eq!(
            config(&[("HOME", "/u"), ("HF_HOME", "~/h"), ("XDG_CACHE_HOME", "/x")]).cache,
            Path::new("/u/h/hub")
        );
        assert_eq!(config(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]).cache, Path::new("/c"));
        assert_eq!(config(&[("HOME", "/u")]).endpoint, "https://huggingface.co");
        assert_eq!(config(&[("HOME", "/u"), ("HF_ENDPOINT", "http://m/")]).endpoint, "http://m");
        assert!(config(&[("HOME", "/u"), ("HF_HUB_OFFLINE", "1")]).offline);
        assert!(!config(&[("HOME", "/u"), ("HF_HUB_OFFLINE", "0")]).offline);
    }

    #[test]
    fn tokens_come_from_the_variable_or_the_file_and_stay_hidden() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let home = dir.path().to_str().unwrap();
        let from_file = config(&[("HF_HOME", home)]);
        assert_eq!(from_file.token, Some(Token("hf_file".into())));
        assert_eq!(config(&[("HF_HOME", home), ("HF_TOKEN", "hf_env")]).token, Some(Token("hf_env".into())));
        assert!(!format!("{from_file:?}").contains("hf_file"));
        assert!(Token::new("hf_a\r\nX-Evil: 1").is_err());
    }
}
