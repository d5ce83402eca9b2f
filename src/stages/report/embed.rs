//! What a report needs to be made again, inside its HTML: one JSON element that no browser shows.

use serde_json::Value;

const OPEN: &str = "<script type=\"application/json\" id=\"qerl-reproduce\">";
const CLOSE: &str = "</script>";

/// `html` with `value` before the end of its body.
pub(super) fn insert(html: &str, value: &Value) -> String {
    // Inside a script element only `<` could end it or start a comment; JSON may spell it otherwise.
    let text = value.to_string().replace('<', "\\u003c");
    let at = html.rfind("</body>").unwrap_or(html.len());
    format!("{}{OPEN}{text}{CLOSE}\n{}", &html[..at], &html[at..])
}

/// What [`insert`] put there, if anything.
pub fn extract(html: &str) -> Option<Value> {
    let rest = &html[html.rfind(OPEN)? + OPEN.len()..];
    serde_json::from_str(rest.split(CLOSE).next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let value = serde_json::json!({"files": {"p.yaml": "# </script></body> <!-- é"}, "n": 0.1});
        let html = insert("<html><body>text</body></html>", &value);
        assert!(html.starts_with("<html><body>text<script") && html.ends_with("</script>\n</body></html>"), "{html}");
        assert_eq!(html.matches("</script>").count(), 1);
        assert_eq!(extract(&html), Some(value));
        assert_eq!(extract("<html></html>"), None);
        assert_eq!(extract(&format!("{OPEN}{{")), None);
    }
}
