//! Which columns hold problem, answer, solution, id and tags; and a row's problem made of them.

use super::row::{Missing, Row, text};
use crate::data::{DataSpec, Problem};
use crate::{Error, Result};

/// Columns by use, as found in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    prompt: String,
    answer: String,
    solution: Option<String>,
    id: Option<String>,
    tags: Vec<String>,
}

/// The columns of a set: candidates in order of preference; the first that is there is used.
struct Known {
    prompt: &'static [&'static str],
    answer: &'static [&'static str],
    solution: &'static [&'static str],
    id: &'static [&'static str],
    tags: &'static [&'static str],
}

/// Sets that are not built in: only what cannot be mistaken.
const ANY: Known = Known {
    prompt: &["problem", "question", "prompt"],
    answer: &["answer"],
    solution: &["solution"],
    id: &["unique_id", "id"],
    tags: &["level", "subject", "source"],
};

fn known(builtin: Option<&str>) -> Known {
    match builtin {
        // The answer's column holds the worked solution too.
        Some("gsm8k") => Known { prompt: &["question"], answer: &["answer"], solution: &[], id: &["id"], tags: &[] },
        Some("math500") => Known { prompt: &["problem"], id: &["unique_id"], tags: &["level", "subject"], ..ANY },
        Some("aime24" | "aime25") => Known { prompt: &["problem", "question"], tags: &["year", "url"], ..ANY },
        Some("amc23") => Known { prompt: &["question", "problem"], solution: &[], tags: &["url"], ..ANY },
        // SynthLabs' form first: its `answer` beside a `solution` would be the gold answer.
        Some("bigmath") => Known {
            prompt: &["problem", "prompt"],
            answer: &["answer", "solution"],
            solution: &[],
            id: &["id"],
            tags: &["source", "domain", "llama8b_solve_rate"],
        },
        // The processed form, then the original one of conversations.
        Some("dapo_math") => Known {
            prompt: &["prompt", "source_prompt"],
            answer: &["solution", "reward_model.ground_truth", "answer"],
            solution: &[],
            id: &["extra_info.index"],
            tags: &["data_source", "ability"],
        },
        _ => ANY,
    }
}

/// Is `column`, or the struct that a path like `reward_model.ground_truth` starts with, among `names`?
fn has(names: &[String], column: &str) -> bool {
    let there = |name: &str| names.iter().any(|n| n == name);
    there(column) || column.split_once('.').is_some_and(|(first, _)| there(first))
}

/// Chooses among the columns that a file has.
pub fn pick(spec: &DataSpec, names: &[String]) -> Result<Picked> {
    let known = known(spec.builtin.as_deref());
    let choose = |named: Option<&String>, candidates: &[&str]| match named {
        Some(name) => has(names, name).then(|| name.clone()),
        None => candidates.iter().find(|c| has(names, c)).map(|c| (*c).to_owned()),
    };
    let columns = &spec.columns;
    let need = |use_: &str, named: Option<&String>, candidates: &[&str]| {
        choose(named, candidates).ok_or_else(|| missing(use_, named, candidates, names))
    };
    let may = |use_: &str, named: Option<&String>, candidates: &[&str]| match choose(named, candidates) {
        None if named.is_some() => Err(missing(use_, named, candidates, names)),
        found => Ok(found),
    };
    let picked = Picked {
        prompt: need("prompt", columns.prompt.as_ref(), known.prompt)?,
        answer: need("answer", columns.answer.as_ref(), known.answer)?,
        solution: may("solution", columns.solution.as_ref(), known.solution)?,
        id: may("id", columns.id.as_ref(), known.id)?,
        tags: known.tags.iter().filter(|tag| has(names, tag)).map(|tag| (*tag).to_owned()).collect(),
    };
    // A reference solution that is the answer itself teaches nothing.
    let solution = picked.solution.clone().filter(|s| *s != picked.answer && *s != picked.prompt);
    Ok(Picked { solution, ..picked })
}

/// The top-level columns that [`pick`] will want of a file with these ones, in the file's order.
pub fn wanted(spec: &DataSpec, names: &[String]) -> Result<Vec<String>> {
    let picked = pick(spec, names)?;
    let mut all = vec![&picked.prompt, &picked.answer];
    all.extend(&picked.solution);
    all.extend(&picked.id);
    all.extend(&picked.tags);
    let wants = |name: &String| {
        all.iter().any(|column| *column == name || column.split_once('.').is_some_and(|(first, _)| first == name))
    };
    Ok(names.iter().filter(|name| wants(name)).cloned().collect())
}

fn missing(use_: &str, named: Option<&String>, candidates: &[&str], names: &[String]) -> Error {
    let wanted = match named {
        Some(name) => format!("there is no column {name:?} for the {use_}"),
        None => format!("there is no column for the {use_} (looked for {})", candidates.join(", ")),
    };
    let mut shown: Vec<&str> = names.iter().map(String::as_str).take(40).collect();
    if names.len() > shown.len() {
        shown.push("...");
    }
    let near = named.and_then(|name| {
        let score = |n: &&String| strsim::jaro_winkler(n, name);
        names.iter().max_by(|a, b| score(a).total_cmp(&score(b))).filter(|n| score(n) > 0.8)
    });
    let near = near.map(|n| format!("did you mean {n:?}? ")).unwrap_or_default();
    Error::input(wanted).hint(format!(
        "{near}the columns are: {}; name them with columns: {{prompt: ..., answer: ...}}",
        shown.join(", ")
    ))
}

impl Picked {
    /// The row's problem; inside, what it lacks. `number` counts rows from 0 and is the id where there is none.
    pub fn problem(
        &self,
        row: &Row<'_>,
        number: usize,
        builtin: Option<&str>,
    ) -> Result<std::result::Result<Problem, Missing>> {
        let (prompt, answer) = match (row.text(&self.prompt), row.text(&self.answer)) {
            (Ok(prompt), Ok(answer)) => (prompt, answer),
            (Err(missing), _) | (_, Err(missing)) => return Ok(Err(missing)),
        };
        let mut problem = Problem {
            id: self.id.as_deref().and_then(|id| row.text(id).ok()).unwrap_or_else(|| number.to_string()),
            prompt: prompt.trim().to_owned(),
            answer: answer.trim().to_owned(),
            solution: self.solution.as_deref().and_then(|s| row.text(s).ok()),
            ..Problem::default()
        };
        for tag in &self.tags {
            if let Some(value) = row.get(tag).and_then(tag_text) {
                problem.tags.insert(tag.rsplit('.').next().unwrap_or(tag).to_owned(), value);
            }
        }
        match builtin {
            Some("gsm8k") => {
                let Some((_, gold)) = answer.rsplit_once("####") else {
                    return Ok(Err(Missing { column: self.answer.clone(), state: "without ####" }));
                };
                // Thousands separators: the gold of rewards that compare text has none.
                problem.answer = gold.trim().replace(',', "");
                problem.solution = problem.solution.or_else(|| Some(answer.trim().to_owned()));
                if problem.answer.is_empty() {
                    return Ok(Err(Missing { column: self.answer.clone(), state: "empty behind ####" }));
                }
            }
            Some("dapo_math") => problem.prompt = without_instruction(&problem.prompt).to_owned(),
            _ => {}
        }
        Ok(Ok(problem))
    }
}

/// Lists (of domains, say) by their items.
fn tag_text(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Array(items) if items.len() != 1 => {
            let items: Vec<String> = items.iter().filter_map(text).collect();
            (!items.is_empty()).then(|| items.join("; "))
        }
        other => text(other).filter(|t| !t.is_empty()),
    }
}

/// DAPO's conversations hold an instruction around the problem that asks for an answer form of its own; the form is the
/// prompt template's affair.
fn without_instruction(prompt: &str) -> &str {
    let mut text = prompt;
    if text.starts_with("Solve the following math problem step by step.")
        && let Some((instruction, problem)) = text.split_once("\n\n")
        && instruction.contains("Answer:")
    {
        text = problem;
    }
    if let Some((problem, tail)) = text.rsplit_once("\n\n")
        && tail.starts_with("Remember to put your answer on its own line after")
    {
        text = problem;
    }
    text.trim()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(builtin: Option<&str>, row: Value) -> std::result::Result<Problem, Missing> {
        let Value::Object(cells) = row else { panic!() };
        let row = Row { cells: &cells };
        let spec = DataSpec { builtin: builtin.map(str::to_owned), ..DataSpec::default() };
        pick(&spec, &row.names()).unwrap().problem(&row, 4, builtin).unwrap()
    }

    #[test]
    fn gsm8k_golds_stand_behind_the_last_hashes() {
        let row = json!({"question": "How many?", "answer": "1000 + 200 = 1200\n#### 1,200"});
        let problem = read(Some("gsm8k"), row).unwrap();
        assert_eq!((problem.id.as_str(), problem.answer.as_str()), ("4", "1200"));
        assert_eq!(problem.solution.as_deref(), Some("1000 + 200 = 1200\n#### 1,200"));
        let missing = read(Some("gsm8k"), json!({"question": "How many?", "answer": "1200"})).unwrap_err();
        assert_eq!(missing.to_string(), "\"answer\" is without ####");
    }

    #[test]
    fn both_forms_of_bigmath_and_their_tags_are_read() {
        let synthlabs = json!({"problem": "p", "answer": "\\frac12", "source": "x", "domain": ["A -> B", "C"],
            "llama8b_solve_rate": 0.484375});
        let problem = read(Some("bigmath"), synthlabs).unwrap();
        assert_eq!((problem.prompt.as_str(), problem.answer.as_str()), ("p", "\\frac12"));
        assert_eq!(problem.tags["llama8b_solve_rate"], "0.484375");
        assert_eq!(problem.tags["domain"], "A -> B; C");
        let open_r1 = json!({"prompt": "p", "solution": "12", "source": "x", "llama8b_solve_rate": null});
        let problem = read(Some("bigmath"), open_r1).unwrap();
        assert_eq!((problem.prompt.as_str(), problem.answer.as_str(), problem.solution), ("p", "12", None));
        assert!(!problem.tags.contains_key("llama8b_solve_rate"));
    }

    #[test]
    fn both_forms_of_dapo_math_are_read_without_their_instruction() {
        let original = json!({"data_source": "math_dapo",
            "prompt": [{"role": "user", "content": "Solve the following math problem step by step. End with Answer: x.\n\nFind x.\n\nIt is odd.\n\nRemember to put your answer on its own line after \"Answer:\"."}],
            "reward_model": {"ground_truth": "34", "style": "rule"}, "extra_info": {"index": "9a"}});
        let problem = read(Some("dapo_math"), original).unwrap();
        assert_eq!(problem.prompt, "Find x.\n\nIt is odd.");
        assert_eq!((problem.answer.as_str(), problem.id.as_str()), ("34", "9a"));
        let processed = json!({"prompt": "Find x.", "solution": "34", "source_prompt": [], "reward_model": null});
        assert_eq!(read(Some("dapo_math"), processed).unwrap().answer, "34");
    }

    #[test]
    fn float_like_answers_are_whole_numbers() {
        assert_eq!(read(Some("amc23"), json!({"question": "q", "answer": 27.0, "id": 3})).unwrap().answer, "27");
        assert_eq!(read(None, json!({"question": "q", "answer": 0.5})).unwrap().answer, "0.5");
    }

    #[test]
    fn missing_columns_are_named_with_those_that_are_there() {
        let names = ["problem".to_owned(), "answers".to_owned()];
        let error = pick(&DataSpec::default(), &names).unwrap_err();
        assert!(error.to_string().contains("looked for answer"), "{error}");
        assert!(error.hint_text().unwrap().contains("problem, answers"));
        let mut spec = DataSpec::default();
        spec.columns.answer = Some("anwser".into());
        let error = pick(&spec, &names).unwrap_err();
        assert!(error.hint_text().unwrap().contains("did you mean \"answers\""), "{:?}", error.hint_text());
    }

    #[test]
    fn only_what_is_needed_is_read() {
        let names = ["text", "prompt", "reward_model", "junk", "data_source"].map(str::to_owned);
        let spec = DataSpec { builtin: Some("dapo_math".into()), ..DataSpec::default() };
        assert_eq!(wanted(&spec, &names).unwrap(), ["prompt", "reward_model", "data_source"]);
    }
}
