use serde_json::{Value, json};

use super::*;

/// A folder with a word-level tokenizer: `<s>` 0, `</s>` 1, `<think>` 2 (special), `a` 3, `b` 4, blank 5, ...
fn folder(post_processor: Value, config: Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let added = |id: usize, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(0, "<s>"), added(1, "</s>"), added(2, "<think>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
        "post_processor": post_processor,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "unk_token": "?",
            "vocab": {"<s>": 0, "</s>": 1, "<think>": 2, "a": 3, "b": 4, " ": 5, "?": 6, "\n": 7}},
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [1, 6]}"#).unwrap();
    dir
}

fn adds_start() -> Value {
    json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})
}

#[test]
fn a_prompt_has_exactly_one_start_where_the_model_has_one() {
    let ids = |post: Value, config: Value, text: &str| {
        let dir = folder(post, config);
        Text::open(dir.path()).unwrap().encode_prompt(text).unwrap()
    };
    let named = json!({"bos_token": {"content": "<s>"}});
    assert_eq!(ids(adds_start(), named.clone(), "ab"), [0, 3, 4]);
    assert_eq!(ids(adds_start(), named.clone(), "<s>ab"), [0, 3, 4], "the template wrote it");
    assert_eq!(ids(adds_start(), named.clone(), "<s><s>ab"), [0, 3, 4]);
    assert_eq!(ids(Value::Null, named.clone(), "ab"), [3, 4], "known, but not wanted");
    assert_eq!(ids(Value::Null, named, "<s>ab"), [0, 3, 4]);
    assert_eq!(ids(Value::Null, json!({"bos_token": "<s>", "add_bos_token": true}), "ab"), [0, 3, 4]);
    assert_eq!(ids(adds_start(), json!({"bos_token": "<s>", "add_bos_token": false}), "ab"), [3, 4]);
    assert_eq!(ids(adds_start(), json!({"bos_token": null}), "ab"), [3, 4]);
}

#[test]
fn completions_are_text_without_special_tokens_but_with_their_tags() {
    let dir = folder(adds_start(), json!({"bos_token": "<s>", "eos_token": "</s>"}));
    let text = Text::open(dir.path()).unwrap();
    assert_eq!(text.encode("<think>a b").unwrap(), [2, 3, 5, 4], "nothing is added, nothing is cut");
    assert_eq!(text.decode(&[0, 2, 3, 5, 4, 1]).unwrap(), "<think>a b");
    assert_eq!((text.eos(), text.bos(), text.vocabulary()), (&[1, 6][..], Some(0), 8));
    assert_eq!(text.decode(&[999]).unwrap(), "");
}

#[test]
fn without_a_chat_template_the_texts_stand_one_behind_the_other() {
    let dir = folder(Value::Null, json!({}));
    let messages = [Message::new("system", "b"), Message::new("user", "a")];
    assert_eq!(Text::open(dir.path()).unwrap().render(&messages).unwrap(), "b\n\na\n\n");
}

#[test]
fn the_chat_template_is_looked_for_where_transformers_does() {
    let say = |word: &str| format!("{{{{ '{word}' }}}}");
    let render =
        |dir: &tempfile::TempDir| Text::open(dir.path()).unwrap().render(&[Message::new("user", "x")]).unwrap();
    let dir = folder(Value::Null, json!({}));
    std::fs::write(dir.path().join("chat_template.json"), json!({"chat_template": say("json")}).to_string()).unwrap();
    assert_eq!(render(&dir), "json");
    let several = json!([{"name": "tool_use", "template": say("tool")}, {"name": "default", "template": say("list")}]);
    let config = json!({"chat_template": several}).to_string();
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    assert_eq!(render(&dir), "list");
    std::fs::write(dir.path().join("chat_template.jinja"), say("file")).unwrap();
    assert_eq!(render(&dir), "file");
}

#[test]
fn folders_without_a_tokenizer_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let error = Text::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("no tokenizer.json") && error.hint_text().is_some());
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(Text::open(dir.path()).unwrap_err().to_string().contains("cannot be read"));
}
