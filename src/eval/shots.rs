//! Few-shot prompts: worked examples before the question, in the form that the prompt asks for.

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::data::{Problem, normalise};
use crate::{Error, Result};

/// Examples that stand before every question; none of them is itself a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shots {
    /// Question and full answer.
    examples: Vec<(String, String)>,
}

impl Shots {
    /// The first `n` problems of `pool` whose text is none of the `questions`; `answer` writes their solutions.
    ///
    /// # Errors
    /// Fewer than `n` are left.
    pub fn choose(
        n: usize,
        pool: &[Problem],
        questions: &[Problem],
        answer: &mut dyn FnMut(&Problem) -> String,
    ) -> Result<Self> {
        let mut taken: HashSet<[u8; 16]> = questions.iter().map(|p| normalise::key(&p.prompt)).collect();
        let mut examples = Vec::with_capacity(n.min(pool.len()));
        for problem in pool {
            if examples.len() == n {
                break;
            }
            if taken.insert(normalise::key(&problem.prompt)) {
                examples.push((problem.prompt.clone(), answer(problem)));
            }
        }
        if examples.len() < n {
            return Err(Error::usage(format!(
                "{n} shots are asked for, but only {} problems are there that are not questions themselves",
                examples.len()
            ))
            .hint("name the training split under `shots_data`: an entry under `data:` with `split: train`"));
        }
        Ok(Self { examples })
    }

    /// The problem as it is put to the model. Without examples, as it is.
    pub fn put(&self, problem: &Problem) -> Problem {
        if self.examples.is_empty() {
            return problem.clone();
        }
        let mut text = String::new();
        for (question, answer) in &self.examples {
            // Writing to a string cannot fail.
            let _ = write!(text, "Problem: {}\nSolution: {}\n\n", question.trim(), answer.trim());
        }
        let _ = write!(text, "Problem: {}\nSolution:", problem.prompt.trim());
        Problem { prompt: text, ..problem.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(prompt: &str, answer: &str) -> Problem {
        Problem {
            id: prompt.into(),
            prompt: prompt.into(),
            answer: answer.into(),
            solution: None,
            tags: Default::default(),
        }
    }

    #[test]
    fn a_question_is_never_its_own_example() {
        let pool = [problem("What is 1+1?", "2"), problem("What is $2+2$?", "4"), problem("What is 3+3?", "6")];
        let question = problem("what is 2 + 2", "4");
        let mut boxed = |p: &Problem| format!("\\boxed{{{}}}", p.answer);
        let shots = Shots::choose(2, &pool, std::slice::from_ref(&question), &mut boxed).unwrap();
        let put = shots.put(&question);
        assert_eq!(
            put.prompt,
            "Problem: What is 1+1?\nSolution: \\boxed{2}\n\nProblem: What is 3+3?\nSolution: \\boxed{6}\n\n\
             Problem: what is 2 + 2\nSolution:"
        );
        assert_eq!((put.id, put.answer), (question.id.clone(), "4".to_owned()));
        let error = Shots::choose(3, &pool, std::slice::from_ref(&question), &mut boxed).unwrap_err();
        assert!(error.to_string().contains("only 2"), "{error}");
        assert_eq!(Shots::default().put(&question), question);
    }
}
