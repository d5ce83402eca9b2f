//! What one does around runs: what a change reruns and why, runs compared, a cache cleaned, reports reproduced, and
//! secrets kept.

mod shell;

use std::sync::OnceLock;

use serde_json::Value;
use shell::{Place, TINY, files, text};

/// A place whose pipeline has run once; tests only look at it.
fn ran() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = Place::new(TINY);
        place.good(&["run", "p.yaml", "--threads", "2"]);
        place
    })
}

#[test]
fn a_change_reruns_exactly_what_depends_on_it() {
    let after_train = ["after", "report", "train"];
    let from = |more: &[&str]| {
        let mut all: Vec<String> = after_train.iter().chain(more).map(|s| (*s).to_owned()).collect();
        all.sort();
        all
    };
    for (set, want) in [
        ("data.arith.n=301", from(&["data.arith", "warm"])),
        ("data.arith.template=plain", from(&["data.arith", "warm"])),
        ("data.arith.holdout={n: 20, seed: 2}", from(&["data.arith", "warm"])),
        ("base.format=nf4", from(&["base", "adapter", "warm"])),
        ("adapter.rank=8", from(&["adapter", "warm"])),
        ("adapter.seed=2", from(&["adapter", "warm"])),
        ("warm.lr=2e-3", from(&["warm"])),
        ("warm.train_prompt=true", from(&["warm"])),
        ("train.lr=2e-3", from(&[])),
        ("train.seed=9", from(&[])),
        ("train.rewards={accuracy: 1.0, length: 0.1}", from(&[])),
        ("train.policy=adapter", from(&[])),
        ("train.policy={stage: adapter, checkpoint: init}", from(&[])),
        ("after.max_new_tokens=13", vec!["after".to_owned(), "report".to_owned()]),
        ("after.limit=7", vec!["after".to_owned(), "report".to_owned()]),
        ("after.policy=warm", vec!["after".to_owned(), "report".to_owned()]),
        ("report.title=Other", vec!["report".to_owned()]),
    ] {
        let args = ["--set", set];
        let would = ran().would_run(&args);
        // `data.arith` is only split again by way of `n` and the like; nothing else may be touched.
        assert_eq!(would, want, "{set}");
    }
}

#[test]
fn what_changes_no_byte_reruns_nothing() {
    for set in [
        "train.resources={gpus: 1, cpus: 2, memory: 1GiB, time: 60, partition: gpu}",
        "train.checkpoint_every=7",
        "warm.checkpoint_every=7",
        "train.lr=0.001",
        "train.lr=1.0e-3",
        "train.needs=[base]",
        "adapter.alpha=4.0",
        "data.arith.n=3e2",
        "train.temperature=1.0",
    ] {
        assert_eq!(ran().would_run(&["--set", set]), Vec::<String>::new(), "{set}");
    }
    // Threads, jobs and the place: another folder, comments, another order of the keys.
    let (_, said) = ran().good(&["run", "p.yaml", "--threads", "1", "-j", "3"]);
    assert!(said.contains("nothing to do"), "{said}");
    let mut text = TINY.replace("id: adapter\n", "# a comment\n    id: adapter\n").replace("- # ", "-\n    # ");
    text = text.replace("{model: base, rank: 4, alpha: 4, seed: 1}", "{seed: 1, alpha: 4,   rank: 4, model: base}");
    assert_ne!(text, TINY);
    std::fs::create_dir_all(ran().path("elsewhere")).unwrap();
    std::fs::write(ran().path("elsewhere/p.yaml"), text).unwrap();
    let plan = ran().good(&["plan", "elsewhere/p.yaml"]).0;
    assert!(plan.contains("8 stages, 8 cached, 0 to run"), "{plan}");
}

#[test]
fn a_plan_says_what_changed_from_what_to_what() {
    let why = |sets: &[&str], stage: &str| {
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        ran().plan(&args)[stage].clone()
    };
    assert_eq!(why(&["train.lr=2e-3"], "train"), "lr changed from 1e-3 to 2e-3");
    assert_eq!(why(&["train.lr=2e-3"], "after"), "input train will run");
    assert_eq!(
        why(&["train.lr=2e-3", "train.seed=4"], "train"),
        "lr changed from 1e-3 to 2e-3, seed changed from 0 to 4"
    );
    assert_eq!(why(&["base.format=nf4"], "base"), "format changed from \"nvfp4\" to \"nf4\"");
    assert_eq!(
        why(&["train.aqn={sigma_start: 0.01, sigma_end: 0.001, stages: 2}"], "train").split(" to ").next(),
        Some("aqn changed from (unset)")
    );
    assert_eq!(why(&["data.arith.n=301"], "data.arith"), "spec.n changed from 300 to 301");
}

#[test]
fn runs_are_recorded_compared_and_removed() {
    let place = Place::new(TINY);
    place.good(&["run", "p.yaml", "--threads", "2"]);
    place.good(&["run", "p.yaml", "--threads", "2", "--set", "train.lr=5e-2", "--set", "after.limit=5"]);
    let said = place.fails(&["run", "p.yaml", "--set", "train.rewards={kindness: 1}"], 2);
    assert!(said.contains("kindness"), "what is not valid is no run: {said}");
    let all: Vec<Value> = serde_json::from_str(&place.good(&["runs", "ls", "--json"]).0).unwrap();
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|run| run["state"] == "done" && run["pipeline"] == "tiny"));
    assert_eq!(all[1]["overrides"]["sets"][0], "train.lr=5e-2");
    let shown = place.good(&["runs", "show", "last"]).0;
    assert!(shown.contains("cached   warm") && shown.contains("ran      train"), "{shown}");
    let events =
        std::fs::read_to_string(files(&place.path("home/runs")).iter().find(|p| p.ends_with("events.jsonl")).unwrap());
    assert!(events.unwrap().lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));

    let diff = place.good(&["diff", "last~1", "last"]).0;
    assert!(diff.contains("train\n  lr changed from 1e-3 to 5e-2"), "{diff}");
    assert!(diff.contains("after\n  limit changed from 6 to 5") && diff.contains("arith.holdout"), "{diff}");
    assert!(diff.contains("5 instances are the same") && !diff.contains("\nwarm"), "{diff}");
    let json: Value = serde_json::from_str(&place.good(&["diff", "last~1", "last", "--json"]).0).unwrap();
    let after = json["differences"].as_array().unwrap().iter().find(|d| d["name"] == "after").unwrap();
    assert_eq!((&after["sets"][0]["paired"]["n"], &after["sets"][0]["unmatched"]), (&5.into(), &1.into()));
    let same = place.good(&["diff", "last", "last"]).0;
    assert!(same.contains("no differences in 8 instances"), "{same}");

    let id = all[0]["id"].as_str().unwrap();
    place.good(&["runs", "rm", id]);
    assert!(place.fails(&["runs", "show", id], 1).contains("there is no run"));
    assert!(place.good(&["runs", "ls"]).0.contains("1 runs"));
    place.fails(&["runs", "show", "last~1"], 1);
    place.fails(&["diff", "last", "lastt"], 2);
    assert_eq!(place.store().list().unwrap().0.len(), 11, "records are no artifacts");
}

#[test]
fn failed_runs_keep_their_metrics_and_say_why() {
    let judge = "train.rewards={accuracy: 1.0, judge: {command: [sh, judge.sh], weight: 1.0, timeout: 20}}";
    let place = Place::new(TINY);
    // Answers to the gate and to two steps, then garbage.
    let script = "n=0\nwhile read -r line; do\n  n=$((n+1))\n  id=$(printf %s \"$line\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/')\n  \
                  if [ \"$n\" -gt 9 ]; then echo garbage; else echo \"{\\\"id\\\": $id, \\\"reward\\\": 0.5}\"; fi\ndone\n";
    std::fs::write(place.path("judge.sh"), script).unwrap();
    let args = ["run", "p.yaml", "--threads", "2", "--keep-going", "--set", judge, "--set", "train.steps=30"];
    let said = place.fails(&args, 1);
    assert!(said.contains("train: reward `judge` failed"), "{said}");
    let shown: Value = serde_json::from_str(&place.good(&["runs", "show", "last", "--json"]).0).unwrap();
    let train = shown["instances"].as_array().unwrap().iter().find(|i| i["name"] == "train").unwrap();
    assert_eq!((&shown["state"], &train["outcome"]), (&"failed".into(), &"failed".into()));
    assert!(train["why"].as_str().unwrap().contains("judge"));
    let runs = place.path("home/runs");
    let kept = files(&runs).into_iter().find(|p| p.ends_with("kept/train/metrics.jsonl")).expect("metrics are kept");
    let lines = std::fs::read_to_string(kept).unwrap();
    assert!(lines.lines().count() >= 1 && lines.contains("\"reward\""), "{lines}");
    // The checkpoint is kept as well, also from a cleaning.
    place.good(&["cache", "gc", "--yes", "--older-than", "1h"]);
    let work = place.path("home/work").join(train["fingerprint"].as_str().unwrap());
    assert!(work.join("metrics.jsonl").exists() && work.join("checkpoints").exists());
}

#[test]
fn gc_asks_first_and_keeps_what_is_reachable_or_young() {
    let place = Place::new(TINY);
    place.good(&["run", "p.yaml", "--threads", "2", "--until", "warm"]);
    place.good(&["run", "p.yaml", "--threads", "2", "--until", "warm", "--set", "adapter.rank=2"]);
    let count = || place.store().fingerprints().unwrap().len();
    assert_eq!(count(), 7);
    let old = |path: &std::path::Path| {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(10 * 86_400);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(then).unwrap();
    };
    files(&place.path("home")).iter().for_each(|path| old(path));
    // The file as it stands uses rank 4.
    let said = place.good(&["cache", "gc", "--keep", "p.yaml"]).0;
    assert!(said.contains("2 items") && said.contains("would be removed: add --yes"), "{said}");
    assert_eq!(count(), 7, "nothing goes without --yes");
    let said = place.good(&["cache", "gc", "--keep", "p.yaml", "--older-than", "30d", "--yes"]).0;
    assert!(said.contains("0 items"), "{said}");
    // Used again: young.
    place.good(&["run", "p.yaml", "--until", "warm", "--set", "adapter.rank=2"]);
    place.good(&["cache", "gc", "--keep", "p.yaml", "--older-than", "8d", "--yes"]);
    assert_eq!(count(), 7);
    let said = place.good(&["cache", "gc", "--keep", "p.yaml", "--yes"]).0;
    assert!(said.contains("2 items") && said.contains(" removed"), "{said}");
    assert_eq!(count(), 5);
    assert!(place.plan(&["--until", "warm"]).values().all(|what| what == "cached"));
    assert!(place.good(&["cache", "ls"]).0.contains("5 artifacts"));
    place.good(&["cache", "verify"]);
    let said = place.fails(&["cache", "gc", "--older-than", "soon"], 2);
    assert!(said.contains("write 12h, 30d or 8w"), "{said}");
}

#[test]
fn a_report_reproduces_itself() {
    let place = Place::new(&TINY.replace("name: tiny\n", "name: tiny\ninclude: [shared/x.yaml]\n"));
    std::fs::create_dir(place.path("shared")).unwrap();
    std::fs::write(place.path("shared/x.yaml"), "# included\ndefaults: {eval: {samples: 1}}\n").unwrap();
    place.good(&["run", "p.yaml", "--threads", "2", "--set", "after.limit=5"]);
    let report = place.path("reports/out/tiny/report.html");
    let html = std::fs::read_to_string(&report).unwrap();
    // The report alone is enough.
    let alone = Place::new("");
    std::fs::write(alone.path("report.html"), &html).unwrap();
    let (out, said) = alone.good(&["reproduce", "report.html", "--threads", "2"]);
    assert!(out.contains(" figures compared, 0 differ"), "{out}{said}");
    assert!(!out.starts_with("0 figures"), "{out}");
    let made = alone.path("home/reproduce");
    assert!(files(&made).iter().any(|p| p.ends_with("report.html")), "made in a store of its own");
    // A number that never came out is told.
    let at = html.rfind("qerl-reproduce").unwrap();
    assert!(html[at..].contains("\"questions\":5"), "{}", &html[at..]);
    let forged = format!("{}{}", &html[..at], html[at..].replace("\"questions\":5", "\"questions\":55"));
    std::fs::write(alone.path("forged.html"), forged).unwrap();
    let done = alone.qerl(&["reproduce", "forged.html", "--threads", "2"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stdout).contains("questions: reported 55, now 5"), "{}", text(&done.stdout));
    // Somebody else's programs are not started unasked.
    let program = html[at..].replace("after.limit=5", "train.rewards={x: {command: [touch, gone], weight: 1}}");
    std::fs::write(alone.path("program.html"), format!("{}{program}", &html[..at])).unwrap();
    let said = alone.fails(&["reproduce", "program.html"], 2);
    assert!(said.contains("starts programs") && said.contains("--allow-programs"), "{said}");
    std::fs::write(alone.path("none.html"), "<html></html>").unwrap();
    assert!(alone.fails(&["reproduce", "none.html"], 1).contains("holds no pipeline"));
}

const KEY: &str = "sk-very-secret-4711";
const TOKEN: &str = "hf_tokenThatNobodyMaySee";

#[test]
fn secrets_and_the_hub_token_reach_nothing_that_is_kept_or_shown() {
    let place = Place::new(&TINY.replace(
        "rewards: {accuracy: 1.0}",
        "rewards: {accuracy: 1.0, judge: {command: [sh, judge.sh, \"${secrets.JUDGE_KEY}\"], weight: 0.5, timeout: 20}}",
    ));
    // It does not work without the key, and writes down where it was called.
    let script = "[ \"$1\" = \"$JUDGE_KEY\" ] || exit 1\n[ -f broken ] && { while read -r line; do echo \"my key is $1\"; done; }\n\
                  while read -r line; do\n  id=$(printf %s \"$line\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/')\n  \
                  echo \"{\\\"id\\\": $id, \\\"reward\\\": 0.5}\"\ndone\n";
    std::fs::write(place.path("judge.sh"), script).unwrap();
    let mut shown = String::new();
    let mut call = |args: &[&str], key: Option<&str>| {
        let mut command = place.command(args);
        command.env("HF_TOKEN", TOKEN);
        if let Some(key) = key {
            command.env("JUDGE_KEY", key);
        }
        let output = command.output().unwrap();
        let all = text(&output.stdout) + &text(&output.stderr);
        shown += &all;
        (output.status.code(), all)
    };
    let (code, said) = call(&["run", "p.yaml", "--until", "train"], None);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("the secret `JUDGE_KEY` is not set"), "{said}");
    // A program that tells its key in an answer.
    std::fs::write(place.path("broken"), "").unwrap();
    let (code, said) = call(&["run", "p.yaml", "--threads", "2", "--keep-going", "--json"], Some(KEY));
    assert!(
        code == Some(2) && said.contains("my key is ***"),
        "a reward that does not answer is noticed at once: {said}"
    );
    std::fs::remove_file(place.path("broken")).unwrap();
    for args in [
        &["plan", "p.yaml"][..],
        &["run", "p.yaml", "--threads", "2", "--json"],
        &["plan", "p.yaml", "--json"],
        &["lock", "p.yaml"],
        &["graph", "p.yaml", "--instances"],
        &["validate", "p.yaml", "--json"],
        &["cache", "ls", "--json"],
        &["runs", "show", "last", "--json"],
        &["diff", "last~1", "last", "--json"],
        &["doctor"],
    ] {
        let (code, said) = call(args, Some(KEY));
        assert_eq!(code, Some(0), "{args:?}: {said}");
    }
    // Another value of the secret is not another experiment.
    let (_, said) = call(&["run", "p.yaml"], Some("sk-another-one"));
    assert!(said.contains("nothing to do"), "{said}");
    for secret in [KEY, TOKEN, "sk-another-one"] {
        assert!(!shown.contains(secret), "{secret} was shown");
        for path in files(place.dir.path()) {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
            assert!(!found, "{secret} is in {}", path.display());
        }
    }
    let report = std::fs::read_to_string(place.path("reports/out/tiny/report.html")).unwrap();
    assert!(report.contains("${secrets.JUDGE_KEY}"), "the name stays, so that the report can be reproduced");
}
