//! `qerl grade` and `qerl eval` as a shell sees them.

use std::path::Path;
use std::process::{Command, Output};

use qerl::eval::{Record, files};
use qerl::math::Verdict;
use serde_json::{Value, json};

fn qerl(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_qerl"))
        .args(args)
        .current_dir(dir)
        .env("QERL_HOME", dir.join("home"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    text(bytes).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write_lines(path: &Path, rows: &[Value]) {
    std::fs::write(path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

#[test]
fn grade_adds_verdicts_and_tells_the_accuracy() {
    let dir = tempfile::tempdir().unwrap();
    write_lines(
        &dir.path().join("rows.jsonl"),
        &[
            json!({"id": "a", "gold": "1/2", "output": "it is \\boxed{0.5}", "expected": true, "kept": [1]}),
            json!({"id": 7, "gold": "4", "output": "\\boxed{5}", "expected": true}),
            json!({"gold": "4", "output": "no idea", "expected": false}),
            json!({"gold": null, "output": "\\boxed{5}"}),
            json!({"answer": 12, "completion": "#### 12"}),
        ],
    );
    let done = qerl(dir.path(), &["grade", "rows.jsonl"]);
    assert!(done.status.success(), "{done:?}");
    let rows = json_lines(&done.stdout);
    let verdicts: Vec<&str> = rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["correct", "wrong", "no_answer", "gold_unparseable", "correct"]);
    assert_eq!((&rows[0]["extracted"], &rows[0]["kept"]), (&json!("0.5"), &json!([1])));
    assert_eq!(rows[2]["extracted"], Value::Null);
    let said = text(&done.stderr);
    assert!(said.contains("5 rows: 2 correct, 1 wrong, 1 without an answer, 1 with an unreadable gold"), "{said}");
    assert!(
        said.contains("as expected in 2 of 3 rows: 66.7%") && said.contains("0 false accepts, 1 false rej"),
        "{said}"
    );

    let done = qerl(dir.path(), &["grade", "rows.jsonl", "--explain"]);
    let said = text(&done.stdout);
    for part in ["line 1 (a): correct", "by: last \\boxed", "line 2 (7): wrong, NOT as expected", "because"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let done = qerl(dir.path(), &["grade", "rows.jsonl", "--json", "--explain"]);
    assert!(done.stderr.is_empty());
    let rows = json_lines(&done.stdout);
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[0]["explain"]["rule"], "last \\boxed");
    let figures = json!({"n": 5, "correct": 2, "wrong": 1, "no_answer": 1, "gold_unparseable": 1, "expected": 3,
        "agree": 2, "false_accepts": 0, "false_rejects": 1});
    assert_eq!(rows[5]["summary"], figures);
}

#[test]
fn grade_says_which_line_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    for (line, what) in [
        ("{\"gold\": \"1\"}", "rows.jsonl:2: there is no completion in `output`, `completion`, `response`"),
        ("[1]", "rows.jsonl:2: this line is no JSON object"),
        ("{\"gold\": [1], \"output\": \"1\"}", "rows.jsonl:2: `gold` is neither text nor a number"),
        ("{\"gold\": \"1\", \"output\": \"1\", \"expected\": 1}", "rows.jsonl:2: `expected` is 1"),
        ("{\"gold\": \"1\", \"output\": \"\u{fffd}", "rows.jsonl:2"),
    ] {
        std::fs::write(dir.path().join("rows.jsonl"), format!("{{\"gold\": \"1\", \"output\": \"1\"}}\n{line}\n"))
            .unwrap();
        let done = qerl(dir.path(), &["grade", "rows.jsonl"]);
        assert_eq!(done.status.code(), Some(1));
        assert!(text(&done.stderr).contains(what), "{}", text(&done.stderr));
    }
    std::fs::write(dir.path().join("rows.jsonl"), "\n").unwrap();
    assert_eq!(qerl(dir.path(), &["grade", "rows.jsonl"]).status.code(), Some(1));
    let done = qerl(dir.path(), &["grade", "nowhere.jsonl"]);
    assert!(text(&done.stderr).contains("nowhere.jsonl"));
    let done = qerl(dir.path(), &["grade", "rows.jsonl", "--gold", "truth"]);
    assert!(!done.status.success());
}

fn record(id: usize, right: bool) -> Record {
    Record {
        data: "mine".into(),
        id: id.to_string(),
        prompt: format!("question {id}"),
        sample: 0,
        gold: "1".into(),
        completion: String::new(),
        extracted: Some(if right { "1" } else { "2" }.into()),
        verdict: if right { Verdict::Correct } else { Verdict::Wrong },
        tokens: 1,
        truncated: false,
    }
}

#[test]
fn compare_lists_what_flipped() {
    let dir = tempfile::tempdir().unwrap();
    let a: Vec<Record> = (0..20).map(|i| record(i, i < 10)).collect();
    let b: Vec<Record> = (0..21).map(|i| record(i, (1..16).contains(&i))).collect();
    files::append_lines(&dir.path().join("a.jsonl"), &a).unwrap();
    std::fs::create_dir(dir.path().join("b")).unwrap();
    files::write_parquet(&dir.path().join("b").join(files::RECORDS), &b).unwrap();
    let done = qerl(dir.path(), &["eval", "--compare", "a.jsonl", "b"]);
    assert!(done.status.success(), "{done:?}");
    let said = text(&done.stdout);
    let row: Vec<&str> = said.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["mine", "20", "50.0%", "75.0%", "+25.0"]);
    // 6 against 1: exact McNemar 0.125.
    assert_eq!(row[9..], ["0.125", "1", "6", "1"], "{said}");
    assert!(said.contains("flipped in mine:"), "{said}");
    let done = qerl(dir.path(), &["eval", "--compare", "a.jsonl", "b", "--json"]);
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    let flips: Vec<&str> =
        found["sets"][0]["flips"].as_array().unwrap().iter().map(|f| f["id"].as_str().unwrap()).collect();
    assert_eq!(flips, ["0", "10", "11", "12", "13", "14", "15"]);
    assert!((found["sets"][0]["paired"]["mcnemar_p"].as_f64().unwrap() - 0.125).abs() < 1e-12);
    let done = qerl(dir.path(), &["eval", "--compare", "a.jsonl", "nowhere"]);
    assert!(!done.status.success() && text(&done.stderr).contains("nowhere"));
}

#[test]
fn eval_refuses_what_cannot_work() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("model")).unwrap();
    std::fs::write(dir.path().join("model/config.json"), "{}").unwrap();
    write_lines(&dir.path().join("mine.jsonl"), &[json!({"problem": "1+1?", "answer": "2"})]);
    for (args, what, code) in [
        (&["eval"][..], "--data", 2),
        (&["eval", "nowhere", "--data", "arith"], "not a model's folder", 1),
        (&["eval", "tiny:train", "--data", "arith"], "nothing finished", 1),
        (&["eval", "model", "--data", "gsm8k"], "openai/gsm8k", 1),
        (&["eval", "model", "--data", "gsm8k=nowhere"], "no file or folder", 1),
        (&["eval", "model", "--data", "mien"], "is not here", 1),
        (&["eval", "model", "--data", "mine.jsonl", "--samples", "4"], "temperature 0", 2),
        (&["eval", "model", "--data", "mine.jsonl", "--adapter", "model"], "holds no adapter", 1),
        (&["eval", "model", "--data", "mine.jsonl", "--columns", "price=x"], "FIELD=NAME", 2),
        (&["eval", "model", "--data", "mine.jsonl", "--columns", "answer=x"], "mine", 1),
        (&["eval", "model", "--data", "mine.jsonl", "--out", "model"], "not empty", 2),
        (&["eval", "model", "--data", "mine.jsonl", "--checkpoint", "best"], "address", 2),
        (&["eval", "model", "--data", "mine.jsonl", "--shots", "2"], "shots-data", 2),
        // The tokenizer is missing.
        (&["eval", "model", "--data", "mine.jsonl"], "tokenizer.json", 1),
    ] {
        let done = qerl(dir.path(), args);
        let said = text(&done.stderr);
        assert!(said.contains(what), "{args:?}: {said}");
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
    }
}
