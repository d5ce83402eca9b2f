//! The evaluation stage on a policy that adds: figures, resuming, few-shot prompts, contamination, comparison; and
//! the command line over them.

#[path = "eval/cli.rs"]
mod cli;
#[path = "eval/fake.rs"]
mod fake;
#[path = "eval/statistics.rs"]
mod statistics;

use fake::{Adders, Bench, encode, sums};
use qerl::engine::Trainable;
use qerl::error::Kind as Trouble;
use qerl::eval::{Record, Summary, compare, files, stats};
use qerl::math::Verdict;
use qerl::stages::Kind;
use qerl::store::{Handle, Location};
use serde_json::json;

fn records(bench: &Bench, name: &str) -> Vec<Record> {
    files::read(&bench.root.path().join(name).join("output")).unwrap()
}

fn summary(bench: &Bench, name: &str) -> Summary {
    files::read_summary(&bench.root.path().join(name).join("output")).unwrap()
}

#[test]
fn every_completion_is_kept_and_counted() {
    let bench = Bench::new();
    let adders = Adders::new(2);
    let gsm8k = bench.problems("all", json!({"builtin": "gsm8k"}), &sums(40));
    let mut with_holdout = sums(12);
    with_holdout[3].answer = " ".to_owned();
    let mine = bench.problems("holdout", json!({}), &with_holdout);
    let model = bench.model();
    let inputs = [("policy", &model, None), ("data.0", &gsm8k, None), ("data.1", &mine, Some("holdout"))];
    let config = json!({"policy": "policy", "data": ["gsm8k", "mine.holdout"], "limit": 30});
    let output = bench.eval("e", &inputs, config, &adders).unwrap();
    assert_eq!(output.declared, ["records.parquet", "summary.json"]);
    assert!(matches!(output.handle, Handle::Eval));
    assert_eq!(adders.log.lock().unwrap().loaded, [Trainable::None]);

    let records = records(&bench, "e");
    assert_eq!(records.len(), 30 + 12);
    let found = summary(&bench, "e");
    let names: Vec<&str> = found.sets.iter().map(|s| s.data.as_str()).collect();
    assert_eq!(names, ["gsm8k", "mine.holdout"]);
    let set = &found.sets[0];
    let right = records.iter().filter(|r| r.data == "gsm8k" && r.verdict == Verdict::Correct).count();
    assert!(right > 5 && right < 25, "{right} of 30");
    assert_eq!((set.n, set.samples, set.accuracy), (30, 1, right as f64 / 30.0));
    assert_eq!((set.interval.low, set.interval.high), stats::wilson(right, 30));
    assert_eq!(set.interval.method, "wilson");
    assert_eq!(output.summary["gsm8k"]["accuracy"], right as f64 / 30.0);
    // Right answers stand behind ####; strict wants them there, flexible takes wrong ones' last number just so.
    let gsm8k = set.gsm8k.unwrap();
    assert_eq!((gsm8k.strict, gsm8k.flexible), (set.accuracy, set.accuracy));
    assert!(found.sets[1].gsm8k.is_none());
    assert_eq!(found.sets[1].gold_unparseable, 1);
    let blank = records.iter().find(|r| r.data == "mine.holdout" && r.id == "3").unwrap();
    assert_eq!(blank.verdict, Verdict::GoldUnparseable, "an empty gold is never right");
    let rambling: Vec<&Record> = records.iter().filter(|r| r.truncated).collect();
    assert!(!rambling.is_empty() && rambling.iter().all(|r| r.tokens == 1024));
    let first = &records[0];
    assert_eq!(first.prompt, "How many apples are 0+0?");
    assert!(records.iter().all(|r| r.truncated || r.tokens == encode(&r.completion).len() + 1), "the EOS counts");
    assert_eq!(*bench.ear.total.lock().unwrap(), 42);
    let done = bench.ear.done.lock().unwrap();
    assert_eq!(done.last().unwrap().0, 42);
    assert!(done.windows(2).all(|w| w[0].0 <= w[1].0), "progress never goes back");
    assert!(done.last().unwrap().1.contains("% correct"), "{:?}", done.last());
}

#[test]
fn repeats_give_pass_and_majority() {
    let bench = Bench::new();
    let data = bench.problems("all", json!({}), &sums(25));
    let model = bench.model();
    let inputs = [("policy", &model, None), ("data.0", &data, None)];
    let config = json!({"policy": "policy", "data": ["mine"], "samples": 8, "temperature": 0.6, "k": [1, 4, 8]});
    bench.eval("e", &inputs, config, &Adders::new(2)).unwrap();
    let (records, found) = (records(&bench, "e"), summary(&bench, "e"));
    let set = &found.sets[0];
    let right: Vec<usize> =
        records.chunks(8).map(|c| c.iter().filter(|r| r.verdict == Verdict::Correct).count()).collect();
    for k in [1, 4, 8] {
        let want: f64 = right.iter().map(|c| stats::pass_at(8, *c, k).unwrap()).sum::<f64>() / 25.0;
        assert!((set.pass_at[&k] - want).abs() < 1e-12);
    }
    assert!((set.pass_at[&1] - set.accuracy).abs() < 1e-12, "pass@1 is the mean");
    assert_eq!(set.interval.method, "bootstrap");
    let shares: Vec<f64> = right.iter().map(|c| *c as f64 / 8.0).collect();
    assert_eq!(set.standard_error, stats::clustered_error(&shares));
    // Answers here are plain numbers: equal text is the same class. Ties go to the first, abstentions do not vote.
    let winner = |c: &[Record]| {
        let said: Vec<&str> = c.iter().filter_map(|r| r.extracted.as_deref()).collect();
        let count = |text: &str| said.iter().filter(|s| **s == text).count();
        let most = said.iter().map(|s| count(s)).max()?;
        said.iter().find(|s| count(s) == most).map(|s| (*s).to_owned())
    };
    let votes = records.chunks(8).filter(|c| winner(c).as_ref() == Some(&c[0].gold)).count();
    assert_eq!(set.maj_at[&8], votes as f64 / 25.0);
    assert!(set.maj_at[&1] < set.pass_at[&8]);
    let seeds: std::collections::BTreeSet<_> = records.iter().map(|r| (&r.id, r.sample)).collect();
    assert_eq!(seeds.len(), 200);
}

#[test]
fn an_interrupted_evaluation_goes_on_where_it_was() {
    let bench = Bench::new();
    let (a, b) = (bench.problems("all", json!({}), &sums(150)), bench.problems("all", json!({"n": 1}), &sums(70)));
    let model = bench.model();
    let inputs = [("policy", &model, None), ("data.0", &a, None), ("data.1", &b, None)];
    // 64 completions at once.
    let config = json!({"policy": "policy", "data": ["a", "b"], "samples": 2, "temperature": 1.0,
        "max_new_tokens": 8192});
    bench.eval("whole", &inputs, config.clone(), &Adders::new(2)).unwrap();
    for (cancel_in, torn) in [(1, false), (3, false), (4, true), (7, false)] {
        let name = format!("cut{cancel_in}");
        let first = Adders::new(2);
        first.log.lock().unwrap().cancel_in = Some(cancel_in);
        let error = bench.eval(&name, &inputs, config.clone(), &first).unwrap_err();
        assert_eq!(error.kind(), Trouble::Cancelled, "{error}");
        let journal = bench.root.path().join(&name).join("work/records.0.jsonl");
        if torn {
            // Cut within the two bytes of an é of the last chunk, as a crash may.
            let bytes = std::fs::read(&journal).unwrap();
            let at = bytes.windows(2).rposition(|w| w == "é".as_bytes()).unwrap();
            std::fs::write(&journal, &bytes[..=at]).unwrap();
        }
        let second = Adders::new(2);
        bench.eval(&name, &inputs, config.clone(), &second).unwrap();
        for file in ["records.parquet", "summary.json"] {
            assert!(bench.bytes(&name, file) == bench.bytes("whole", file), "{file} after a cut in call {cancel_in}");
        }
        let kept = if torn { 2 } else { cancel_in - 1 };
        // 300 completions in five chunks, 140 in three.
        let want = if kept < 5 { 440 - 64 * kept } else { 140 - 64 * (kept - 5) };
        assert_eq!(second.log.lock().unwrap().requests.len(), want, "a cut in call {cancel_in}");
    }
    assert!(bench.ear.heard("64 of 150 problems are kept"), "{:?}", bench.ear.lines);
}

#[test]
fn wrong_settings_and_sets_fail_before_anything_is_loaded() {
    let bench = Bench::new();
    let data = bench.problems("all", json!({}), &sums(3));
    let model = bench.model();
    let adders = Adders::new(4);
    let run = |name: &str, data: &qerl::store::Artifact, change: serde_json::Value| {
        let mut config = json!({"policy": "policy", "data": ["mine"]});
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let inputs = [("policy", &model, None), ("data.0", data, None), ("data.1", data, None)];
        bench.eval(name, &inputs, config, &adders).unwrap_err()
    };
    for (change, what) in [
        (json!({"samples": 4}), "at temperature 0"),
        (json!({"samples": 4, "temperature": 0.6, "k": [5]}), "pass@5"),
        (json!({"k": [0]}), "pass@0"),
        (json!({"data": []}), "no data"),
        (json!({"data": ["mine", "mine"]}), "twice"),
        (json!({"temperature": -1.0}), "temperature"),
        (json!({"top_p": 0.0}), "top_p"),
        (json!({"limit": 0}), "at least 1"),
        (json!({"shots": 2}), "shots_data"),
    ] {
        let error = run("wrong", &data, change.clone());
        assert!(error.to_string().contains(what) && error.hint_text().is_some(), "{change}: {error}");
        assert_eq!(error.exit_code(), 2, "{error}");
    }
    let mut twice = sums(3);
    twice[2].id = "0".to_owned();
    let error = run("twice", &bench.problems("all", json!({}), &twice), json!({}));
    assert!(error.to_string().contains("mine: problems 0 and 2 have the same id"), "{error}");
    let error = run("none", &bench.problems("all", json!({}), &[]), json!({}));
    assert!(error.to_string().contains("no problem"), "{error}");
    let error = run("part", &bench.problems("train", json!({}), &sums(2)), json!({}));
    assert!(error.hint_text().unwrap().contains("train"), "{error}");
    let error = run("template", &bench.problems("all", json!({"template": "broken"}), &sums(2)), json!({}));
    assert!(error.to_string().contains("2 of 2 gold answers"), "{error}");
    assert!(adders.log.lock().unwrap().loaded.is_empty());
}

#[test]
fn a_prompt_that_fills_the_context_counts_as_truncated() {
    let bench = Bench::new();
    let mut problems = sums(3);
    problems[1].prompt = "x".repeat(300);
    let data = bench.problems("all", json!({}), &problems);
    let model = bench.model();
    let adders = Adders { context_length: 300, ..Adders::new(4) };
    let inputs = [("policy", &model, None), ("data.0", &data, None)];
    bench.eval("e", &inputs, json!({"policy": "policy", "data": ["mine"]}), &adders).unwrap();
    let verdicts: Vec<(Verdict, bool)> = records(&bench, "e").iter().map(|r| (r.verdict, r.truncated)).collect();
    assert_eq!(verdicts, [(Verdict::Correct, false), (Verdict::NoAnswer, true), (Verdict::Correct, false)]);
    assert!(bench.ear.heard("1 prompts fill the model's context"));
}

#[test]
fn shots_stand_before_the_question_and_are_no_questions() {
    let bench = Bench::new();
    let questions = bench.problems("all", json!({}), &sums(3));
    let pool = bench.problems("train", json!({}), &sums(6));
    let model = bench.model();
    let adders = Adders::new(4);
    let inputs = [("policy", &model, None), ("data.0", &questions, None), ("shots_data", &pool, Some("holdout"))];
    let config = json!({"policy": "policy", "data": ["mine"], "shots": 2, "shots_data": "pool"});
    bench.eval("e", &inputs, config, &adders).unwrap();
    // A pipeline names the part for evaluation; examples come from the one for training.
    let want = "Problem: How many apples are 21+3?\nSolution: #### 24\n\n\
                Problem: How many apples are 28+4?\nSolution: #### 32\n\n\
                Problem: How many apples are 0+0?\nSolution:";
    assert_eq!(&*adders.log.lock().unwrap().requests[0].prompt, encode(want));
    assert_eq!(records(&bench, "e")[0].prompt, "How many apples are 0+0?", "the record keeps the question");
    assert_eq!(summary(&bench, "e").sets[0].accuracy, 1.0);
}

#[test]
fn training_data_behind_the_policy_is_compared_with_the_questions() {
    let bench = Bench::new();
    let questions = bench.problems("all", json!({}), &sums(5));
    let mut seen = sums(8)[3..].to_vec();
    seen[0].prompt = "how many APPLES are 21 + 3".to_owned();
    let train_set = bench.problems("train", json!({}), &seen);
    let watched = bench.problems("all", json!({"n": 2}), &sums(1));
    let handle = || Handle::Models { checkpoints: [("last".to_owned(), ".".to_owned())].into() };
    let config_file = ("config.json", r#"{"eos_token_id": 0}"#);
    let first = bench.put(Kind::Sft, json!({"a": 1}), &[config_file], handle(), &[("data", &train_set, Some("train"))]);
    let trained = bench.put(
        Kind::Train,
        json!({"b": 1}),
        &[config_file],
        handle(),
        &[("policy", &first, None), ("eval_data", &watched, Some("all"))],
    );
    let config = json!({"policy": "policy", "data": ["mine"]});
    let inputs = [("policy", &trained, None), ("data.0", &questions, None)];
    bench.eval("e", &inputs, config.clone(), &Adders::new(1)).unwrap();
    let found = summary(&bench, "e").sets[0].contamination.clone().unwrap();
    assert_eq!((found.checked, found.trained, found.exact), (5, 5, 2));
    assert_eq!(found.rows, [3, 4], "eval_data was not trained on");
    assert!(bench.ear.heard("2 of 5 problems are training problems too"));

    let model = bench.model();
    let inputs = [("policy", &model, None), ("data.0", &questions, None)];
    bench.eval("base", &inputs, config.clone(), &Adders::new(1)).unwrap();
    assert!(summary(&bench, "base").sets[0].contamination.is_none(), "nothing is known of a downloaded model");

    // The set is gone from the store: said, not guessed.
    std::fs::remove_dir_all(bench.store.entry(&train_set.meta.fingerprint).unwrap()).unwrap();
    let inputs = [("policy", &trained, None), ("data.0", &questions, None)];
    bench.eval("gone", &inputs, config, &Adders::new(1)).unwrap();
    assert!(summary(&bench, "gone").sets[0].contamination.is_none());
    assert!(bench.ear.heard("no longer in the store"));
}

#[test]
fn an_adapter_is_evaluated_at_the_checkpoint_asked_for() {
    let bench = Bench::new();
    let data = bench.problems("all", json!({}), &sums(2));
    let model = Location::Local { path: bench.root.path().to_owned() };
    let handle = Handle::Adapter { model, adapters: [("last".to_owned(), ".".to_owned())].into() };
    let adapter = bench.put(Kind::Lora, json!({}), &[("adapter_config.json", "{}")], handle, &[]);
    let inputs = [("policy", &adapter, None), ("data.0", &data, None)];
    bench.eval("e", &inputs, json!({"policy": "policy", "data": ["mine"]}), &Adders::new(4)).unwrap();
    assert_eq!(summary(&bench, "e").sets[0].accuracy, 1.0);
}

#[test]
fn two_evaluations_are_compared_question_by_question() {
    let bench = Bench::new();
    let data = bench.problems("all", json!({}), &sums(60));
    let model = bench.model();
    let inputs = [("policy", &model, None), ("data.0", &data, None)];
    let config = json!({"policy": "policy", "data": ["mine"], "samples": 3, "temperature": 1.0});
    bench.eval("weak", &inputs, config.clone(), &Adders::new(1)).unwrap();
    bench.eval("strong", &inputs, config, &Adders::new(3)).unwrap();
    let (weak, mut strong) = (records(&bench, "weak"), records(&bench, "strong"));
    let found = &compare(&weak, &strong, 7).unwrap()[0];
    assert_eq!((found.paired.n, found.unmatched, found.paired.only_a), (60, 0, 0));
    assert_eq!(found.flips.len(), found.paired.only_b);
    assert!(found.paired.only_b > 10 && found.paired.mcnemar_p < 0.01 && found.paired.low > 0.2, "{found:?}");
    assert!((found.b - found.a - found.paired.difference).abs() < 1e-12);
    let flip = &found.flips[0];
    assert!(flip.a < 0.5 && flip.b > 0.5 && flip.prompt.contains("apples"));
    // Another gold under the same id is another question; what only one has is left out.
    strong.iter_mut().filter(|r| r.id == "7").for_each(|r| r.gold = "-1".to_owned());
    strong.retain(|r| r.id != "9");
    let found = &compare(&weak, &strong, 7).unwrap()[0];
    assert_eq!((found.paired.n, found.unmatched), (58, 3));
    strong.iter_mut().for_each(|r| r.data = "other".to_owned());
    assert!(compare(&weak, &strong, 7).unwrap_err().to_string().contains("no question in common"));
}

#[test]
fn records_survive_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let record = |id: &str, extracted: Option<&str>, verdict| Record {
        data: "mine".into(),
        id: id.into(),
        prompt: "what\nis \"é\"?".into(),
        sample: 0,
        gold: "\\frac{1}{2}".into(),
        completion: "\u{0}\u{1F600}".into(),
        extracted: extracted.map(str::to_owned),
        verdict,
        tokens: 3,
        truncated: true,
    };
    let all = vec![
        record("a", Some(""), Verdict::Wrong),
        record("b", None, Verdict::NoAnswer),
        record("c", Some("1/2"), Verdict::Correct),
        record("d", None, Verdict::GoldUnparseable),
    ];
    let (parquet, lines) = (dir.path().join(files::RECORDS), dir.path().join("r.jsonl"));
    files::write_parquet(&parquet, &all).unwrap();
    assert_eq!(files::read(dir.path()).unwrap(), all);
    assert_eq!(files::read(&parquet).unwrap(), all);
    files::append_lines(&lines, &all[..1]).unwrap();
    files::append_lines(&lines, &all[1..]).unwrap();
    assert_eq!(files::read(&lines).unwrap(), all);
    std::fs::write(&lines, "{\"data\": 1}\n").unwrap();
    let error = files::read(&lines).unwrap_err();
    assert!(error.to_string().contains("r.jsonl:1") && error.hint_text().is_some(), "{error}");
    std::fs::write(&parquet, "PAR1").unwrap();
    assert!(files::read(&parquet).is_err());
}
