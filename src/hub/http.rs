//! Requests to the endpoint: where the token may go, redirects, time limits, and when another try can help.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ureq::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_RANGE, LINK, LOCATION, RANGE,
    RETRY_AFTER,
};
use ureq::http::{Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::address::{Origin, content_range, next_page, origin, resolve};
use super::config::{HubConfig, Token};
use super::names::shown;
use super::pace::Pace;
use super::refusal;
use crate::control::Cancel;
use crate::error::Kind;
use crate::{Error, Result};

/// As many as browsers follow is far more than any hub needs.
const MAX_REDIRECTS: usize = 10;
/// A server's `Retry-After` is obeyed up to here.
const MAX_PAUSE: Duration = Duration::from_secs(120);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// What a request is for; error messages name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub repo: &'a str,
    pub dataset: bool,
    pub revision: &'a str,
    pub file: Option<&'a str>,
}

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", if self.dataset { "data set" } else { "model" }, shown(self.repo))?;
        match self.file {
            Some(file) => write!(f, ", file `{}`", shown(file)),
            None => Ok(()),
        }
    }
}

/// Why a request brought nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another try can help, after the pause that the server asks for.
    Passing(Error, Option<Duration>),
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// A client for one endpoint.
pub(super) struct Http {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
    stall: Duration,
    retries: u32,
    backoff: Duration,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("endpoint", &self.endpoint).field("token", &self.token).finish_non_exhaustive()
    }
}

/// The beginning of an answer to a request for a file.
pub(super) struct Answer {
    /// First byte of the file that the body holds: 0 where the server ignored the range.
    pub start: u64,
    /// Of the whole file, where the server says it.
    pub size: Option<u64>,
    /// A strong validator, for `If-Range`.
    pub etag: Option<String>,
    pub body: Box<dyn Read + Send>,
}

impl Http {
    pub(super) fn new(config: &HubConfig) -> Result<Self> {
        let bad = |why: &str| {
            // Never the whole value: it may hold a password.
            Error::usage(format!("the hub's endpoint {why}"))
                .hint("HF_ENDPOINT is an address such as https://huggingface.co")
        };
        let uri: Uri = config.endpoint.parse().map_err(|_| bad("is not an address"))?;
        let origin = origin(&uri).ok_or_else(|| bad("is not an http or https address"))?;
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            return Err(bad("holds a user name; tokens go into HF_TOKEN"));
        }
        if uri.query().is_some() {
            return Err(bad("holds a query"));
        }
        let mut builder = Agent::config_builder()
            .user_agent(concat!("qerl/", env!("CARGO_PKG_VERSION")))
            // Sizes and ranges are those of the file itself.
            .accept_encoding("identity")
            // Redirects are followed here, where the token is held back.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(config.stall.max(Duration::from_secs(1))))
            .timeout_per_write(Some(config.stall));
        if let Some(path) = &config.certificates {
            builder = builder.tls_config(TlsConfig::builder().root_certs(certificates(path)?).build());
        }
        Ok(Self {
            agent: builder.build().new_agent(),
            endpoint: config.endpoint.trim_end_matches('/').to_owned(),
            origin,
            token: config.token.clone(),
            stall: config.stall,
            retries: config.retries,
            backoff: config.backoff,
        })
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn retries(&self) -> u32 {
        self.retries
    }

    pub(super) fn stall(&self) -> Duration {
        self.stall
    }

    /// A whole answer of at most `limit` bytes and the address of the next page, where there is one.
    pub(super) fn get(
        &self,
        url: &str,
        wanted: &Wanted<'_>,
        limit: u64,
        cancel: &Cancel,
    ) -> Result<(Vec<u8>, Option<String>)> {
        let mut failures = 0;
        loop {
            match self.get_once(url, wanted, limit, cancel) {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error, pause)) => {
                    failures += 1;
                    if failures > self.retries {
                        return Err(error.within(wanted));
                    }
                    self.pause(failures, pause, cancel)?;
                }
            }
        }
    }

    fn get_once(
        &self,
        url: &str,
        wanted: &Wanted<'_>,
        limit: u64,
        cancel: &Cancel,
    ) -> Result<(Vec<u8>, Option<String>), Failure> {
        // Listing a large repository takes the hub a while before the first byte.
        let response = self.send(url, &[], self.stall.saturating_mul(3), cancel)?;
        if !response.status().is_success() {
            return Err(refusal::of(response, wanted, self.token.is_some(), &self.endpoint));
        }
        let next = response.headers().get(LINK).and_then(|v| v.to_str().ok()).and_then(next_page);
        let next = next.map(|next| self.same_origin(url, &next)).transpose()?;
        let mut body = response.into_body().into_reader();
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut pace = Pace::new(self.stall);
        loop {
            cancel.check()?;
            let n = body.read(&mut buffer).map_err(|e| self.broken(e))?;
            if n == 0 {
                return Ok((bytes, next));
            }
            pace.saw(n)?;
            if bytes.len() as u64 + n as u64 > limit {
                return Err(Failure::Final(
                    Error::new(Kind::Network, format!("the answer about {wanted} is larger than {limit} bytes"))
                        .hint("check HF_ENDPOINT: this is not what a hub answers"),
                ));
            }
            bytes.extend_from_slice(&buffer[..n]);
        }
    }

    /// The next page of a listing must come from where the first came from.
    fn same_origin(&self, url: &str, next: &str) -> Result<String> {
        let next = resolve(url, next)?;
        if next.parse::<Uri>().ok().and_then(|uri| origin(&uri)).as_ref() == Some(&self.origin) {
            return Ok(next);
        }
        Err(Error::new(Kind::Network, "the hub's listing goes on at another host")
            .hint("check HF_ENDPOINT; a mirror must serve the whole listing itself"))
    }

    /// Asks for a file from byte `from` on; with `etag` only if it is still the same.
    pub(super) fn open(
        &self,
        url: &str,
        wanted: &Wanted<'_>,
        from: u64,
        etag: Option<&str>,
        cancel: &Cancel,
    ) -> Result<Answer, Failure> {
        let mut headers = Vec::new();
        if from > 0 {
            headers.push((RANGE, format!("bytes={from}-")));
            headers.extend(etag.map(|etag| (IF_RANGE, etag.to_owned())));
        }
        let response = self.send(url, &headers, self.stall, cancel)?;
        let head = response.headers();
        let length = text(head, &CONTENT_LENGTH).and_then(|t| t.trim().parse::<u64>().ok());
        let etag = text(head, &ETAG).filter(|tag| tag.starts_with('"')).map(str::to_owned);
        let (start, size) = match response.status().as_u16() {
            200 => (0, length),
            206 => match text(head, &CONTENT_RANGE).and_then(content_range) {
                Some(range) => range,
                None => return Err(passing("the server sent a part of a file and did not say which")),
            },
            // The part is longer than the server's file, or the server cannot go on: from the beginning again.
            416 => return Ok(Answer { start: 0, size: Some(0), etag: None, body: Box::new(std::io::empty()) }),
            _ => return Err(refusal::of(response, wanted, self.token.is_some(), &self.endpoint)),
        };
        Ok(Answer { start, size, etag, body: Box::new(response.into_body().into_reader()) })
    }

    /// One request with its redirects.
    fn send(
        &self,
        url: &str,
        headers: &[(HeaderName, String)],
        patience: Duration,
        cancel: &Cancel,
    ) -> Result<Response<Body>, Failure> {
        let mut url = url.to_owned();
        let mut at_home = true;
        for _ in 0..=MAX_REDIRECTS {
            cancel.check()?;
            let uri: Uri = url.parse().map_err(|_| passing("the server redirects to something that is no address"))?;
            let Some(origin) = origin(&uri) else {
                return Err(Failure::Final(
                    Error::new(Kind::Network, "the server redirects to an address that is neither http nor https")
                        .hint("check HF_ENDPOINT"),
                ));
            };
            if self.origin.0 == "https" && origin.0 != "https" {
                return Err(Failure::Final(
                    Error::new(Kind::Network, format!("the hub redirects from https to http at {}", shown(&origin.1)))
                        .hint("unencrypted sources are refused; check HF_ENDPOINT and the proxy"),
                ));
            }
            // Once another host has had a say, nobody gets the token any more, wherever it leads back to.
            at_home = at_home && origin == self.origin;
            let mut request = self.agent.get(uri);
            if let (true, Some(token)) = (at_home, &self.token) {
                request = request.header(AUTHORIZATION, token.header());
            }
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let request = request
                .config()
                .timeout_per_read(Some(patience))
                .timeout_recv_response(Some(patience.saturating_mul(2)))
                .build();
            let response = request.call().map_err(|e| self.transport(&origin, e))?;
            let status = response.status().as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let Some(target) = text(response.headers(), &LOCATION) else {
                return Err(passing("the server redirects and does not say where to"));
            };
            url = resolve(&url, target)?;
        }
        Err(Failure::Final(
            Error::new(Kind::Network, format!("more than {MAX_REDIRECTS} redirects")).hint("check HF_ENDPOINT"),
        ))
    }

    /// Waits before try `failures + 1`.
    pub(super) fn pause(&self, failures: u32, asked: Option<Duration>, cancel: &Cancel) -> Result<()> {
        let doubled = self.backoff.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_BACKOFF);
        let until = Instant::now() + asked.unwrap_or_default().min(MAX_PAUSE).max(doubled);
        loop {
            cancel.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// What the connection's failure means.
    fn transport(&self, origin: &Origin, error: ureq::Error) -> Failure {
        let host = shown(&origin.1);
        let offline = "check the network and HF_ENDPOINT; with HF_HUB_OFFLINE=1 only the cache is used";
        let new = |message: String| Error::new(Kind::Network, message);
        match error {
            ureq::Error::Timeout(_) => Failure::Passing(new(format!("{host} does not answer")).hint(offline), None),
            ureq::Error::HostNotFound => {
                Failure::Passing(new(format!("no host `{host}` is known")).hint(offline), None)
            }
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => {
                Failure::Final(untrusted(&host, error))
            }
            ureq::Error::Io(e) if is_certificate(&e) => Failure::Final(untrusted(&host, e.into())),
            ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => {
                Failure::Passing(new(format!("the connection to {host} failed")).caused_by(error).hint(offline), None)
            }
            other => Failure::Final(new(format!("cannot ask {host}")).caused_by(other).hint(offline)),
        }
    }

    /// A body that broke off or stalled.
    pub(super) fn broken(&self, error: std::io::Error) -> Failure {
        let message = match error.get_ref().and_then(|e| e.downcast_ref::<ureq::Error>()) {
            Some(ureq::Error::Timeout(_)) => format!("nothing arrived for {:.0?}", self.stall),
            _ => "the connection broke off".to_owned(),
        };
        Failure::Passing(
            Error::new(Kind::Network, message).caused_by(error).hint("what has arrived is kept: run again to go on"),
            None,
        )
    }
}

pub(super) fn passing(message: &str) -> Failure {
    Failure::Passing(Error::new(Kind::Network, message).hint("try again later, or check HF_ENDPOINT"), None)
}

/// `Retry-After` in seconds (dates are not used by hubs).
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    text(headers, &RETRY_AFTER).and_then(|t| t.trim().parse().ok()).map(Duration::from_secs)
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The roots in a PEM file, in place of those that come with qerl.
fn certificates(path: &std::path::Path) -> Result<RootCerts> {
    let pem = std::fs::read(path).map_err(|e| Error::io("read the certificates in", path, e))?;
    let mut roots = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => roots.push(certificate),
            Ok(_) => {}
            Err(e) => return Err(Error::input(format!("{} is not a PEM file", path.display())).caused_by(e)),
        }
    }
    if roots.is_empty() {
        return Err(Error::input(format!("{} holds no certificates", path.display()))
            .hint("SSL_CERT_FILE names a PEM file with the roots to trust"));
    }
    Ok(RootCerts::Specific(Arc::new(roots)))
}

fn is_certificate(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::InvalidData
}

fn untrusted(host: &str, error: ureq::Error) -> Error {
    Error::new(Kind::Network, format!("no trusted connection to {host}"))
        .caused_by(error)
        .hint("behind a proxy that re-signs traffic, set SSL_CERT_FILE to a PEM file with its root certificate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_with_a_password_is_refused_and_not_repeated() {
        for bad in ["http://u:secret@h", "ftp://h", "h", "", "http://h/?t=secret"] {
            let error = Http::new(&HubConfig::new(bad, "/c")).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
            assert!(error.hint_text().is_some());
        }
        assert!(Http::new(&HubConfig::new("http://127.0.0.1:9/mirror/", "/c")).is_ok());
    }
}
