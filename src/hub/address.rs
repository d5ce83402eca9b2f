//! Addresses as servers write them into headers.

use ureq::http::Uri;

use crate::error::Kind;
use crate::{Error, Result};

/// Scheme, host and port: who gets the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin(pub String, pub String, pub u16);

pub(super) fn origin(uri: &Uri) -> Option<Origin> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let standard = match scheme.as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
    Some(Origin(scheme, host, uri.port_u16().unwrap_or(standard)))
}

/// RFC 3986, section 5, as far as servers use it in `Location` and `Link`.
pub(super) fn resolve(base: &str, target: &str) -> Result<String> {
    let bad =
        || Error::new(Kind::Network, "the server redirects to something that is no address").hint("check HF_ENDPOINT");
    if target.contains("://") && !target.starts_with(['/', '?']) {
        return Ok(target.to_owned());
    }
    let (scheme, rest) = base.split_once("://").ok_or_else(bad)?;
    if target.starts_with("//") {
        return Ok(format!("{scheme}:{target}"));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    Ok(match target.chars().next() {
        Some('/') => format!("{scheme}://{authority}{target}"),
        Some('?') => format!("{scheme}://{authority}{path}{target}"),
        _ => format!("{scheme}://{authority}{}/{target}", path.rsplit_once('/').map_or("", |(dir, _)| dir)),
    })
}

/// `<address>; rel="next"` in a `Link` header.
pub(super) fn next_page(header: &str) -> Option<String> {
    header.split(',').find_map(|link| {
        let (address, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let next = parameters.split(';').any(|p| matches!(p.trim(), "rel=\"next\"" | "rel=next"));
        next.then(|| address.to_owned())
    })
}

/// `bytes 5-9/10` -> first byte and size of the whole.
pub(super) fn content_range(header: &str) -> Option<(u64, Option<u64>)> {
    let (range, size) = header.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, size.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_resolve_against_the_request() {
        for (target, want) in [
            ("https://cdn.x/y?z", "https://cdn.x/y?z"),
            ("//cdn.x/y", "http://cdn.x/y"),
            ("/b?c=http://evil", "http://h:1/b?c=http://evil"),
            ("b", "http://h:1/p/b"),
            ("?c", "http://h:1/p/q?c"),
        ] {
            assert_eq!(resolve("http://h:1/p/q?r=/s", target).unwrap(), want, "{target}");
        }
        assert_eq!(resolve("http://h:1", "b").unwrap(), "http://h:1/b");
    }

    #[test]
    fn headers_are_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(content_range("items 1-2/3"), None);
        assert_eq!(
            next_page(r#"<http://a/p?c=1>; rel="prev", <http://a/p?c=2>; rel="next""#).unwrap(),
            "http://a/p?c=2"
        );
        assert_eq!(next_page(r#"<http://a/p?c=1>; rel="prev""#), None);
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |text: &str| origin(&text.parse().unwrap());
        assert_eq!(of("https://Hub.X/a"), of("https://hub.x:443/b"));
        for other in ["http://hub.x/a", "https://hub.x:444/a", "https://hub.x.evil/a", "https://a.hub.x/a"] {
            assert_ne!(of("https://hub.x/a"), of(other), "{other}");
        }
        assert_eq!(of("ftp://hub.x/a"), None);
    }
}
