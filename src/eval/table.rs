//! Summaries and comparisons as plain text.

use std::collections::BTreeSet;

use super::Summary;
use super::compare::SetComparison;

/// Columns as wide as their widest cell; the first one to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let blanks = " ".repeat(widths[c] - cell.chars().count());
            let gap = if c == 0 { "" } else { "  " };
            line += gap;
            line += &if c == 0 { format!("{cell}{blanks}") } else { format!("{blanks}{cell}") };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// A p-value: three digits, never a bare 0.
fn p_value(p: f64) -> String {
    if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

/// One row per data set, with everything that a number needs to be compared with another.
pub fn summary(summary: &Summary) -> String {
    let sets = &summary.sets;
    let pass: BTreeSet<usize> = sets.iter().flat_map(|s| s.pass_at.keys().copied()).filter(|k| *k > 1).collect();
    let maj: BTreeSet<usize> = sets.iter().flat_map(|s| s.maj_at.keys().copied()).filter(|k| *k > 1).collect();
    let gsm8k = sets.iter().any(|s| s.gsm8k.is_some());
    let mut head: Vec<String> = ["data", "n", "samples", "pass@1", "95% interval"].map(str::to_owned).to_vec();
    head.extend(pass.iter().map(|k| format!("pass@{k}")));
    head.extend(maj.iter().map(|k| format!("maj@{k}")));
    if gsm8k {
        head.extend(["strict".to_owned(), "flexible".to_owned()]);
    }
    head.extend(["truncated", "no answer", "tokens", "temperature", "top_p", "max_tokens"].map(str::to_owned));
    let mut rows = vec![head];
    for set in sets {
        let mut row = vec![
            set.data.clone(),
            set.n.to_string(),
            set.samples.to_string(),
            percent(set.accuracy),
            format!("{} to {}", percent(set.interval.low), percent(set.interval.high)),
        ];
        let at = |value: Option<&f64>| value.map_or_else(|| "-".to_owned(), |v| percent(*v));
        row.extend(pass.iter().map(|k| at(set.pass_at.get(k))));
        row.extend(maj.iter().map(|k| at(set.maj_at.get(k))));
        if gsm8k {
            row.push(at(set.gsm8k.as_ref().map(|g| &g.strict)));
            row.push(at(set.gsm8k.as_ref().map(|g| &g.flexible)));
        }
        row.extend([
            percent(set.truncated),
            percent(set.no_answer),
            format!("{:.0}", set.mean_tokens),
            set.temperature.to_string(),
            set.top_p.to_string(),
            set.max_new_tokens.to_string(),
        ]);
        rows.push(row);
    }
    let mut out = aligned(&rows);
    for set in sets {
        if set.gold_unparseable > 0 {
            out += &format!("{}: {} golds are empty and count as wrong\n", set.data, set.gold_unparseable);
        }
        if let Some(found) = &set.contamination {
            out += &format!(
                "{}: {} of {} problems are training problems too, {} share {} words in a row with one\n",
                set.data,
                found.exact,
                found.checked,
                found.ngram,
                super::contamination::NGRAM
            );
        }
    }
    out
}

/// Paired tests per data set, then the questions that flipped.
pub fn comparison(sets: &[SetComparison]) -> String {
    let head =
        ["data", "n", "A", "B", "B - A", "95% interval", "bootstrap p", "McNemar p", "only A", "only B", "unmatched"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for set in sets {
        let test = &set.paired;
        rows.push(vec![
            set.data.clone(),
            test.n.to_string(),
            percent(set.a),
            percent(set.b),
            format!("{:+.1}", 100.0 * test.difference),
            format!("{:+.1} to {:+.1}", 100.0 * test.low, 100.0 * test.high),
            p_value(test.bootstrap_p),
            p_value(test.mcnemar_p),
            test.only_a.to_string(),
            test.only_b.to_string(),
            set.unmatched.to_string(),
        ]);
    }
    let mut out = aligned(&rows);
    for set in sets.iter().filter(|s| !s.flips.is_empty()) {
        out += &format!("\nflipped in {}:\n", set.data);
        let mut rows = vec![["id", "A", "B", "gold", "A says", "B says"].map(str::to_owned).to_vec()];
        for flip in &set.flips {
            let said = |answer: &Option<String>| answer.as_deref().map_or_else(|| "-".to_owned(), short);
            rows.push(vec![
                flip.id.clone(),
                percent(flip.a),
                percent(flip.b),
                short(&flip.gold),
                said(&flip.answer_a),
                said(&flip.answer_b),
            ]);
        }
        out += &aligned(&rows);
    }
    out
}

/// One line of at most 40 characters, without anything that a terminal would act on.
pub fn short(text: &str) -> String {
    const LIMIT: usize = 40;
    let mut out: String =
        text.chars().take(LIMIT).map(|c| if c.is_control() || c.is_whitespace() { ' ' } else { c }).collect();
    if text.chars().nth(LIMIT).is_some() {
        out.push('…');
    }
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Gsm8kScores, Interval, SetSummary};

    #[test]
    fn a_row_says_how_its_number_came_about() {
        let set = |data: &str| SetSummary {
            data: data.into(),
            n: 1319,
            samples: 4,
            accuracy: 0.4123,
            interval: Interval { low: 0.38, high: 0.44, method: "bootstrap".into() },
            truncated: 0.05,
            no_answer: 0.011,
            mean_tokens: 210.4,
            temperature: 0.6,
            top_p: 0.95,
            max_new_tokens: 512,
            ..SetSummary::default()
        };
        let mut gsm8k = set("gsm8k");
        gsm8k.pass_at.insert(4, 0.8);
        gsm8k.gsm8k = Some(Gsm8kScores { strict: 0.3, flexible: 0.41 });
        let text = summary(&Summary { sets: vec![gsm8k, set("aime24")] });
        assert_eq!(
            text,
            "data       n  samples  pass@1    95% interval  pass@4  strict  flexible  truncated  no answer  tokens  temperature  top_p  max_tokens\n\
             gsm8k   1319        4   41.2%  38.0% to 44.0%   80.0%   30.0%     41.0%       5.0%       1.1%     210          0.6   0.95         512\n\
             aime24  1319        4   41.2%  38.0% to 44.0%       -       -         -       5.0%       1.1%     210          0.6   0.95         512\n"
        );
    }

    #[test]
    fn cells_are_one_line_and_harmless() {
        assert_eq!(short("a\n\u{1b}[31m b"), "a  [31m b");
        assert_eq!(short(&"x".repeat(41)), format!("{}…", "x".repeat(40)));
        assert_eq!((p_value(0.0), p_value(0.0312)), ("<0.001".to_owned(), "0.031".to_owned()));
    }
}
