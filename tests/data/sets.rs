//! Reading sets: self-made files of every form, and the real ones where they lie beside the checkout.

use std::path::{Path, PathBuf};

use polars::prelude::*;
use qerl::data::read::{Source, load, read};
use qerl::data::{Columns, DataSpec, Problem};
use qerl::math::{Verdict, grade};

fn spec(builtin: &str) -> DataSpec {
    DataSpec { builtin: Some(builtin.into()), ..DataSpec::default() }
}

fn columns(prompt: &str, answer: &str) -> DataSpec {
    let columns = Columns { prompt: Some(prompt.into()), answer: Some(answer.into()), ..Columns::default() };
    DataSpec { columns, ..DataSpec::default() }
}

fn put(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn put_parquet(dir: &Path, name: &str, mut frame: DataFrame) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    ParquetWriter::new(std::fs::File::create(path).unwrap()).finish(&mut frame).unwrap();
}

#[test]
fn the_same_rows_come_out_of_every_format() {
    let dir = tempfile::tempdir().unwrap();
    put(
        dir.path(),
        "a.jsonl",
        "\u{feff}{\"question\": \"q1\", \"answer\": 1, \"id\": \"x\"}\n\n{\"question\": \"q2\", \"answer\": 0.5, \"id\": \"y\"}",
    );
    put(
        dir.path(),
        "b.json",
        "[{\"question\": \"q1\", \"answer\": 1.0, \"id\": \"x\"},\n {\"question\": \"q2\", \"answer\": \"0.5\", \"id\": \"y\"}]",
    );
    put(
        dir.path(),
        "c.json",
        "{\"question\": \"q1\", \"answer\": \"1\", \"id\": \"x\"}\n{\"question\": \"q2\",\n\"answer\": \"0.5\", \"id\": \"y\"}",
    );
    let frame = df!("question" => ["q1", "q2"], "junk" => [1i64, 2], "answer" => [1.0f64, 0.5], "id" => ["x", "y"]);
    put_parquet(dir.path(), "d.parquet", frame.unwrap());
    let want = [("x", "q1", "1"), ("y", "q2", "0.5")];
    for name in ["a.jsonl", "b.json", "c.json", "d.parquet"] {
        let problems = load(&dir.path().join(name), &columns("question", "answer")).unwrap();
        let got: Vec<_> = problems.iter().map(|p| (p.id.as_str(), p.prompt.as_str(), p.answer.as_str())).collect();
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn nested_columns_of_parquet_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let turn = |role: &str, content: &str| {
        let frame = df!("content" => [content], "role" => [role]).unwrap();
        frame.into_struct("turn".into()).into_series()
    };
    let prompts = [turn("user", "What is 1 + 1?"), turn("user", "What is 2 + 2?")];
    let gold =
        df!("ground_truth" => ["2", "4"], "style" => ["rule", "rule"]).unwrap().into_struct("reward_model".into());
    let domain = Series::new("domain".into(), [Series::new("".into(), ["A", "B"]), Series::new("".into(), ["C"])]);
    let frame = DataFrame::new_infer_height(vec![
        Series::new("prompt".into(), prompts).into(),
        gold.into_series().into(),
        domain.into(),
    ])
    .unwrap();
    put_parquet(dir.path(), "data/train-00000-of-00001.parquet", frame);
    let problems = load(dir.path(), &spec("dapo_math")).unwrap();
    assert_eq!((problems[1].prompt.as_str(), problems[1].answer.as_str()), ("What is 2 + 2?", "4"));
    let named = columns("prompt", "reward_model.ground_truth");
    assert_eq!(load(dir.path(), &named).unwrap()[0].answer, "2");
    let error = load(dir.path(), &columns("domain", "reward_model")).unwrap_err();
    assert!(error.to_string().contains("\"domain\" is no text"), "{error}");
}

#[test]
fn many_rows_come_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let n = 40_000i64;
    let questions: Vec<String> = (0..n).map(|i| format!("q{i}")).collect();
    let frame = df!("question" => questions, "answer" => (0..n).collect::<Vec<i64>>()).unwrap();
    put_parquet(dir.path(), "train.parquet", frame);
    let problems = load(dir.path(), &DataSpec::default()).unwrap();
    assert_eq!(problems.len(), n as usize);
    assert!(problems.iter().enumerate().all(|(i, p)| p.answer == i.to_string() && p.id == p.answer));
}

#[test]
fn shards_are_one_set_and_snapshots_may_be_links() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "blobs/1", "{\"problem\": \"a\", \"answer\": \"1\"}\n");
    put(dir.path(), "blobs/2", "{\"problem\": \"b\", \"answer\": \"2\"}\n");
    let snapshot = dir.path().join("snapshots/0");
    std::fs::create_dir_all(snapshot.join("data")).unwrap();
    for (name, blob) in [("train-00001-of-00002.jsonl", "2"), ("train-00000-of-00002.jsonl", "1")] {
        std::os::unix::fs::symlink(format!("../../../blobs/{blob}"), snapshot.join("data").join(name)).unwrap();
    }
    let problems = load(&snapshot, &spec("bigmath")).unwrap();
    let got: Vec<_> = problems.iter().map(|p| (p.id.as_str(), p.prompt.as_str())).collect();
    assert_eq!(got, [("0", "a"), ("1", "b")]);
    std::fs::remove_file(dir.path().join("blobs/2")).unwrap();
    assert!(load(&snapshot, &spec("bigmath")).unwrap_err().hint_text().unwrap().contains("fetch it again"));
}

#[test]
fn rows_without_an_answer_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "{\"question\": \"a\", \"answer\": \"1\"}\n{\"question\": \"b\", \"answer\": null}\n{\"question\": \"c\"}\n{\"question\": \" \", \"answer\": \"2\"}\n";
    put(dir.path(), "test.jsonl", lines);
    let error = load(dir.path(), &DataSpec::default()).unwrap_err().to_string();
    for part in [
        "3 of 4 rows",
        "test.jsonl row 2 (\"answer\" is null)",
        "row 3 (\"answer\" is absent)",
        "row 4 (\"question\" is empty)",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // Few of a scraped set are left out, and said.
    let many: String = (0..199).map(|i| format!("{{\"problem\": \"p{i}\", \"answer\": \"1\"}}\n")).collect();
    put(dir.path(), "big/train.jsonl", &(many + "{\"problem\": \"x\", \"answer\": \"\"}\n"));
    let mut count = 0;
    let found =
        read(&Source::Place(dir.path().join("big")), &spec("bigmath"), &qerl::control::Cancel::new(), &mut |_| {
            count += 1;
            Ok(())
        });
    let found = found.unwrap();
    assert_eq!((count, found.rows, found.left_out), (199, 200, 1));
    assert!(found.warnings[0].contains("row 200"), "{:?}", found.warnings);
    put(
        dir.path(),
        "wrong/train.jsonl",
        "{\"problem\": \"p\", \"answer\": \"1\"}\n{\"problem\": \"q\", \"answer\": \"\"}\n",
    );
    assert!(load(&dir.path().join("wrong"), &spec("bigmath")).is_err(), "half of them: a wrong column");
}

#[test]
fn bad_files_are_refused_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let error = load(&path, &DataSpec::default()).unwrap_err();
        format!("{error} | {}", error.hint_text().unwrap_or(""))
    };
    assert!(
        refused("a.jsonl", b"{\"problem\": \"a\", \"answer\": \"1\"}\n{oops\n").contains("line 2 is not a JSON object")
    );
    assert!(refused("b.jsonl", b"[1]\n").contains("line 1"));
    assert!(refused("c.jsonl", b"\n").contains("empty"));
    assert!(refused("d.json", b"{\"a\": ").contains("d.json"));
    assert!(refused("e.json", b"[{\"text\": 1}]").contains("the columns are: text"));
    assert!(refused("f.parquet", b"PAR1 not really PAR1").contains("no readable parquet"));
    assert!(refused("g.parquet", b"").contains("parquet"));
    assert!(refused("h.csv", b"a,b").contains(".jsonl"));
    let mut whole = Vec::new();
    ParquetWriter::new(&mut whole).finish(&mut df!("problem" => ["a"; 50], "answer" => ["1"; 50]).unwrap()).unwrap();
    for at in [4, 40, whole.len() / 2, whole.len() - 12] {
        let mut damaged = whole.clone();
        damaged[at..at + 4].copy_from_slice(&[0xff; 4]);
        let path = dir.path().join("i.parquet");
        std::fs::write(&path, &damaged).unwrap();
        // Either refused or read: never the end of the program.
        let _ = load(&path, &DataSpec::default());
        std::fs::write(&path, &whole[..whole.len() - at]).unwrap();
        assert!(load(&path, &DataSpec::default()).is_err());
    }
    assert!(load(&dir.path().join("none"), &DataSpec::default()).is_err());
}

fn shared() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if dir.is_dir() {
        return Some(dir);
    }
    println!("skipped: there is no ../shared/data");
    None
}

fn solved(problems: &[Problem]) -> usize {
    problems.iter().filter(|p| grade(&p.answer, p.solution.as_deref().unwrap()).verdict == Verdict::Correct).count()
}

#[test]
fn real_sets_have_their_known_sizes_and_forms() {
    let Some(dir) = shared() else { return };
    let set = |builtin: &str, file: &str| load(&dir.join(file), &spec(builtin)).unwrap();
    let test = set("gsm8k", "gsm8k_test.jsonl");
    assert_eq!((test.len(), solved(&test)), (1319, 1319));
    assert!(test.iter().all(|p| !p.answer.contains(',')));
    assert_eq!(set("gsm8k", "gsm8k_train.jsonl").len(), 7473);
    let math = set("math500", "math500.jsonl");
    assert_eq!((math.len(), solved(&math)), (500, 500));
    assert!(math.iter().all(|p| p.id.contains('/') && p.tags.contains_key("level") && p.tags.contains_key("subject")));
    let sizes = [("aime24", 30), ("aime25", 30), ("amc23", 40)];
    for (name, n) in sizes {
        assert_eq!(set(name, &format!("{name}.jsonl")).len(), n, "{name}");
    }
    assert_eq!(set("bigmath", "bigmath_sample.jsonl").len(), 4092);
}

#[test]
fn both_hub_forms_of_bigmath_are_read_in_all_configurations() {
    let Some(dir) = shared() else { return };
    let synthlabs = load(&dir.join("fixture_synthlabs"), &spec("bigmath")).unwrap();
    assert_eq!(synthlabs.len(), 119, "120 less one without an answer");
    assert!(synthlabs.iter().any(|p| p.tags.contains_key("llama8b_solve_rate")));
    assert!(synthlabs.iter().any(|p| !p.tags.contains_key("llama8b_solve_rate")), "rates may be null");
    let same = load(&dir.join("fixture_synthlabs/train.jsonl"), &spec("bigmath")).unwrap();
    assert_eq!(same, synthlabs);
    for config in ["all", "level_1", "level_2", "level_3", "level_4", "level_5", "level_3_4_5", "level_4_5"] {
        let spec = DataSpec { config: Some(config.into()), split: Some("train".into()), ..spec("bigmath") };
        let problems = load(&dir.join("fixture_openr1"), &spec).unwrap();
        assert!(!problems.is_empty() && problems.iter().all(|p| !p.answer.is_empty()), "{config}");
    }
    let all = load(&dir.join("fixture_openr1"), &spec("bigmath")).unwrap();
    assert!(all.len() > 100);
}
