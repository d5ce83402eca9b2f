//! `${vars.X}`, `${sweep.X}`, `${secrets.NAME}` inside a string.

/// A piece of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// `written` is the whole `${...}`; `path` what is inside, split at dots.
    Reference {
        written: String,
        path: Vec<String>,
    },
}

/// Splits a string. `$${` stands for `${` itself.
///
/// # Errors
/// A `${` without `}`: its text.
pub fn split(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            plain.push_str(&rest[..at - 1]);
            plain.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        plain.push_str(&rest[..at]);
        let Some(length) = rest[at..].find('}') else { return Err(rest[at..].to_owned()) };
        let written = &rest[at..=at + length];
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        let path = written[2..written.len() - 1].split('.').map(|part| part.trim().to_owned()).collect();
        pieces.push(Piece::Reference { written: written.to_owned(), path });
        rest = &rest[at + length + 1..];
    }
    plain.push_str(rest);
    if !plain.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_split_at_references() {
        let reference = |written: &str, path: &[&str]| Piece::Reference {
            written: written.to_owned(),
            path: path.iter().map(|p| (*p).to_owned()).collect(),
        };
        let text = |t: &str| Piece::Text(t.to_owned());
        assert_eq!(split("plain").unwrap(), [text("plain")]);
        assert_eq!(split("").unwrap(), [text("")]);
        assert_eq!(split("${vars.a}").unwrap(), [reference("${vars.a}", &["vars", "a"])]);
        assert_eq!(split("x${ vars.a }y").unwrap(), [text("x"), reference("${ vars.a }", &["vars", "a"]), text("y")]);
        assert_eq!(split("$${vars.a} $5").unwrap(), [text("${vars.a} $5")]);
        assert_eq!(split("a ${vars.b").unwrap_err(), "${vars.b");
    }
}
