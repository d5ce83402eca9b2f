//! `tojson` as Python's `json.dumps(x, ensure_ascii=False)` writes it: blanks behind `,` and `:`, nothing escaped for HTML.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

/// How deep values may be nested.
const MAX_DEPTH: usize = 64;

struct Style {
    ascii: bool,
    indent: Option<usize>,
    item: String,
    key: String,
    sort: bool,
}

/// The filter; takes `ensure_ascii`, `indent`, `separators` and `sort_keys`.
pub fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(bad("separators are a pair of texts")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item,
        key,
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|e| bad("this value is no JSON").with_source(e))?;
    let mut out = String::new();
    write(&mut out, &json, &style, 0)?;
    Ok(Value::from(out))
}

fn bad(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn write(out: &mut String, value: &serde_json::Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(bad("tojson: the value is nested too deeply"));
    }
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent.min(64) * depth));
        }
    };
    match value {
        serde_json::Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(&style.item);
                }
                line(out, depth + 1);
                write(out, item, style, depth + 1)?;
            }
            if !items.is_empty() {
                line(out, depth);
            }
            out.push(']');
        }
        serde_json::Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sort {
                entries.sort_by_key(|(key, _)| *key);
            }
            out.push('{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push_str(&style.item);
                }
                line(out, depth + 1);
                text(out, key, style.ascii);
                out.push_str(&style.key);
                write(out, value, style, depth + 1)?;
            }
            if !map.is_empty() {
                line(out, depth);
            }
            out.push('}');
        }
        serde_json::Value::String(s) => text(out, s, style.ascii),
        other => out.push_str(&other.to_string()),
    }
    Ok(())
}

fn text(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
