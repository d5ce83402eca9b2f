//! The grader: extraction of an answer from a completion, exact values, equivalence by type.
//!
//! Every step has a budget of sizes (length, nesting, digits, terms) instead of a timer, so a verdict is the same
//! on every machine; see docs/grading.md.

mod calls;
mod clean;
mod compare;
mod exact;
mod expr;
mod extract;
mod lex;
mod literal;
mod number;
mod poly;
mod power;
mod probe;
mod quantity;
mod region;
mod spot;
mod units;
mod value;
mod words;

use compare::Comparison;
use value::Value;

/// What the grader says of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Correct,
    Wrong,
    /// No answer could be extracted.
    NoAnswer,
    /// The gold itself is empty or cannot be read; never rewarded.
    GoldUnparseable,
}

/// A verdict with what it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grade {
    pub verdict: Verdict,
    /// The extracted answer, as text.
    pub extracted: Option<String>,
}

/// How a verdict came about, for `qerl grade --explain`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Trace {
    pub gold: String,
    /// Type of the gold.
    pub gold_type: &'static str,
    /// The rule that found the answer.
    pub rule: Option<&'static str>,
    pub extracted: Option<String>,
    pub answer_type: Option<&'static str>,
    /// What decided between equal and different.
    pub evidence: &'static str,
}

/// A gold answer, read once for many completions.
#[derive(Clone, Debug)]
pub struct Gold {
    text: String,
    plain: String,
    value: Option<Value>,
    choice: Option<char>,
}

/// Golds longer than this (in bytes) are compared as text only.
const MAX_PLAIN: usize = 64_000;

impl Gold {
    /// Reads a gold; an empty one is kept and grades everything as [`Verdict::GoldUnparseable`].
    pub fn parse(text: &str) -> Self {
        let plain = plain(text);
        let empty = plain.is_empty();
        let said = extract::sentence(text);
        let value = (!empty).then(|| value::read(said.as_deref().unwrap_or(text)));
        let empty_text =
            matches!(&value, Some(Value::Text(t)) if t.is_empty()) && plain.chars().all(char::is_whitespace);
        let choice = choice(text).map(|(c, _)| c);
        Self { text: text.to_owned(), plain, value: value.filter(|_| !empty_text), choice }
    }

    /// Extracts the answer of `completion` and compares.
    pub fn grade(&self, completion: &str) -> Grade {
        self.explain(completion).0
    }

    /// [`Self::grade`] with its reasons.
    pub fn explain(&self, completion: &str) -> (Grade, Trace) {
        let mut trace = Trace {
            gold: self.text.clone(),
            gold_type: self.value.as_ref().map_or("unreadable", Value::kind),
            rule: None,
            extracted: None,
            answer_type: None,
            evidence: "",
        };
        let found =
            extract::extract(completion).or_else(|| self.broken(completion)).or_else(|| self.verbatim(completion));
        trace.rule = found.as_ref().map(|f| f.rule);
        trace.extracted = found.map(|f| f.text);
        let verdict = match (&self.value, &trace.extracted) {
            (None, _) => {
                trace.evidence = "the gold is empty";
                Verdict::GoldUnparseable
            }
            (_, None) => {
                trace.evidence = "no answer was found";
                Verdict::NoAnswer
            }
            (Some(_), Some(answer)) => {
                let (mut equal, mut kind, mut evidence) = self.compare(answer);
                if !equal && let Some(whole) = self.verbatim(completion) {
                    (equal, evidence) = (true, "same text");
                    (trace.rule, trace.extracted) = (Some(whole.rule), Some(whole.text));
                } else if !equal
                    && matches!(self.value, Some(Value::List(_) | Value::Set(_)))
                    && let Some(all) = extract::neighbours(completion)
                {
                    let (same, all_kind, all_evidence) = self.compare(&all.text);
                    if same {
                        (equal, kind, evidence) = (true, all_kind, all_evidence);
                        (trace.rule, trace.extracted) = (Some(all.rule), Some(all.text));
                    }
                }
                trace.answer_type = Some(kind);
                trace.evidence = evidence;
                if equal { Verdict::Correct } else { Verdict::Wrong }
            }
        };
        (Grade { verdict, extracted: trace.extracted.clone() }, trace)
    }

    /// A gold that lacks closing braces itself leaves the box around it open; only the very same text passes.
    fn broken(&self, completion: &str) -> Option<extract::Extracted> {
        if clean::balance(&self.text).len() <= self.text.len() {
            return None;
        }
        let (_, inner) = completion.rsplit_once("\\boxed{")?;
        (inner.len() <= MAX_PLAIN && plain(inner) == self.plain)
            .then(|| extract::Extracted { text: inner.to_owned(), rule: "an open \\boxed, as open as the gold" })
    }

    /// Everything behind the last `####` or `Answer:` is the very text of the gold: `3!`, several lines, a sentence with a
    /// number in it, which the rules for prose would cut.
    fn verbatim(&self, completion: &str) -> Option<extract::Extracted> {
        let text = completion.rsplit_once("</think>").map_or(completion, |(_, rest)| rest);
        for (marker, rule) in [("####", "all behind the last ####"), ("Answer:", "all behind the last Answer:")] {
            let Some((before, rest)) = text.rsplit_once(marker) else { continue };
            let earlier = ["</answer>", "\\boxed", "\\fbox"].iter().any(|m| before.contains(m));
            let rest = rest.trim();
            if !earlier && !rest.is_empty() && rest.len() <= MAX_PLAIN && plain(rest) == self.plain {
                return Some(extract::Extracted { text: rest.to_owned(), rule });
            }
        }
        None
    }

    /// Is `answer` (already extracted) equivalent to this gold?
    pub fn equivalent(&self, answer: &str) -> bool {
        self.compare(answer).0
    }

    fn compare(&self, answer: &str) -> (bool, &'static str, &'static str) {
        let Some(gold) = &self.value else { return (false, "unreadable", "the gold is empty") };
        let alike = || !self.plain.is_empty() && answer.len() <= MAX_PLAIN && plain(answer) == self.plain;
        if answer == self.text || alike() {
            return (true, gold.kind(), "same text");
        }
        if let Some(wanted) = self.choice
            && let Some((given, _)) = choice(answer)
        {
            return (wanted == given, "choice letter", "choice letters");
        }
        if let (Value::Text(words), true) = (gold, answer.len() <= 400)
            && clean::text_key(answer) == *words
        {
            return (true, "text", "same words");
        }
        let value = value::read(answer);
        let mut comparison = Comparison::default();
        let equal = comparison.equal(gold, &value);
        (equal, value.kind(), comparison.evidence)
    }
}

/// Text without markup around it and without blanks, but for those between digits: `1 3` is not 13.
fn plain(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_PLAIN)];
    let unified = clean::unify(text);
    let balanced = clean::balance(&unified);
    let mut out = String::with_capacity(balanced.len());
    let mut gap = false;
    for c in clean::unwrap(&balanced).chars() {
        if c.is_whitespace() {
            gap = true;
            continue;
        }
        if gap && c.is_ascii_digit() && out.ends_with(|c: char| c.is_ascii_digit()) {
            out.push(' ');
        }
        gap = false;
        out.push(c);
    }
    bare_scripts(out)
}

/// `^{n}` as `^n`: braces around one character change nothing.
fn bare_scripts(text: String) -> String {
    let chars: Vec<char> = text.chars().collect();
    let braced = |i: usize| {
        matches!(chars[i..], ['^' | '_', '{', c, '}', ..] if c.is_alphanumeric()).then(|| [chars[i], chars[i + 2]])
    };
    if !(0..chars.len()).any(|i| braced(i).is_some()) {
        return text;
    }
    let (mut out, mut i) = (String::with_capacity(text.len()), 0);
    while i < chars.len() {
        match braced(i) {
            Some(both) => {
                out.extend(both);
                i += 4;
            }
            None => {
                out.push(chars[i]);
                i += 1;
            }
        }
    }
    out
}

/// `E`, `(E)`, `\textbf{(E)}`, `E. 42`: the letter, and whether it is all there is.
fn choice(text: &str) -> Option<(char, bool)> {
    if text.len() > 200 {
        return None;
    }
    let mut key = clean::text_key(text);
    for lead in ["option ", "choice "] {
        if let Some(rest) = key.strip_prefix(lead) {
            key = rest.to_owned();
        }
    }
    let body = key.trim_start_matches(['(', ' ']);
    let mut chars = body.chars();
    let letter = chars.next().filter(|c| matches!(c, 'a'..='j'))?.to_ascii_uppercase();
    let upper = text.contains(letter);
    let rest = chars.as_str();
    if another_choice(rest) {
        return None;
    }
    let whole = rest.trim_matches([')', ' ', '.', ':']).is_empty();
    if whole {
        return (upper || text.contains('(')).then_some((letter, true));
    }
    (upper && (rest.trim_start().starts_with(')') || rest.starts_with(". ") || rest.starts_with(": ")))
        .then_some((letter, false))
}

/// `(C) or (D)`, `C, D`, `(A) 3 (B) 4`: is there a second letter in brackets, or one behind a joining word?
fn another_choice(rest: &str) -> bool {
    let letter = |c: Option<&str>| c.is_some_and(|c| matches!(c.as_bytes(), [b'a'..=b'j']));
    let bracketed = rest.as_bytes().windows(3).any(|w| matches!(w, [b'(', b'a'..=b'j', b')']));
    let words: Vec<&str> = rest.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let joined = words.windows(2).any(|w| matches!(w[0], "or" | "and") && letter(w.get(1).copied()));
    let listed = rest.contains(',') && letter(words.first().copied()) && words.len() == 1;
    bracketed || joined || listed
}

/// Grades one completion against one gold; parse the gold once with [`Gold`] where there are several.
pub fn grade(gold: &str, completion: &str) -> Grade {
    Gold::parse(gold).grade(completion)
}

/// Are two answers (not completions) equivalent?
pub fn equivalent(gold: &str, answer: &str) -> bool {
    Gold::parse(gold).equivalent(answer)
}

/// The answer that [`Gold::grade`] would compare.
pub fn extract(completion: &str) -> Option<String> {
    extract::extract(completion).map(|e| e.text)
}

/// A key that answers share when exact arithmetic shows them equal; for majority votes.
pub fn answer_class(text: &str) -> String {
    if let Some((letter, true)) = choice(text) {
        return letter.to_string();
    }
    compare::key(&value::read(text))
}
