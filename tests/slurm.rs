//! Jobs on a real Slurm of one machine, which the first test starts. Needs root, Slurm's programs (`slurm-wlm` on
//! Debian) and the script that starts them; says so where one of them is missing. One test, as there is one cluster.

mod shell;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use shell::{Place, TINY, text};

/// A running cluster; taken down at the end.
struct Cluster {
    dir: tempfile::TempDir,
    tools: PathBuf,
}

impl Cluster {
    fn start() -> Option<Self> {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/tools");
        // Without a configuration they fail whatever they are asked; being there is enough.
        let there = |name: &str| Command::new(name).arg("-V").output().is_ok();
        if !tools.join("slurm-up.sh").exists() || !there("sbatch") || !there("slurmctld") {
            eprintln!("skipped: no Slurm here (apt-get install slurm-wlm), or no ../shared/tools/slurm-up.sh");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("slurm").tempdir_in("/tmp").unwrap();
        // munged runs as a user of its own.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let up = Command::new("bash").arg(tools.join("slurm-up.sh")).arg(dir.path()).output().unwrap();
        let cluster = Self { dir, tools };
        if !text(&up.stdout).contains("UP") {
            eprintln!("skipped: Slurm did not start: {}{}", text(&up.stdout), text(&up.stderr));
            return None;
        }
        Some(cluster)
    }

    fn conf(&self) -> PathBuf {
        self.dir.path().join("slurm.conf")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut down = Command::new("bash");
        let _ = down.arg(self.tools.join("slurm-down.sh")).arg(self.dir.path()).env("SLURM_CONF", self.conf()).output();
    }
}

struct Bench<'a> {
    place: Place,
    cluster: &'a Cluster,
}

impl Bench<'_> {
    fn qerl(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.place.command(args).env("SLURM_CONF", self.cluster.conf()).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn slurm(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new(program).args(args).env("SLURM_CONF", self.cluster.conf()).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Instance -> (state, job, starts, why).
    fn status(&self) -> std::collections::BTreeMap<String, (String, String, u64, String)> {
        let (code, out, err) = self.qerl(&["slurm", "status", "last", "--json"]);
        assert_eq!(code, Some(0), "{err}");
        let all: Vec<Value> = serde_json::from_str(&out).unwrap();
        let field = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        let rows = all.iter().map(|row| {
            let starts = row["starts"].as_u64().unwrap();
            (field(row, "name"), (field(row, "state"), field(row, "job"), starts, field(row, "why")))
        });
        rows.collect()
    }

    fn wait_for(&self, name: &str, good: impl Fn(&(String, String, u64, String)) -> bool) {
        let clock = Instant::now();
        loop {
            let status = self.status();
            if status.get(name).is_some_and(&good) {
                return;
            }
            assert!(clock.elapsed() < Duration::from_secs(240), "{name}: {status:#?}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

fn swept() -> String {
    let text = TINY.replace("name: tiny\n", "name: tiny\nsweep: {seed: [1, 2]}\n");
    let text = text.replace(
        "{model: base, rank: 4, alpha: 4, seed: 1}",
        "{model: base, rank: 4, alpha: 4, seed: \"${sweep.seed}\"}",
    );
    text.replace("{report: {gather: [after]}}", "{report: {gather: [after], rows: seed}}")
}

#[test]
fn stages_run_as_jobs() {
    let Some(cluster) = Cluster::start() else { return };
    a_sweep_runs_as_arrays(&cluster);
    failures_reach_what_depends_on_them_and_no_more(&cluster);
    if shell::long("requeueing a job (Slurm waits two minutes before it starts one again)") {
        a_requeued_job_goes_on_from_its_checkpoint(&cluster);
    }
    jobs_are_taken_back(&cluster);
    what_slurm_refuses_is_said(&cluster);
}

fn a_sweep_runs_as_arrays(cluster: &Cluster) {
    let bench = Bench { place: Place::new(&swept()), cluster };
    let notify = format!("tee -a {}", bench.place.path("told").display());
    let args = ["run", "p.yaml", "--executor", "slurm", "--partition", "debug", "--time", "30", "--notify", &notify];
    let (code, out, err) = bench.qerl(&args);
    assert_eq!(code, Some(0), "{out}{err}");
    let local = Place::new(&swept());
    local.good(&["run", "p.yaml", "--threads", "2"]);
    assert_eq!(bench.place.digests(), local.digests(), "jobs make the same bytes as this machine");
    let status = bench.status();
    assert!(status.values().all(|s| s.0 == "done" && s.2 == 1), "{status:#?}");
    let (one, two) = (&status["train@seed=1"].1, &status["train@seed=2"].1);
    assert_eq!(one.split('_').next(), two.split('_').next(), "one array: {one} {two}");
    assert!(one.ends_with("_0") && two.ends_with("_1"));
    assert!(bench.place.path("reports/out/tiny/report.html").exists());
    // The run is in the store: the same again submits nothing.
    let (code, _, err) = bench.qerl(&args);
    assert!(code == Some(0) && err.contains("0 to run") && !err.contains("submitted"), "{err}");
    let clock = Instant::now();
    while !std::fs::read_to_string(bench.place.path("told")).is_ok_and(|t| t.contains("\"event\":\"done\"")) {
        assert!(clock.elapsed() < Duration::from_secs(60), "the last job tells that all is done");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn failures_reach_what_depends_on_them_and_no_more(cluster: &Cluster) {
    // One of two points names a program that is not there.
    let text = swept().replace(
        "stages:\n",
        "variants:\n  good: {}\n  bad: {train.rewards: {judge: {command: [no-such-program], weight: 1}}}\nstages:\n",
    );
    let text = text
        .replace("sweep: {seed: [1, 2]}\n", "")
        .replace("\"${sweep.seed}\"", "1")
        .replace("rows: seed", "rows: variant");
    let bench = Bench { place: Place::new(&text), cluster };
    let notify = format!("tee -a {}", bench.place.path("told").display());
    let (code, out, err) = bench.qerl(&["run", "p.yaml", "--executor", "slurm", "--notify", &notify]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(err.contains("train@variant=bad failed"), "{err}");
    let status = bench.status();
    assert_eq!(status["train@variant=bad"].0, "failed");
    assert_eq!(status["after@variant=bad"].0, "skipped", "{status:#?}");
    for good in ["train@variant=good", "after@variant=good", "report"] {
        assert_eq!(status[good].0, "done", "{status:#?}");
    }
    let report = bench.place.store().resolve("tiny:report").unwrap();
    let text = std::fs::read_to_string(report.dir.join("report.md")).unwrap();
    assert!(text.contains("train@variant=bad") && text.contains("no-such-program"), "{text}");
    let told = std::fs::read_to_string(bench.place.path("told")).unwrap();
    assert!(told.contains("\"event\":\"failed\",\"name\":\"train@variant=bad\""), "{told}");
}

fn a_requeued_job_goes_on_from_its_checkpoint(cluster: &Cluster) {
    let text =
        TINY.replace("data: arith, steps: 3, prompts_per_step: 2", "data: arith, steps: 40, prompts_per_step: 2");
    let bench = Bench { place: Place::new(&text), cluster };
    let (code, _, err) = bench.qerl(&["run", "p.yaml", "--executor", "slurm", "--until", "train", "--detach"]);
    assert_eq!(code, Some(0), "{err}");
    let checkpointed = || {
        let work = std::fs::read_dir(bench.place.path("home/work")).into_iter().flatten().flatten();
        work.into_iter().any(|w| {
            let lines = std::fs::read_to_string(w.path().join("metrics.jsonl")).unwrap_or_default();
            lines.contains("reward") && lines.lines().count() >= 3
        })
    };
    let clock = Instant::now();
    while !checkpointed() {
        assert!(clock.elapsed() < Duration::from_secs(240), "{:#?}", bench.status());
        std::thread::sleep(Duration::from_millis(100));
    }
    let job = bench.status()["train"].1.clone();
    bench.slurm("scontrol", &["requeue", &job]);
    bench.wait_for("train", |s| s.0 == "done" && s.2 >= 2);
    let local = Place::new(&text);
    local.good(&["run", "p.yaml", "--until", "train", "--threads", "2"]);
    assert_eq!(bench.place.digests()["train"], local.digests()["train"], "the same bytes as in one go");
}

fn jobs_are_taken_back(cluster: &Cluster) {
    let bench =
        Bench { place: Place::new(&TINY.replace("data: arith, steps: 3, p", "data: arith, steps: 4000, p")), cluster };
    let (code, _, err) = bench.qerl(&["run", "p.yaml", "--executor", "slurm", "--detach"]);
    assert_eq!(code, Some(0), "{err}");
    bench.wait_for("train", |s| s.0 == "running");
    let (code, out, err) = bench.qerl(&["slurm", "cancel", "last"]);
    assert_eq!(code, Some(0), "{out}{err}");
    // Its marker, unless Slurm was quicker to kill it.
    bench.wait_for("train", |s| s.0 == "stopped" || s.0 == "lost");
    let status = bench.status();
    assert_eq!((status["base"].0.as_str(), status["report"].0.as_str()), ("done", "skipped"), "{status:#?}");
    let held = bench.slurm("squeue", &["--noheader", "--states=all", "--format=%T"]);
    assert!(!held.contains("PENDING"), "{held}");
}

fn what_slurm_refuses_is_said(cluster: &Cluster) {
    let bench = Bench { place: Place::new(TINY), cluster };
    let (code, _, err) = bench.qerl(&["run", "p.yaml", "--executor", "slurm", "--partition", "nowhere"]);
    assert!(code == Some(1) && err.contains("sbatch refused") && err.contains("--partition"), "{err}");
    let (code, _, err) = bench.qerl(&["run", "p.yaml", "--partition", "debug"]);
    assert!(code == Some(2) && err.contains("add --executor slurm"), "{err}");
    let (code, _, err) = bench.qerl(&["slurm", "status", "20990101"]);
    assert!(code == Some(1) && err.contains("there is no submitted run"), "{err}");
}
