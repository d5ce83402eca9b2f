//! What a hub's refusal means, and what the user can do about it.

use ureq::Body;
use ureq::http::Response;

use super::http::{Failure, Wanted, retry_after};
use super::names::shown;
use crate::Error;
use crate::error::Kind;

/// The answer as an error; the hub's own words come with it where it has any.
pub(super) fn of(response: Response<Body>, wanted: &Wanted<'_>, with_token: bool, endpoint: &str) -> Failure {
    let status = response.status().as_u16();
    let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
    let code = header("x-error-code").unwrap_or_default();
    let words = header("x-error-message").map(|text| format!(" (the hub says: {})", shown(text))).unwrap_or_default();
    if matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504) {
        let what = if status == 429 { "asks for fewer requests" } else { "has trouble" };
        let error = Error::new(Kind::Network, format!("the hub {what} (status {status}){words}"))
            .hint("try again later; what has arrived is kept");
        return Failure::Passing(error, retry_after(response.headers()));
    }
    let page = format!("{endpoint}/{}{}", if wanted.dataset { "datasets/" } else { "" }, wanted.repo);
    let new = |kind: Kind, what: String, hint: String| Failure::Final(Error::new(kind, what + &words).hint(hint));
    match (status, code) {
        (401 | 403, "GatedRepo") => new(
            Kind::Network,
            format!("access to {wanted} is granted on request only"),
            if with_token {
                format!("ask for access at {page} with the account of your token")
            } else {
                format!("ask for access at {page}, then set HF_TOKEN to a token of that account")
            },
        ),
        (401, _) if with_token => new(
            Kind::Network,
            format!("the hub does not let this token read {wanted}, or there is no such repository"),
            "check the name, and that the token (HF_TOKEN, or the file `token` in HF_HOME) is valid and may read it"
                .to_owned(),
        ),
        (401, _) => new(
            Kind::Missing,
            format!("{wanted} does not exist, or is private"),
            "check the name; for a private or gated repository set HF_TOKEN to a token that may read it".to_owned(),
        ),
        (403, _) => new(
            Kind::Network,
            format!("the hub forbids access to {wanted}"),
            if with_token {
                "the token lacks the right to read this repository: give it that right, or use another".to_owned()
            } else {
                "set HF_TOKEN to a token that may read this repository".to_owned()
            },
        ),
        (404, "RevisionNotFound") => new(
            Kind::Missing,
            format!("{wanted} has no revision `{}`", shown(wanted.revision)),
            format!("the branches and tags are listed at {page}/tree/main"),
        ),
        (404, _) if wanted.file.is_some() => new(
            Kind::Missing,
            format!("{wanted} is not there at revision `{}`", shown(wanted.revision)),
            "the revision may have been removed: `qerl lock FILE --update` pins what is there now".to_owned(),
        ),
        (404, _) => new(
            Kind::Missing,
            format!("{wanted} does not exist at revision `{}`", shown(wanted.revision)),
            format!(
                "check owner, name and revision, and whether it is a {}",
                if wanted.dataset { "model (`dataset: false`)" } else { "data set (`dataset: true`)" }
            ),
        ),
        _ => new(
            Kind::Network,
            format!("the hub answered with status {status} when asked for {wanted}"),
            "check HF_ENDPOINT: a proxy or login page may answer in the hub's place".to_owned(),
        ),
    }
}
