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
fn solutions_are_right_and_in_the_prompted_form() {
    let problems = generate(&spec("arith", 2000, 3)).unwrap();
    let mut worked = 0;
    for problem in &problems {
        let solution = problem.solution.as_deref().unwrap();
        let lines: Vec<&str> = solution.lines().collect();
        match lines[..] {
            ["<think>", working, "</think>", "<answer>", answer, "</answer>"] => {
                worked += 1;
                assert_eq!((value(working).to_string().as_str(), answer), (problem.answer.as_str(), answer));
                assert_eq!(working.split(", ").count().to_string(), problem.tags["operations"]);
            }
            ["<think>", "</think>", "<answer>", answer, "</answer>"] => assert_eq!(answer, problem.answer),
            _ => panic!("{solution}"),
        }
        assert!((1..100).contains(&problem.answer.parse::<u32>().unwrap()));
        assert_eq!(grade(&problem.answer, solution).verdict, Verdict::Correct);
        assert!(!problem.prompt.contains(['{', '}']), "{}", problem.prompt);
    }
    assert!((700..900).contains(&worked), "two in five: {worked}");
    let boxed = DataSpec { template: Some("boxed".into()), ..spec("arith", 1, 3) };
    assert!(generate(&boxed).unwrap()[0].solution.as_deref().unwrap().ends_with('}'));
}

#[test]
fn sums_are_right() {
    // All pairs of addends, each once, whatever the seed.
    for seed in 0..3 {
        let spec = DataSpec { n: None, ..spec("sums", 0, seed) };
        let problems = generate(&spec).unwrap();
        let mut pairs = HashSet::new();
        for problem in &problems {
            let rest = problem.prompt.strip_prefix("What is ").unwrap();
            let (a, b) = rest.strip_suffix("? Answer with the number only.").unwrap().split_once(" + ").unwrap();
            let (a, b): (u32, u32) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(problem.answer, (a + b).to_string());
            assert!((1..=50).contains(&a) && (1..=50).contains(&b));
            pairs.insert((a, b));
        }
        assert_eq!((problems.len(), pairs.len()), (2500, 2500));
        assert_eq!(holdout(&spec), Some(Holdout { n: 300, seed }));
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
