//! Text from outside (labels, completions, reasons) made harmless for HTML, SVG and Markdown.

use serde_json::Value;

/// Controls and direction overrides, which could hide or reorder what a reader sees.
fn is_hostile(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces hostile characters in every string of `value`.
pub fn clean(value: Value) -> Value {
    match value {
        Value::String(text) if text.contains(is_hostile) => Value::String(text.replace(is_hostile, "\u{fffd}")),
        Value::Array(items) => Value::Array(items.into_iter().map(clean).collect()),
        Value::Object(map) => Value::Object(map.into_iter().map(|(k, v)| (k, clean(v))).collect()),
        other => other,
    }
}

/// Text made safe for SVG and HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_hostile(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// One line of Markdown that shows `text` as it is, also in a table's cell.
pub fn inline(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\n' | '\r' | '\t' => out.push(' '),
            // Within a word GitHub's Markdown leaves it alone, and names are full of them.
            '_' if before.is_alphanumeric() && chars.peek().is_some_and(|next| next.is_alphanumeric()) => out.push('_'),
            // A bare address would become a link.
            ':' if chars.peek() == Some(&'/') => out.push_str("\\:"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '|' | '~' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
        before = c;
    }
    out
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// A code span of one line, whatever backticks are in it.
pub fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    let fence = "`".repeat(longest_run(&text) + 1);
    let pad = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// A fenced block that nothing in `text` can close.
pub fn fenced(text: &str) -> String {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    format!("{fence}text\n{}\n{fence}", text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_cannot_be_injected() {
        assert_eq!(inline("a|b\n# <img> [x](http://y)"), "a\\|b \\# &lt;img&gt; \\[x\\](http\\://y)");
        assert_eq!(inline("bf16_lora *_x_*"), "bf16_lora \\*\\_x\\_\\*");
        assert_eq!(code("a`b``"), "``` a`b`` ```");
        assert_eq!(fenced("x\n```\n<b>\n"), "````text\nx\n```\n<b>\n````");
    }

    #[test]
    fn controls_and_direction_overrides_are_replaced_everywhere() {
        let value = serde_json::json!({"a": ["x\u{202e}y\u{7}", 1], "b": "fine\n"});
        assert_eq!(clean(value), serde_json::json!({"a": ["x\u{fffd}y\u{fffd}", 1], "b": "fine\n"}));
        assert_eq!(escape("<a b='c'>\u{0}"), "&lt;a b=&#39;c&#39;&gt;\u{fffd}");
    }
}
