//! Rows packed one behind the other; equal prompts are computed once.

use std::collections::HashMap;

use super::kernels::attention::Span;
use crate::engine::Row;
use crate::{Error, Result};

/// A completion token to score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Target {
    /// Packed token whose output predicts it.
    pub at: usize,
    pub token: u32,
    pub row: usize,
    pub index: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::engine) struct Packed {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub spans: Vec<Span>,
    pub targets: Vec<Target>,
}

impl Packed {
    /// Packs `rows`; `number` gives each its place in the results. The last token of a completion is scored, not fed.
    pub fn new<'a>(rows: impl IntoIterator<Item = (usize, &'a Row)>) -> Self {
        let mut order: Vec<Vec<(usize, &Row)>> = Vec::new();
        let mut known: HashMap<&[u32], usize> = HashMap::new();
        for (number, row) in rows {
            let at = *known.entry(&row.prompt).or_insert(order.len());
            if at == order.len() {
                order.push(Vec::new());
            }
            order[at].push((number, row));
        }
        let mut packed = Self::default();
        for group in order {
            packed.group(&group);
        }
        packed
    }

    fn feed(&mut self, tokens: &[u32], from: usize) {
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((from..from + tokens.len()).map(|p| p as u32));
    }

    fn group(&mut self, rows: &[(usize, &Row)]) {
        let prompt = &rows[0].1.prompt;
        let start = self.tokens.len();
        self.feed(prompt, 0);
        let prefix = start..self.tokens.len();
        if rows.len() > 1 {
            self.spans.push(Span::whole(prefix.clone()));
        }
        for (number, row) in rows {
            let own = self.tokens.len();
            let fed = &row.completion[..row.completion.len().saturating_sub(1)];
            self.feed(fed, prompt.len());
            for (index, &token) in row.completion.iter().enumerate() {
                let at = if index == 0 { prefix.end - 1 } else { own + index - 1 };
                self.targets.push(Target { at, token, row: *number, index });
            }
            if rows.len() == 1 {
                self.spans.push(Span::whole(start..self.tokens.len()));
            } else if !fed.is_empty() {
                self.spans.push(Span { prefix: prefix.clone(), own: own..self.tokens.len() });
            }
        }
    }
}

/// Rows in the order given, cut into batches of about `tokens`; rows of one prompt that stand together stay together
/// as long as they fit.
pub(in crate::engine) fn cut(rows: &[Row], tokens: usize) -> Vec<std::ops::Range<usize>> {
    let mut cuts = Vec::new();
    let (mut start, mut sum) = (0, 0);
    for (i, row) in rows.iter().enumerate() {
        let shared = i > start && rows[i - 1].prompt == row.prompt;
        let (completion, prompt) = (row.completion.len(), row.prompt.len());
        let more = completion + if shared { 0 } else { prompt };
        if i > start && sum + more > tokens {
            cuts.push(start..i);
            (start, sum) = (i, completion + prompt);
        } else {
            sum += more;
        }
    }
    if start < rows.len() {
        cuts.push(start..rows.len());
    }
    cuts
}

/// # Errors
/// Where a row is empty, too long for the model or names a token that it has not.
pub(in crate::engine) fn check(rows: &[Row], vocab: usize, max_position: usize) -> Result<()> {
    for (i, row) in rows.iter().enumerate() {
        if row.prompt.is_empty() {
            return Err(Error::input(format!("row {i} has an empty prompt"))
                .hint("at least one token must stand before those that are scored"));
        }
        check_tokens(i, &row.prompt, vocab)?;
        check_tokens(i, &row.completion, vocab)?;
        let len = row.prompt.len() + row.completion.len();
        if len > max_position + 1 {
            return Err(Error::input(format!("row {i} has {len} tokens, but the model's context is {max_position}")));
        }
    }
    Ok(())
}

pub(in crate::engine) fn check_tokens(row: usize, tokens: &[u32], vocab: usize) -> Result<()> {
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(token) => {
            Err(Error::input(format!("row {row} has token {token}, but the vocabulary ends at {}", vocab - 1))
                .hint("the tokenizer must belong to the model"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prompt: &[u32], completion: &[u32]) -> Row {
        Row { prompt: prompt.into(), completion: completion.to_vec() }
    }

    #[test]
    fn equal_prompts_are_packed_once() {
        let rows = [row(&[1, 2], &[3, 4, 5]), row(&[7], &[8]), row(&[1, 2], &[6])];
        let packed = Packed::new(rows.iter().enumerate());
        assert_eq!(packed.tokens, [1, 2, 3, 4, 7]);
        assert_eq!(packed.positions, [0, 1, 2, 3, 0]);
        assert_eq!(packed.spans, [Span::whole(0..2), Span { prefix: 0..2, own: 2..4 }, Span::whole(4..5)]);
        let at: Vec<_> = packed.targets.iter().map(|t| (t.row, t.index, t.at, t.token)).collect();
        assert_eq!(at, [(0, 0, 1, 3), (0, 1, 2, 4), (0, 2, 3, 5), (2, 0, 1, 6), (1, 0, 4, 8)]);
    }

    #[test]
    fn batches_are_cut_by_tokens() {
        let rows: Vec<Row> = (0..5).map(|_| row(&[1; 10], &[2; 10])).collect();
        assert_eq!(cut(&rows, 35), [0..2, 2..4, 4..5]);
        assert_eq!(cut(&rows, 1), [0..1, 1..2, 2..3, 3..4, 4..5], "a row that is too long stands alone");
        assert!(cut(&[], 10).is_empty());
    }
}
