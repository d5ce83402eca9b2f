//! A data set's prompts in a model's language.

use std::path::{Path, PathBuf};

use qerl::data::prompt::Prompter;
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
