//! Grading speed on one core: ordinary pairs per second, and the slowest hostile ones.
//!
//! `cargo bench --bench grading`. Pairs are those of `QERL_GOLDEN_DIR/grading.jsonl` (or `../shared/golden`); without
//! it, of tests/grading/corpus.jsonl, where all count as ordinary. Ends with an error below 10,000 ordinary pairs per
//! second or where a hostile input takes 100 ms.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use qerl::math::{self, Gold};

/// How long ordinary pairs are graded.
const SECONDS: f64 = 3.0;
/// Ordinary pairs per second on one core, at least.
const LEAST: f64 = 10_000.0;
/// Milliseconds of the slowest hostile input, less than.
const MOST: f64 = 100.0;

struct Pair {
    kind: String,
    gold: String,
    output: String,
}

fn pairs(text: &str) -> Vec<Pair> {
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        Some(Pair { kind: text("kind").unwrap_or_default(), gold: text("gold")?, output: text("output")? })
    };
    text.lines().filter_map(row).collect()
}

/// Inputs that make graders hang, beside those of the file.
fn hostile() -> Vec<Pair> {
    let pair = |kind: &str, output: String| Pair { kind: kind.to_owned(), gold: "675".to_owned(), output };
    vec![
        pair("open boxes", "\\boxed{".repeat(57_000)),
        pair("400 KB of digits", "9".repeat(400_000)),
        pair("10,000 braces", format!("\\boxed{{{}1{}}}", "{".repeat(10_000), "}".repeat(10_000))),
        pair("towers", "\\boxed{9^{9^{9^{9^9}}}}".to_owned()),
        pair("expansion", format!("\\boxed{{{}}}", "(a+b+c+d)^{24}".repeat(200))),
        pair("phrases", "answer is ".repeat(40_000)),
        pair("bytes", "\u{0}\u{fffd}\\".repeat(60_000)),
    ]
}

fn milliseconds(pair: &Pair) -> f64 {
    let once = || {
        let start = Instant::now();
        black_box(math::grade(&pair.gold, &pair.output));
        start.elapsed().as_secs_f64() * 1e3
    };
    once().min(once())
}

fn main() {
    let golden = std::env::var_os("QERL_GOLDEN_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden"), PathBuf::from);
    let file = golden.join("grading.jsonl");
    let (source, text) = match std::fs::read_to_string(&file) {
        Ok(text) => (file.display().to_string(), text),
        Err(_) => ("the corpus of the fuzz test".to_owned(), include_str!("../tests/grading/corpus.jsonl").to_owned()),
    };
    let (mut adversarial, ordinary): (Vec<Pair>, Vec<Pair>) =
        pairs(&text).into_iter().partition(|pair| pair.kind.starts_with("adv"));
    println!("{} ordinary pairs of {source}", ordinary.len());
    let start = Instant::now();
    let mut count = 0u32;
    while start.elapsed().as_secs_f64() < SECONDS {
        for pair in &ordinary {
            black_box(math::grade(&pair.gold, &pair.output));
            count += 1;
        }
    }
    let speed = f64::from(count) / start.elapsed().as_secs_f64();
    println!("{speed:.0} pairs/s on one core");
    let golds: Vec<Gold> = ordinary.iter().map(|pair| Gold::parse(&pair.gold)).collect();
    let start = Instant::now();
    let mut count = 0u32;
    while start.elapsed().as_secs_f64() < SECONDS {
        for (gold, pair) in golds.iter().zip(&ordinary) {
            black_box(gold.grade(&pair.output));
            count += 1;
        }
    }
    println!("{:.0} pairs/s with golds read once", f64::from(count) / start.elapsed().as_secs_f64());
    adversarial.extend(hostile());
    let mut slowest: Vec<(f64, &Pair)> = adversarial.iter().map(|pair| (milliseconds(pair), pair)).collect();
    slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("slowest of {} hostile ones:", slowest.len());
    for (ms, pair) in slowest.iter().take(5) {
        println!("{ms:>8.2} ms  {} ({} bytes)", pair.kind, pair.output.len());
    }
    assert!(speed >= LEAST, "{speed:.0} ordinary pairs/s; at least {LEAST:.0} are wanted");
    for (ms, pair) in &slowest {
        assert!(*ms < MOST, "{} takes {ms:.1} ms; less than {MOST} ms is wanted", pair.kind);
    }
}
