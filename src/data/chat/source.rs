//! What is changed in a template before it is parsed.

/// Replaces `{% generation %}` and `{% endgeneration %}`, which only mark what an assistant said, by tags without
/// effect that treat the white space around them alike.
pub fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            out.push_str(tag);
            return out;
        };
        let inner = &tag[2..end];
        let left = if inner.starts_with(['-', '+']) { &inner[..1] } else { "" };
        let right = if inner[left.len()..].ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
        let word = match inner[left.len()..inner.len() - right.len()].trim() {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match word {
            Some(word) => out.push_str(&format!("{{%{left} {word} {right}%}}")),
            None => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        let source = "a {%- generation -%} b {% endgeneration +%}{% if x %}{{ '%}' }}{% endif %}{% open";
        let want = "a {%- if true -%} b {% endif +%}{% if x %}{{ '%}' }}{% endif %}{% open";
        assert_eq!(without_generation_tags(source), want);
        assert_eq!(without_generation_tags("{%-%}{%+ generation%}"), "{%-%}{%+ if true %}");
    }
}
