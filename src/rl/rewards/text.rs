//! Rewards that read nothing but the completion's text and the gold answer. The `qerl_*` forms return what the
//! functions of QeRL's repository return; the named rewards of a pipeline scale them to 0..1.

pub use crate::data::text::TAGS;

/// Text inside the last answer tag (the whole text without one), trimmed.
pub fn extract_answer(text: &str) -> &str {
    let after = text.rsplit("<answer>").next().unwrap_or(text);
    after.split("</answer>").next().unwrap_or(after).trim()
}

/// 2.0 where the text inside the last answer tag equals the gold answer.
pub fn qerl_correctness(text: &str, gold: &str) -> f64 {
    if extract_answer(text) == gold { 2.0 } else { 0.0 }
}

/// 0.2 for an answer of digits only.
pub fn qerl_int(text: &str) -> f64 {
    let answer = extract_answer(text);
    if !answer.is_empty() && answer.chars().all(|c| c.is_ascii_digit()) { 0.2 } else { 0.0 }
}

/// 0.2 for six lines: tag, one line, tag, tag, one line, tag.
pub fn qerl_strict_format(text: &str) -> f64 {
    let lines: Vec<&str> = text.strip_suffix('\n').unwrap_or(text).split('\n').collect();
    let fits = matches!(lines[..], ["<think>", _, "</think>", "<answer>", _, "</answer>"]);
    if fits { 0.2 } else { 0.0 }
}

/// 0.2 for a text that starts with a think block, white space, and an answer block.
pub fn qerl_soft_format(text: &str) -> f64 {
    let fits = || {
        let mut rest = text.strip_prefix("<think>")?;
        // The first closing tag that an answer block follows; the block's own end may be anywhere behind it.
        while let Some(at) = rest.find("</think>") {
            rest = &rest[at + "</think>".len()..];
            if let Some(inside) = rest.trim_start().strip_prefix("<answer>") {
                return inside.contains("</answer>").then_some(());
            }
        }
        None
    };
    if fits().is_some() { 0.2 } else { 0.0 }
}

/// 0.2 for a think block anywhere.
pub fn qerl_think_format(text: &str) -> f64 {
    let closed = text.find("<think>").is_some_and(|at| text[at..].contains("</think>"));
    if closed { 0.2 } else { 0.0 }
}

/// 0.125 for each tag on its own line, less 0.001 for each character behind the last one.
pub fn xml_count(text: &str) -> f64 {
    let count = |tag: &str| text.matches(tag).count();
    let tail = |tag: &str| text.rsplit(tag).next().unwrap_or(text).chars().count() as f64;
    let mut score = 0.0;
    if count("<think>\n") == 1 {
        score += 0.125;
    }
    if count("\n</think>\n") == 1 {
        score += 0.125;
    }
    if count("\n<answer>\n") == 1 {
        score += 0.125;
        score -= tail("\n</answer>\n") * 0.001;
    }
    if count("\n</answer>") == 1 {
        score += 0.125;
        score -= (tail("\n</answer>") - 1.0) * 0.001;
    }
    score
}

/// 0.25 for each of the four tags that is used exactly once.
pub fn tag_count(text: &str) -> f64 {
    TAGS.iter().filter(|tag| text.matches(**tag).count() == 1).count() as f64 * 0.25
}

/// 1 - distinct word n-grams / word n-grams, in 0..1; 0 for texts shorter than n words.
pub fn repetition(text: &str, n: usize) -> f64 {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    if n == 0 || words.len() < n {
        return 0.0;
    }
    let total = words.len() - n + 1;
    let distinct: std::collections::HashSet<&[String]> = words.windows(n).collect();
    1.0 - distinct.len() as f64 / total as f64
}

/// Kimi k1.5's length reward within a group: 0.5 - (len - min) / (max - min), at most 0 for wrong answers.
pub fn length_rewards(lengths: &[usize], correct: &[bool]) -> Vec<f64> {
    let (Some(&min), Some(&max)) = (lengths.iter().min(), lengths.iter().max()) else { return Vec::new() };
    lengths
        .iter()
        .zip(correct)
        .map(|(&length, &correct)| {
            if max == min {
                return 0.0;
            }
            let value = 0.5 - (length - min) as f64 / (max - min) as f64;
            if correct { value } else { value.min(0.0) }
        })
        .collect()
}

fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '-'))).flat_map(|run| {
        // A minus may only stand in front.
        let mut starts: Vec<usize> = run.match_indices('-').map(|(i, _)| i).collect();
        starts.insert(0, 0);
        starts.push(run.len());
        starts.windows(2).map(|w| &run[w[0]..w[1]]).collect::<Vec<_>>()
    })
}

/// The number behind the last `#### `, without thousands separators.
pub fn gsm8k_strict(text: &str) -> Option<String> {
    text.match_indices("#### ")
        .filter_map(|(at, mark)| {
            let rest = &text[at + mark.len()..];
            let sign = usize::from(rest.starts_with('-'));
            let digits =
                rest[sign..].find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).unwrap_or(rest.len() - sign);
            (digits > 0).then(|| rest[..sign + digits].replace([',', '$'], ""))
        })
        .last()
}

/// The last thing that looks like a number.
pub fn gsm8k_flexible(text: &str) -> Option<&str> {
    numbers(text).filter(|n| !matches!(*n, "" | "." | "-")).last()
}

/// 1 where the number behind the last `####` is the gold answer.
pub fn gsm8k_score(text: &str, gold: &str) -> f64 {
    if gsm8k_strict(text).is_some_and(|answer| answer == gold) { 1.0 } else { 0.0 }
}
