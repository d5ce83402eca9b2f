//! A data set's prompts in a model's language.

use std::path::{Path, PathBuf};

use qerl::data::prompt::Prompter;
use qerl::data::read::load;
use qerl::data::template::{BUILTINS, Form, Template};
use qerl::data::{DataSpec, Problem};
use qerl::math::{Verdict, grade};
use qerl::rl::language::Language;

/// A folder with SmolLM2's chat template and a tokenizer of single characters.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat/smollm2.jinja");
    std::fs::copy(source, dir.path().join("chat_template.jinja")).unwrap();
    let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let mut vocab: serde_json::Map<String, serde_json::Value> = serde_json::Map::new();
    for token in special.iter().map(ToString::to_string).chain(('\n'..='~').map(String::from)) {
        let id = vocab.len();
        vocab.insert(token, id.into());
    }
    let added: Vec<_> = special
        .iter()
        .enumerate()
        .map(|(id, content)| {
            serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<|endoftext|>"},
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = r#"{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": false}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": 2}"#).unwrap();
    dir
}

fn problem() -> Problem {
    Problem { id: "1".into(), prompt: "What is 2 + 3?".into(), answer: "5".into(), ..Problem::default() }
}

fn spec(template: &str) -> DataSpec {
    DataSpec { template: Some(template.into()), ..DataSpec::default() }
}

#[test]
fn each_template_asks_for_an_answer_form_that_the_grader_reads() {
    let dir = folder();
    for (template, asks) in [("qerl_think", "<answer>"), ("boxed", "\\boxed{}"), ("plain", "2 + 3")] {
        let prompter = Prompter::open(dir.path(), &spec(template), None).unwrap();
        let prompt = prompter.render(&problem()).unwrap();
        assert!(prompt.contains(asks) && prompt.ends_with("<|im_start|>assistant\n"), "{prompt}");
        assert_eq!(prompt.matches("What is 2 + 3?").count(), 1);
        let ids = Language::prompt(&prompter, &problem()).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == 1).count(), prompt.matches("<|im_start|>").count());
        let ideal = prompter.ideal(&problem());
        assert_eq!(grade("5", &ideal).verdict, Verdict::Correct);
        let mut spoken = prompter.encode(&ideal).unwrap();
        spoken.push(prompter.eos()[0]);
        assert_eq!(Language::decode(&prompter, &spoken).unwrap(), ideal);
    }
}

#[test]
fn the_system_prompt_is_the_data_sets_then_the_templates_then_the_models() {
    let dir = folder();
    let render = |spec: &DataSpec| Prompter::open(dir.path(), spec, None).unwrap().render(&problem()).unwrap();
    assert!(render(&spec("plain")).contains("named SmolLM"));
    assert!(render(&spec("qerl_think")).contains("step by step"));
    let own = DataSpec { system: Some("Only digits.".into()), ..spec("qerl_think") };
    assert!(render(&own).starts_with("<|im_start|>system\nOnly digits.<|im_end|>\n<|im_start|>user\nWhat is 2 + 3?"));
    let none = DataSpec { system: Some(String::new()), ..spec("qerl_think") };
    assert!(render(&none).contains("named SmolLM"), "the chat template's own");
}

#[test]
fn a_file_is_a_template_given_by_its_text() {
    let dir = folder();
    let text = "{% set system %}Be {{ tags.tone }}.{% endset %}{{ problem }} Box it: \\boxed{}";
    let mut problem = problem();
    problem.tags.insert("tone".into(), "brief".into());
    assert!(Prompter::open(dir.path(), &spec("mine.j2"), None).is_err());
    let strict = Prompter::open(dir.path(), &spec("mine.j2"), Some(text));
    assert!(strict.unwrap_err().to_string().contains("undefined"), "not every problem has this tag");
    let text = text.replace("tags.tone", "tags.tone | default('calm')");
    let prompter = Prompter::open(dir.path(), &spec("mine.j2"), Some(&text)).unwrap();
    assert!(prompter.render(&problem).unwrap().contains("Be brief."));
    assert_eq!(prompter.ideal(&problem), "\\boxed{5}");
    let inside = DataSpec { template_text: Some(text), ..spec("mine.j2") };
    assert_eq!(
        Prompter::open(dir.path(), &inside, None).unwrap().render(&problem).unwrap(),
        prompter.render(&problem).unwrap()
    );
}

/// The built-in templates and one file for each form of answer that a prompt can ask for.
fn templates() -> Vec<(String, Template)> {
    let files = [
        ("hashes", "{{ problem }}\nEnd with #### and the answer."),
        ("phrase", "{{ problem }}\nEnd with a line `Answer:` and the answer."),
        ("box", "{{ problem }} \\boxed{}"),
        ("tags", "{{ problem }} <answer></answer>"),
    ];
    let mut all: Vec<(String, Template)> =
        BUILTINS.iter().map(|name| ((*name).to_owned(), Template::open(&spec(name), None).unwrap())).collect();
    all.extend(files.map(|(name, text)| (name.to_owned(), Template::open(&spec("mine.j2"), Some(text)).unwrap())));
    all
}

/// Golds that are not graded right in the form that a template asks for. A template that asks for no form cannot be held
/// to one.
fn refused(problems: &[Problem]) -> Vec<String> {
    let mut bad = Vec::new();
    for (name, template) in templates() {
        if template.form() == Form::Free {
            continue;
        }
        for problem in problems {
            // Alone, and behind reasoning with numbers of its own.
            let reasoned = Problem { solution: Some("First 17 + 2, so 19 and -3.".into()), ..problem.clone() };
            for problem in [problem, &reasoned] {
                let ideal = template.ideal(problem);
                if grade(&problem.answer, &ideal).verdict != Verdict::Correct {
                    bad.push(format!("{name}: {ideal:?}"));
                }
            }
        }
    }
    bad
}

#[test]
fn every_gold_in_every_form_that_a_prompt_asks_for_is_right() {
    let forms: Vec<Form> = templates().iter().map(|(_, template)| template.form()).collect();
    for form in [Form::Tags, Form::Boxed, Form::Hashes, Form::Phrase] {
        assert!(forms.contains(&form), "{form:?} is asked for by no template here");
    }
    // The labelled answers of the grader's tests hold every kind of gold.
    let mut golds = std::collections::BTreeSet::new();
    for file in ["kinds", "own", "more"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/grading/{file}.jsonl"));
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            golds.insert(row["gold"].as_str().unwrap().to_owned());
        }
    }
    golds.retain(|gold| !gold.trim().is_empty());
    assert!(golds.len() > 400);
    let problems: Vec<Problem> = golds.into_iter().map(|answer| Problem { answer, ..problem() }).collect();
    let bad = refused(&problems);
    assert!(bad.is_empty(), "{} of {}: {:#?}", bad.len(), problems.len(), &bad[..bad.len().min(20)]);
}

#[test]
fn every_gold_of_the_real_sets_in_every_form_is_right() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if !dir.is_dir() {
        println!("skipped: there is no ../shared/data");
        return;
    }
    for (builtin, file) in [
        ("gsm8k", "gsm8k_test"),
        ("gsm8k", "gsm8k_train"),
        ("math500", "math500"),
        ("aime24", "aime24"),
        ("aime25", "aime25"),
        ("amc23", "amc23"),
        ("bigmath", "bigmath_sample"),
    ] {
        let spec = DataSpec { builtin: Some(builtin.into()), ..DataSpec::default() };
        let problems = load(&dir.join(format!("{file}.jsonl")), &spec).unwrap();
        let bad = refused(&problems);
        assert!(bad.is_empty(), "{file}: {} of {}: {:#?}", bad.len(), problems.len(), &bad[..bad.len().min(20)]);
    }
}
