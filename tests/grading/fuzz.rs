//! Hostile input for extractor and parser: a corpus, mutated at random for `QERL_FUZZ_SECONDS` (a second without it).
//!
//! `QERL_FUZZ_SEED` repeats a run; without it a timed run takes a new seed and prints it. An input that once did harm
//! goes into corpus.jsonl.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use qerl::math::{self, Gold, Verdict};

/// What goes wrong in grammars: pieces that open, close, nest and explode.
const PIECES: &[&str] = &[
    "\\boxed{",
    "}",
    "{",
    "\\frac",
    "\\frac{1}{2}",
    "\\sqrt",
    "\\sqrt[3]{",
    "(",
    ")",
    "[",
    "]",
    "\\left(",
    "\\right)",
    "^",
    "_",
    "9^9^9",
    "!",
    "%",
    "$",
    "\\$",
    "####",
    "The answer is ",
    "<answer>",
    "</answer>",
    "</think>",
    ",",
    "=",
    "<",
    "\\pm",
    "\\text{ or }",
    "\\text{",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "&",
    "\\\\",
    "x",
    "i",
    "e",
    "\\pi",
    "12",
    "0",
    "1,000",
    ".5",
    "-",
    "+",
    "/",
    "\\cdot",
    "\\ln",
    "\\log_2",
    "\\sin^2",
    "|",
    "\\{",
    "\\}",
    "\\cup",
    ":",
    "°",
    "−",
    "\u{0}",
    "é",
    "6７",
    "\\infty",
    "\\binom{9}{4}",
    "2000!",
    "\\",
    "\\in",
    "0.\\overline{3}",
    "1.5e-3",
    "\\langle",
    "\\rangle",
    "\\cos",
    "^\\circ",
    "\\text{The answer is }",
    " to ",
    "\u{a0}",
    "\\mid",
    " ",
    "\n",
];

/// No input may take longer, whatever the machine is busy with: ten times the limit of a release build, since tests are
/// built with little optimization.
const SLOWEST: Duration = Duration::from_secs(1);
/// The grader's own limits lie far below.
const LONGEST: usize = 400_000;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// A place in `text` where something can be put.
    fn place(&mut self, text: &str) -> usize {
        text.floor_char_boundary(self.below(text.len() + 1))
    }

    fn range(&mut self, text: &str) -> std::ops::Range<usize> {
        let (a, b) = (self.place(text), self.place(text));
        a.min(b)..a.max(b)
    }

    /// One to six changes.
    fn mutate(&mut self, text: &str, others: &[&str]) -> String {
        let mut text = text.to_owned();
        for _ in 0..=self.below(6) {
            match self.below(10) {
                0..=2 => {
                    let at = self.place(&text);
                    text.insert_str(at, self.pick(PIECES));
                }
                3 => {
                    let range = self.range(&text);
                    text.replace_range(range, "");
                }
                4 => {
                    let range = self.range(&text);
                    let many = if self.below(20) == 0 { 20_000 } else { 12 };
                    let piece = text[range.clone()].repeat(self.below(many));
                    text.insert_str(range.end, &piece[..piece.floor_char_boundary(LONGEST)]);
                }
                5 => {
                    let other = self.pick(others);
                    let part = &other[self.range(other)];
                    let range = self.range(&text);
                    text.replace_range(range, part);
                }
                6 => {
                    let at = self.place(&text);
                    let c = char::from_u32(self.below(0x3000) as u32).unwrap_or('\u{fffd}');
                    text.insert(at, c);
                }
                7 => text = format!("\\boxed{{{text}}}"),
                8 => {
                    let digits = "0123456789".repeat(1 + self.below(8));
                    let at = self.place(&text);
                    text.insert_str(at, &digits[..1 + self.below(digits.len())]);
                }
                _ => {
                    let at = self.place(&text);
                    let many = if self.below(20) == 0 { 20_000 } else { 40 };
                    text.insert_str(at, &self.pick(PIECES).repeat(1 + self.below(many)));
                }
            }
            text.truncate(text.floor_char_boundary(LONGEST));
        }
        text
    }
}

/// What must hold for any two texts.
fn check(gold_text: &str, output: &str) {
    let gold = Gold::parse(gold_text);
    let (grade, trace) = gold.explain(output);
    assert_eq!(grade, math::grade(gold_text, output), "a verdict is a function of its input");
    assert_eq!(grade.extracted, trace.extracted);
    match grade.verdict {
        Verdict::NoAnswer => assert!(grade.extracted.is_none()),
        Verdict::Correct | Verdict::Wrong => assert!(grade.extracted.is_some()),
        Verdict::GoldUnparseable => {}
    }
    if gold_text.trim().is_empty() {
        assert_eq!(grade.verdict, Verdict::GoldUnparseable, "an empty gold is never rewarded");
    }
    if let Some(answer) = &grade.extracted {
        let class = math::answer_class(answer);
        assert_eq!(class, math::answer_class(answer));
        if grade.verdict != Verdict::GoldUnparseable {
            assert_eq!(gold.equivalent(answer), grade.verdict == Verdict::Correct);
        }
    }
    if grade.verdict != Verdict::GoldUnparseable {
        assert!(gold.equivalent(gold_text), "a gold equals itself");
    }
}

fn shown(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(2_000)];
    let more =
        if start.len() < text.len() { format!(" and {} bytes more", text.len() - start.len()) } else { String::new() };
    format!("{start:?}{more}")
}

/// Time that this thread has had: a busy machine makes nothing slow.
fn on_cpu() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = counted.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

#[test]
fn any_input_gets_a_verdict_in_time() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("QERL_FUZZ_SECONDS");
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = number("QERL_FUZZ_SEED").unwrap_or(if seconds.is_some() { clock } else { 1 });
    eprintln!("QERL_FUZZ_SEED={seed}");
    let corpus: Vec<(String, String)> = include_str!("corpus.jsonl")
        .lines()
        .map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            (text("gold"), text("output"))
        })
        .collect();
    let texts: Vec<&str> = corpus.iter().flat_map(|(gold, output)| [gold.as_str(), output.as_str()]).collect();
    let mut dice = Dice(seed);
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    let mut count = 0u64;
    while Instant::now() < end || count < corpus.len() as u64 {
        let (gold, output) = match corpus.get(count as usize) {
            // The corpus itself first.
            Some(pair) => pair.clone(),
            None => {
                let (gold, output) = &corpus[dice.below(corpus.len())];
                let gold = if dice.below(2) == 0 { gold.clone() } else { dice.mutate(gold, &texts) };
                (gold, dice.mutate(output, &texts))
            }
        };
        count += 1;
        let report = || format!("input {count} of seed {seed}: gold {} output {}", shown(&gold), shown(&output));
        let timed = || {
            let start = on_cpu();
            std::hint::black_box(math::grade(&gold, &output));
            on_cpu().saturating_sub(start)
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&gold, &output))) {
            eprintln!("{}", report());
            std::panic::resume_unwind(panic);
        }
        // Once slow may be another process's doing.
        let slow = timed() > SLOWEST && timed() > SLOWEST && timed() > SLOWEST;
        assert!(!slow, "slow: {}", report());
    }
    eprintln!("{count} inputs");
}
