//! DAPO's score: the text behind the last `Answer:`, normalised as in appendix D of Lewkowycz et al. 2022, compared
//! as text. For graded equivalence use the reward `accuracy`.

const SUBSTITUTIONS: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

const REMOVED: [&str; 40] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "ft",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
];

/// Characters of the completion's end that are searched (verl).
const TAIL: usize = 300;

/// What stands for an answer that was not found.
pub const INVALID: &str = "[INVALID]";

/// The normalised text behind the last `Answer:` in the last 300 characters.
pub fn prediction(text: &str) -> String {
    let start = text.char_indices().rev().nth(TAIL - 1).map_or(0, |(i, _)| i);
    let tail = &text[start..];
    // Only ASCII letters change, so offsets stay valid.
    let lower = tail.to_ascii_lowercase();
    let mut found = None;
    let mut from = 0;
    while let Some(at) = lower[from..].find("answer") {
        let after = from + at + "answer".len();
        from = after;
        let rest = tail[after..].trim_start();
        if let Some(value) = rest.strip_prefix(':') {
            let value = value.trim_start();
            let line = value.split('\n').next().unwrap_or(value);
            if !line.is_empty() {
                found = Some(line);
                from = tail.len() - value.len() + line.len();
            }
        }
    }
    found.map_or_else(|| INVALID.to_owned(), normalize)
}

/// 1 where the prediction equals the normalised gold answer.
pub fn score(text: &str, gold: &str) -> f64 {
    let prediction = prediction(text);
    if prediction != INVALID && prediction == normalize(gold) { 1.0 } else { 0.0 }
}

/// Lewkowycz et al. 2022, appendix D.
pub fn normalize(answer: &str) -> String {
    let mut text = answer.rsplit('=').next().unwrap_or(answer).to_owned();
    for (before, after) in SUBSTITUTIONS {
        text = text.replace(before, after);
    }
    for removed in REMOVED {
        text = text.replace(removed, "");
    }
    text = text.replace('"', "").replace("\\dots", "");
    text = inside_dollars(&text);
    for command in ["\\text{", "\\textbf{", "\\overline{"] {
        text = unwrap(&text, command, false);
    }
    text = unwrap(&text, "\\boxed{", true);
    text = brace_arguments(&text, "frac", 2);
    text = brace_arguments(&text, "sqrt", 1);
    text = text.replace('$', "");
    let digits = text.replace(',', "");
    if !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()) { digits } else { text.trim().to_owned() }
}

/// `... $x$ ...` -> `$x$`, line by line.
fn inside_dollars(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let mut parts = line.splitn(3, '$');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(_), Some(inside), Some(_)) => format!("${inside}$"),
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `\command{x}` -> `x`; greedy reaches to the last brace, else to the first.
fn unwrap(text: &str, command: &str, greedy: bool) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(command) {
        let inside = &rest[at + command.len()..];
        let end = if greedy { inside.rfind('}') } else { inside.find('}') };
        let Some(end) = end else { break };
        out.push_str(&rest[..at]);
        out.push_str(&inside[..end]);
        rest = &inside[end + 1..];
    }
    out + rest
}

/// `\frac12` -> `\frac{1}{2}`, `\sqrt2` -> `\sqrt{2}`.
fn brace_arguments(text: &str, command: &str, arguments: usize) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(command) {
        let after = &rest[at + command.len()..];
        out.push_str(&rest[..at + command.len()]);
        let found: Vec<char> = after.chars().take(arguments).collect();
        rest = after;
        if found.len() == arguments && found[0] != '{' && !found.contains(&'\n') {
            found.iter().for_each(|c| out.extend(['{', *c, '}']));
            rest = &after[found.iter().map(|c| c.len_utf8()).sum()..];
        }
    }
    out + rest
}
