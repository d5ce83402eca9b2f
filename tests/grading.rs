//! The grader against labelled answers, public bug reports, sanity anchors and random input.
//!
//! The goldens lie outside of the repository (`QERL_GOLDEN_DIR`, or `../shared/golden`, `../shared/data`); without
//! them these tests say so and pass.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use qerl::math::{self, Verdict};

fn shared(folder: &str) -> Option<PathBuf> {
    let path = match std::env::var_os("QERL_GOLDEN_DIR") {
        Some(golden) if folder == "golden" => PathBuf::from(golden),
        Some(golden) => Path::new(&golden).parent()?.join(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(folder),
    };
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there", path.display());
    None
}

fn rows(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).expect("readable");
    text.lines().map(|l| serde_json::from_str(l).expect("json")).collect()
}

fn text<'a>(row: &'a serde_json::Value, key: &str) -> &'a str {
    row[key].as_str().expect("text")
}

/// (right, false accepts, false rejects), each wrong one printed.
fn agreement(rows: &[serde_json::Value]) -> (usize, usize, usize) {
    let (mut right, mut accepts, mut rejects) = (0, 0, 0);
    for row in rows {
        let grade = math::grade(text(row, "gold"), text(row, "output"));
        let said = grade.verdict == Verdict::Correct;
        let expected = row["expected"].as_bool().expect("bool");
        right += usize::from(said == expected);
        accepts += usize::from(said && !expected);
        rejects += usize::from(!said && expected);
        if said != expected {
            let extracted = grade.extracted.map(|e| e.chars().take(100).collect::<String>());
            eprintln!(
                "{} {}: gold {:?} extracted {extracted:?} said {said}",
                row["id"],
                row["kind"],
                text(row, "gold")
            );
        }
    }
    (right, accepts, rejects)
}

#[test]
fn labelled_answers_agree_and_nothing_wrong_is_accepted() {
    let Some(dir) = shared("golden") else { return };
    let rows = rows(&dir.join("grading.jsonl"));
    let (right, accepts, rejects) = agreement(&rows);
    eprintln!("{right}/{} right, {accepts} false accepts, {rejects} false rejects", rows.len());
    assert_eq!(accepts, 0);
    assert!(right * 1000 >= rows.len() * 990);
}

#[test]
fn public_bug_reports_are_all_right() {
    let Some(dir) = shared("golden") else { return };
    let rows = rows(&dir.join("grading_reports.jsonl"));
    assert_eq!(agreement(&rows), (rows.len(), 0, 0));
}

#[test]
fn gsm8k_references_are_correct() {
    let Some(dir) = shared("data") else { return };
    let rows = rows(&dir.join("gsm8k_test.jsonl"));
    for row in &rows {
        let solution = text(row, "answer");
        let gold = solution.rsplit("####").next().expect("a gold").trim();
        assert_eq!(math::grade(gold, solution).verdict, Verdict::Correct, "{solution}");
    }
}

#[test]
fn math500_references_and_all_boxed_golds_are_correct() {
    let Some(dir) = shared("data") else { return };
    let mut bad = 0;
    let rows500 = rows(&dir.join("math500.jsonl"));
    let mut check = |gold: &str, completion: &str| {
        let grade = math::grade(gold, completion);
        if grade.verdict != Verdict::Correct {
            eprintln!("gold {gold:?} -> {grade:?}");
            bad += 1;
        }
    };
    for row in &rows500 {
        check(text(row, "answer"), text(row, "solution"));
        check(text(row, "answer"), &format!("\\boxed{{{}}}", text(row, "answer")));
    }
    for row in &rows(&dir.join("bigmath_sample.jsonl")) {
        check(text(row, "answer"), &format!("\\boxed{{{}}}", text(row, "answer")));
    }
    assert_eq!(bad, 0);
}

/// Pairs per second on this core; run with `--release --ignored --nocapture`.
#[test]
#[ignore = "a benchmark"]
fn ordinary_pairs_per_second() {
    let Some(dir) = shared("golden") else { return };
    let rows = rows(&dir.join("grading.jsonl"));
    let ordinary: Vec<_> = rows.iter().filter(|r| !text(r, "kind").starts_with("adv")).collect();
    let start = std::time::Instant::now();
    let mut n = 0;
    while start.elapsed().as_secs_f64() < 2.0 {
        for row in &ordinary {
            std::hint::black_box(math::grade(text(row, "gold"), text(row, "output")));
            n += 1;
        }
    }
    println!("{:.0} pairs/s", f64::from(n) / start.elapsed().as_secs_f64());
    for row in rows.iter().filter(|r| text(r, "kind").starts_with("adv")) {
        let start = std::time::Instant::now();
        std::hint::black_box(math::grade(text(row, "gold"), text(row, "output")));
        let ms = start.elapsed().as_secs_f64() * 1e3;
        if ms > 10.0 {
            println!("{} {}: {ms:.1} ms", row["id"], row["kind"]);
        }
    }
}

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
    "\\mid",
    " ",
    "\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: fuzz_cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Any sequence of pieces gets a verdict; an answer that was accepted is accepted again.
    #[test]
    fn any_input_gets_a_verdict(
        gold in prop::collection::vec(prop::sample::select(PIECES), 0..12),
        output in prop::collection::vec(prop::sample::select(PIECES), 0..40),
        repeat in 1usize..40,
    ) {
        let gold = gold.concat();
        let output = output.concat().repeat(repeat);
        let first = math::grade(&gold, &output);
        prop_assert_eq!(&first, &math::grade(&gold, &output));
        math::answer_class(&output);
        if gold.trim().is_empty() {
            prop_assert_eq!(first.verdict, Verdict::GoldUnparseable);
        }
    }

    /// Arbitrary unicode never panics.
    #[test]
    fn any_text_gets_a_verdict(gold in "\\PC{0,40}", output in "\\PC{0,200}") {
        math::grade(&gold, &output);
        math::grade(&gold, &format!("\\boxed{{{output}}}"));
    }

    /// A number equals itself in every form and never its neighbour.
    #[test]
    fn integers_equal_themselves_only(n in -1_000_000i64..1_000_000, d in 1i64..1000) {
        let completion = format!("\\boxed{{{n}}}");
        prop_assert_eq!(math::grade(&n.to_string(), &completion).verdict, Verdict::Correct);
        prop_assert_eq!(math::grade(&(n + d).to_string(), &completion).verdict, Verdict::Wrong);
        let fraction = format!("\\boxed{{\\frac{{{}}}{{{d}}}}}", n * d);
        prop_assert_eq!(math::grade(&n.to_string(), &fraction).verdict, Verdict::Correct);
    }
}

/// `QERL_FUZZ_CASES` makes the run longer.
fn fuzz_cases() -> u32 {
    std::env::var("QERL_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256)
}

#[test]
fn adversarial_sizes_get_a_verdict() {
    for output in [
        "\\boxed{".repeat(60_000),
        format!("\\boxed{{{}1{}}}", "(".repeat(10_000), ")".repeat(10_000)),
        format!("\\boxed{{{}1{}}}", "{".repeat(10_000), "}".repeat(10_000)),
        format!("\\boxed{{{}}}", "x^".repeat(1_500)),
        format!("\\boxed{{{}}}", "\\sin".repeat(900)),
        format!("\\boxed{{{}}}", "\\sqrt".repeat(700)),
        format!("\\boxed{{{}}}", "|".repeat(3_000)),
        format!("\\boxed{{{}}}", "5!".repeat(1_900)),
        format!("\\boxed{{{}}}", "(a+b+c+d)^{24}".repeat(200)),
        format!("\\boxed{{{}}}", "a,".repeat(1_900)),
        "answer is ".repeat(40_000),
        "#### ".repeat(80_000),
        "$".repeat(400_000),
        "9".repeat(400_000),
    ] {
        assert_ne!(math::grade("675", &output).verdict, Verdict::Correct);
        assert_ne!(math::grade("\\frac{x+1}{y}", &output).verdict, Verdict::Correct);
        math::answer_class(&output);
    }
}
