use super::*;
use crate::math::{Verdict, grade};

fn spec(name: &str, n: usize, seed: u64) -> DataSpec {
    DataSpec { builtin: Some(name.into()), n: Some(n), seed: Some(seed), ..DataSpec::default() }
}

#[test]
fn problems_are_a_function_of_the_seed() {
    for name in ["arith", "sums"] {
        let problems = generate(&spec(name, 300, 1)).unwrap();
        assert_eq!(problems, generate(&spec(name, 300, 1)).unwrap());
        assert_eq!(problems[..100], generate(&spec(name, 100, 1)).unwrap());
        assert_ne!(problems, generate(&spec(name, 300, 2)).unwrap());
        let texts: HashSet<_> = problems.iter().map(|p| normalise::key(&p.prompt)).collect();
        assert_eq!(texts.len(), 300);
    }
}

/// The working, computed anew from its text.
fn value(line: &str) -> u32 {
    let mut last = 0;
    for step in line.split(", ") {
        let (left, right) = step.split_once('=').unwrap();
        let at = left.find(|c: char| !c.is_ascii_digit()).unwrap();
        let (x, y): (u32, u32) = (left[..at].parse().unwrap(), left[at + 1..].parse().unwrap());
        last = right.parse().unwrap();
        let want = match &left[at..=at] {
            "+" => x + y,
            "-" => x - y,
            "*" => x * y,
            _ => x / y,
        };
        assert_eq!(last, want, "{line}");
    }
    last
}

#[test]
fn worked_solutions_are_right_and_in_the_prompted_form() {
    for problem in generate(&spec("arith", 2000, 3)).unwrap() {
        let solution = problem.solution.as_deref().unwrap();
        let lines: Vec<&str> = solution.lines().collect();
        assert!(matches!(lines[..], ["<think>", _, "</think>", "<answer>", _, "</answer>"]), "{solution}");
        assert_eq!(value(lines[1]).to_string(), problem.answer);
        assert_eq!(lines[4], problem.answer);
        assert!((1..100).contains(&problem.answer.parse::<u32>().unwrap()));
        assert_eq!(grade(&problem.answer, solution).verdict, Verdict::Correct);
        assert!(!problem.prompt.contains(['{', '}']), "{}", problem.prompt);
    }
    let boxed = DataSpec { template: Some("boxed".into()), ..spec("arith", 1, 3) };
    assert!(generate(&boxed).unwrap()[0].solution.as_deref().unwrap().ends_with('}'));
}

#[test]
fn sums_are_right() {
    for problem in generate(&spec("sums", 2000, 0)).unwrap() {
        let words: Vec<&str> = problem.prompt.split(' ').collect();
        let (a, b): (u32, u32) = (words[0].parse().unwrap(), words[2].parse().unwrap());
        let want = if words[1] == "+" { a + b } else { a - b };
        assert_eq!((problem.answer, words[3]), (want.to_string(), "="));
    }
}

#[test]
fn the_vocabulary_is_small() {
    let problems = generate(&spec("arith", 5000, 0)).unwrap();
    let words: HashSet<&str> = problems
        .iter()
        .flat_map(|p| p.prompt.split(|c: char| !c.is_ascii_alphabetic()))
        .filter(|w| !w.is_empty())
        .collect();
    assert!(words.len() < 120, "{}", words.len());
    let short = problems.iter().filter(|p| p.tags["operations"] == "1").count();
    assert!((1850..2150).contains(&short), "{short}");
}

#[test]
fn what_cannot_be_generated_is_refused() {
    assert!(generate(&spec("sums", 900_000, 0)).unwrap_err().to_string().contains("different problems"));
    assert!(generate(&spec("arith", 0, 0)).is_err());
    assert!(generate(&spec("gsm8k", 1, 0)).is_err());
    assert!(generate(&DataSpec { split: Some("test".into()), ..spec("arith", 5, 0) }).is_err());
    assert!(generate(&DataSpec { config: Some("x".into()), ..spec("arith", 5, 0) }).is_err());
    assert_eq!(holdout(&spec("arith", 100, 4)), Some(Holdout { n: 20, seed: 4 }));
    assert_eq!(holdout(&spec("gsm8k", 100, 4)), None);
}
