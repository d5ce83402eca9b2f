//! The grader against labelled answers, public bug reports, sanity anchors and random input.
//!
//! The goldens lie outside of the repository (`QERL_GOLDEN_DIR`, or `../shared/golden`, `../shared/data`); without
//! them these tests say so and pass.

#[path = "grading/fuzz.rs"]
mod fuzz;

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

/// The policy of docs/grading.md in examples of our own, by type of answer.
#[test]
fn every_kind_of_answer_is_judged_by_the_policy() {
    for (file, least) in [("kinds.jsonl", 400), ("own.jsonl", 1300), ("more.jsonl", 1000)] {
        let rows = rows(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grading").join(file));
        assert!(rows.len() > least);
        assert_eq!(agreement(&rows), (rows.len(), 0, 0), "{file}");
    }
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

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

#[test]
fn adversarial_sizes_get_a_verdict() {
    for output in [
        "\\boxed{".repeat(60_000),
        format!("\\boxed{{{}1{}}}", "(".repeat(10_000), ")".repeat(10_000)),
        format!("\\boxed{{{}1{}}}", "{".repeat(10_000), "}".repeat(10_000)),
        format!("\\boxed{{{}}}", "x^".repeat(1_500)),
        format!("\\boxed{{{}6}}", "6^".repeat(40)),
        format!("\\boxed{{{}30}}", "30^".repeat(24)),
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
