//! The executor with fake stages: order, cache, failures, stopping, two runs at once, secrets, full disks.

mod fake;

use std::time::Duration;

use fake::{Bench, instance};
use qerl::plan::{Action, Reason};
use qerl::run::{Outcome, Update, pin, requests};
use qerl::stages::Kind;
use serde_json::json;

/// base -> train@seed=1|2 -> report
fn small() -> Bench {
    Bench::new(vec![
        instance("base", Kind::Quantize, json!({"size": 1}), &[]),
        instance("train", Kind::Train, json!({"seed": 1}), &[("policy", 0)]).at("seed", "1"),
        instance("train", Kind::Train, json!({"seed": 2}), &[("policy", 0)]).at("seed", "2"),
        instance("report", Kind::Report, json!({}), &[("gather.0", 1), ("gather.0", 2)]),
    ])
}

#[test]
fn inputs_come_first_and_a_second_run_does_nothing() {
    let bench = small();
    let first = bench.run();
    assert!(first.error.is_none(), "{:?}", first.error);
    assert_eq!(bench.log(), ["base", "train@seed=1", "train@seed=2", "report"]);
    assert_eq!((first.ran(), first.cached()), (4, 0));
    let report = first.reports().next().unwrap().1.clone();
    assert_eq!(report.meta.inputs.len(), 2);
    assert_eq!(report.meta.input_keys["gather.0#2"].point["seed"], "2");
    bench.clear();
    let second = bench.run();
    assert_eq!((second.ran(), second.cached()), (0, 4));
    assert!(bench.log().is_empty());
    assert!(bench.plan().entries.iter().all(|e| matches!(e.action, Action::Cached(_))));
    assert!(std::fs::read_dir(bench.store.root.join("work")).unwrap().next().is_none(), "no checkpoints are left");
}

#[test]
fn the_plan_says_why() {
    let mut bench = small();
    let reasons = |bench: &Bench| -> Vec<String> {
        let entries = bench.plan().entries;
        let text = entries.iter().map(|e| match &e.action {
            Action::Cached(_) => "cached".to_owned(),
            Action::Run(reason) => reason.to_string(),
            Action::Same(other) => format!("same as {other}"),
        });
        text.collect()
    };
    let all = ["never run", "input base will run", "input base will run", "input train@seed=1 will run"];
    assert_eq!(reasons(&bench), all);
    assert!(!bench.store.root.exists(), "a plan creates nothing");
    bench.run();
    bench.graph.instances[2].config = json!({"seed": 5});
    assert_eq!(reasons(&bench), ["cached", "cached", "seed changed from 2 to 5", "input train@seed=2 will run"]);
    bench.options.plan.force = vec!["base".to_owned()];
    assert_eq!(reasons(&bench)[0], "forced");
    bench.options.plan.force = vec!["bsae".to_owned()];
    let error = bench.try_plan().unwrap_err();
    assert_eq!((error.exit_code(), error.hint_text().unwrap()), (2, "did you mean `base`?"));
}

#[test]
fn a_changed_configuration_reruns_only_downstream() {
    let mut bench = small();
    bench.run();
    bench.clear();
    bench.graph.instances[2].config = json!({"seed": 3});
    bench.run();
    assert_eq!(bench.log(), ["train@seed=2", "report"]);
    bench.clear();
    // The base is made anew but comes out the same: what follows is still good.
    bench.graph.instances[0].config = json!({"size": 1, "unused": true});
    let summary = bench.run();
    assert_eq!(bench.log(), ["base"]);
    assert_eq!((summary.ran(), summary.cached()), (1, 3));
}

#[test]
fn equal_work_is_done_once() {
    let mut bench = small();
    bench.graph.instances[2].config = json!({"seed": 1});
    for jobs in [1, 2] {
        bench.options.jobs = Some(jobs);
        bench.options.plan.force = vec!["all".to_owned()];
        bench.clear();
        let summary = bench.run();
        assert!(summary.error.is_none());
        assert_eq!(bench.log().iter().filter(|n| n.starts_with("train")).count(), 1, "with {jobs} jobs");
        assert_eq!(summary.outcomes.len(), 4);
    }
    let of = |seed: u32| bench.store.resolve(&format!("exp:train@seed={seed}")).unwrap().meta.fingerprint;
    assert_eq!(of(1), of(2));
}

#[test]
fn independent_stages_run_side_by_side_and_share_the_threads() {
    let wide = |kind: Kind| {
        Bench::new(
            (0..4)
                .map(|i| instance("x", kind, json!({"i": i, "sleep_ms": 150}), &[]).at("i", &i.to_string()))
                .collect(),
        )
    };
    let mut bench = wide(Kind::Train);
    bench.options.threads = Some(8);
    bench.run();
    assert_eq!(bench.most_at_once(), 1, "training keeps every core busy by itself");
    assert!(bench.threads().iter().all(|t| *t == 8));
    let mut bench = wide(Kind::Train);
    bench.options.threads = Some(8);
    bench.options.jobs = Some(4);
    bench.run();
    assert_eq!(bench.most_at_once(), 4);
    assert!(bench.threads().iter().all(|t| *t == 2), "{:?}", bench.threads());
    let bench = wide(Kind::Split);
    bench.run();
    assert!(bench.most_at_once() > 1, "light stages overlap");
}

#[test]
fn the_first_failure_stops_the_others_and_their_checkpoints_stay() {
    let mut bench = Bench::new(vec![
        instance("bad", Kind::Train, json!({"fail": "it diverged", "sleep_ms": 100}), &[]),
        instance("long", Kind::Train, json!({"checkpoint_and_wait": true}), &[]),
        instance("next", Kind::Eval, json!({}), &[("policy", 0)]),
    ]);
    bench.options.jobs = Some(2);
    let summary = bench.run();
    assert_eq!((summary.failed(), summary.stopped(), summary.ran()), (1, 2, 0));
    let error = summary.error.unwrap();
    assert_eq!((error.message(), error.exit_code()), ("bad: it diverged", 1));
    let work: Vec<_> = std::fs::read_dir(bench.store.root.join("work")).unwrap().flatten().collect();
    assert!(work.iter().any(|w| w.path().join("checkpoint").exists()));
    assert!(bench.store.fingerprints().unwrap().is_empty());
}

#[test]
fn keep_going_finishes_what_it_can_and_reports_the_rest() {
    let mut bench = small();
    bench.graph.instances[1].config = json!({"seed": 1, "fail": "it diverged"});
    bench.graph.instances.push(instance("after", Kind::Eval, json!({}), &[("policy", 1)]).at("seed", "1").0);
    bench.options.keep_going = true;
    let summary = bench.run();
    let state = |i: usize| &summary.outcomes[i].2;
    assert!(matches!(state(1), Outcome::Failed(why) if why == "it diverged"));
    assert!(matches!(state(2), Outcome::Ran(_)));
    assert!(matches!(state(3), Outcome::Ran(_)), "the report shows the failed one");
    assert!(matches!(state(4), Outcome::Skipped(why) if why == "train@seed=1 failed"));
    assert!(bench.input_errors().contains(&"it diverged".to_owned()));
    assert!(summary.error.is_some());
    // Once it is mended the report is a new one.
    bench.graph.instances[1].config = json!({"seed": 1});
    bench.clear();
    assert!(bench.run().error.is_none());
    let mut log = bench.log();
    log.sort();
    assert_eq!(log, ["after@seed=1", "report", "train@seed=1"]);
}

#[test]
fn a_panic_is_an_error() {
    let bench = Bench::new(vec![instance("bad", Kind::Lora, json!({"panic": "index out of range"}), &[])]);
    let summary = bench.run();
    let error = summary.error.unwrap();
    assert!(error.message().contains("panicked: index out of range"), "{error}");
}

#[test]
fn until_and_force() {
    let mut bench = small();
    bench.options.plan.until = vec!["train@seed=2".to_owned()];
    let summary = bench.run();
    assert_eq!(bench.log(), ["base", "train@seed=2"]);
    assert_eq!(summary.outcomes.len(), 2);
    bench.clear();
    bench.options.plan.force = vec!["base".to_owned()];
    bench.run();
    assert_eq!(bench.log(), ["base"], "equal bytes come out: training is still good");
    bench.clear();
    bench.options.plan.force = vec!["all".to_owned()];
    bench.run();
    assert_eq!(bench.log(), ["base", "train@seed=2"]);
}

#[test]
fn a_request_to_stop_stops_and_the_next_run_goes_on_from_the_checkpoint() {
    let bench = Bench::new(vec![
        instance("long", Kind::Train, json!({"checkpoint_and_wait": true}), &[]),
        instance("next", Kind::Eval, json!({}), &[("policy", 0)]),
    ]);
    let summary = std::thread::scope(|scope| {
        let run = scope.spawn(|| bench.run());
        while bench.log().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        bench.cancel();
        run.join().unwrap()
    });
    assert_eq!((summary.stopped(), summary.error.unwrap().exit_code()), (2, 130));
    bench.uncancel();
    let again = bench.run();
    assert!(again.error.is_none());
    assert_eq!(bench.resumed(), ["long"]);
}

#[test]
fn damage_is_said_and_mended() {
    let bench = small();
    bench.run();
    let base = bench.store.resolve("exp:base").unwrap();
    std::fs::write(base.dir.join("out.txt"), "damaged").unwrap();
    let plan = bench.plan();
    assert!(matches!(&plan.entries[0].action, Action::Run(Reason::Damaged { .. })));
    bench.clear();
    let summary = bench.run();
    assert_eq!(bench.log(), ["base"]);
    assert_eq!((summary.ran(), summary.cached()), (1, 3));
    assert!(bench.said().iter().any(|line| line.contains("damaged") && line.contains("set aside")));
    assert!(bench.store.get(&base.meta.fingerprint).unwrap().is_some());
}

#[test]
fn a_newer_stage_never_silently_redoes_long_work() {
    use qerl::plan::{Found, Versions, find};
    let bench = Bench::new(vec![instance("x", Kind::Train, json!({"seed": 1}), &[])]);
    bench.run();
    let made = bench.store.resolve("exp:x").unwrap();
    let key = qerl::store::Key {
        kind: Kind::Train,
        version: made.meta.version + 1,
        backend: made.meta.backend.clone(),
        config: made.meta.config.clone(),
        inputs: made.meta.input_keys.clone(),
        files: Default::default(),
    };
    let look = |versions| find(&bench.store, "exp", "x", &key, versions).unwrap();
    assert!(matches!(look(Versions::Ask), Found::Not(Reason::Newer { from: 1, to: 2 })), "cheap work reruns");
    let path = made.dir.join("artifact.json");
    let mut meta = made.meta.clone();
    meta.provenance.wall_seconds = 3600.0;
    std::fs::write(&path, serde_json::to_vec(&meta).unwrap()).unwrap();
    assert!(matches!(look(Versions::Ask), Found::Older(_)));
    assert!(matches!(look(Versions::KeepOld), Found::Hit(_)));
    assert!(matches!(look(Versions::Rerun), Found::Not(Reason::Newer { .. })));
}

#[test]
fn two_runs_at_once_do_the_work_once() {
    let bench = Bench::new(vec![instance("x", Kind::Train, json!({"sleep_ms": 300}), &[])]);
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(|| bench.run());
        let b = scope.spawn(|| bench.run());
        (a.join().unwrap(), b.join().unwrap())
    });
    assert_eq!((a.ran() + b.ran(), a.cached() + b.cached()), (1, 1));
    assert_eq!(bench.log(), ["x"]);
    let waiting = bench.waited();
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].contains(&format!("process {}", std::process::id())), "{waiting:?}");
}

/// Not a test by itself: the process that others start and kill.
#[test]
fn child() {
    let Some(home) = std::env::var_os("QERL_TEST_CHILD") else { return };
    let config = json!({"checkpoint_and_wait": true});
    let bench = Bench::at(home.as_ref(), vec![instance("x", Kind::Train, config, &[])]);
    bench.run();
}

#[test]
fn a_killed_run_leaves_nothing_bad_and_the_next_goes_on() {
    let config = json!({"checkpoint_and_wait": true});
    let bench = Bench::new(vec![instance("x", Kind::Train, config, &[])]);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("QERL_TEST_CHILD", bench.home())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let work = bench.store.root.join("work");
    let started = std::time::Instant::now();
    let checkpointed =
        || std::fs::read_dir(&work).is_ok_and(|mut d| d.any(|w| w.is_ok_and(|w| w.path().join("checkpoint").exists())));
    while !checkpointed() {
        assert!(started.elapsed() < Duration::from_secs(30), "the child never started");
        std::thread::sleep(Duration::from_millis(10));
    }
    let drafts = || {
        let names = std::fs::read_dir(bench.store.root.join("store")).unwrap().flatten();
        names.filter(|n| n.file_name().to_string_lossy().starts_with(".tmp-")).count()
    };
    assert_eq!(drafts(), 1);
    assert_eq!(bench.store.sweep_drafts().unwrap(), 0, "what is being written is left alone");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(bench.store.fingerprints().unwrap().is_empty());
    let summary = bench.run();
    assert!(summary.error.is_none());
    assert_eq!(bench.resumed(), ["x"]);
    assert_eq!(drafts(), 0);
}

#[test]
fn secrets_reach_the_stage_and_nothing_else() {
    // SAFETY: no other test of this file reads or writes this variable.
    unsafe { std::env::set_var("QERL_TEST_SECRET", "hunter2-hunter2") };
    let config = json!({"token": "Bearer ${secrets.QERL_TEST_SECRET}", "leak": true});
    let bench = Bench::new(vec![instance("x", Kind::Eval, config, &[])]);
    let summary = bench.run();
    assert!(summary.error.is_none(), "{:?}", summary.error);
    assert!(bench.secret_seen());
    let dir = bench.store.resolve("exp:x").unwrap().dir;
    let meta = std::fs::read_to_string(dir.join("artifact.json")).unwrap();
    assert!(meta.contains("${secrets.QERL_TEST_SECRET}") && meta.contains("***"));
    assert!(!meta.contains("hunter2"), "{meta}");
    assert!(bench.said().iter().all(|line| !line.contains("hunter2")));
    let missing = Bench::new(vec![instance("x", Kind::Eval, json!({"t": "${secrets.QERL_TEST_NONE}"}), &[])]);
    let error = missing.run().error.unwrap();
    assert_eq!(error.message(), "x: the secret `QERL_TEST_NONE` is not set");
}

#[test]
fn revisions_are_pinned_once_and_obeyed() {
    let config = json!({"repo": "a/b", "revision": "main"});
    let mut bench = Bench::new(vec![instance("model", Kind::Download, config, &[])]);
    let plan = bench.plan();
    assert!(matches!(&plan.entries[0].action, Action::Run(Reason::Unresolved { .. })));
    assert_eq!((plan.unresolved.len(), plan.estimate.fetch_unknown), (1, 1));
    bench.run();
    assert_eq!(bench.resolver.count(), 1);
    bench.resolver.move_on();
    let again = bench.run();
    assert_eq!((bench.resolver.count(), again.cached()), (1, 1), "the lock is obeyed");
    // The commit by its own name is the same download.
    let commit = bench.resolver.first_commit();
    bench.graph.instances[0].config = json!({"repo": "a/b", "revision": commit});
    assert_eq!(bench.run().cached(), 1);
    bench.graph.instances[0].config = json!({"repo": "a/b", "revision": "main"});
    let wanted = requests(&bench.graph, &[0].into());
    let (_, changed) = pin(
        &wanted,
        &bench.lock_path(),
        &Update::All,
        &bench.store,
        &bench.resolver,
        &qerl::run::Deaf,
        &qerl::control::Cancel::new(),
    )
    .unwrap();
    assert_eq!(changed.len(), 1);
    assert_eq!(bench.plan().estimate.fetch_bytes, 7);
    assert_eq!(bench.run().ran(), 1);
}

#[test]
fn a_file_source_counts_by_its_content_not_its_path() {
    let mut bench = Bench::new(vec![instance("model", Kind::Download, json!({"repo": "file:m"}), &[])]);
    let folder = bench.home().join("m");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    assert_eq!(bench.run().ran(), 1);
    assert_eq!(bench.run().ran(), 0);
    std::fs::rename(&folder, bench.home().join("n")).unwrap();
    assert_eq!(bench.try_plan().unwrap_err().kind(), qerl::error::Kind::Missing);
    bench.graph.instances[0].config = json!({"repo": "file:n"});
    assert_eq!(bench.run().ran(), 0, "the same bytes elsewhere");
    std::fs::write(bench.home().join("n/config.json"), "{ }").unwrap();
    assert_eq!(bench.run().ran(), 1);
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| {
        let status = std::process::Command::new("mount").args(args).stderr(std::process::Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    };
    let place = dir.path().to_str().unwrap();
    if !mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs", place]) {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    }
    struct Unmount<'a>(&'a str);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0).status();
        }
    }
    let _unmount = Unmount(place);
    let bench = Bench::at(
        dir.path(),
        vec![
            instance("small", Kind::Lora, json!({}), &[]),
            instance("large", Kind::Quantize, json!({"bytes": 4 << 20}), &[("model", 0)]),
        ],
    );
    let summary = bench.run();
    let error = summary.error.unwrap();
    assert_eq!(error.kind(), qerl::error::Kind::Storage);
    assert!(error.hint_text().unwrap().contains("full"), "{error}");
    assert!(bench.store.resolve("exp:small").is_ok(), "what was finished is kept");
    assert_eq!(bench.store.fingerprints().unwrap().len(), 1);
    assert!(bench.store.free_bytes().unwrap() > 500_000, "the partial file is gone");
}
