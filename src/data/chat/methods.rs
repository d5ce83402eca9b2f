//! Methods of Python's values, where minijinja's own differ.

use minijinja::value::Value;
use minijinja::{Error, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// What templates may call on values.
pub fn call(state: &mut State<'_, '_>, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), method, arguments) {
        (Some(text), "title", []) => Ok(Value::from(title(text))),
        _ => unknown_method_callback(state, value, method, arguments),
    }
}

/// A letter behind anything but a letter is large (`"a-b"` gives `"A-B"`).
fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}
