//! What must not lose work or use a wrong result: kills, two runs at once, damage, disks that refuse, odd clocks.

mod shell;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use shell::{Place, TINY, files, long, text};

/// Numbers that look random and are the same every time (splitmix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n.max(1)
    }
}

#[test]
fn killed_at_any_point_a_run_resumes_to_the_same_bytes() {
    let kills = if long("killing a run at 200 random points (10 here)") { 200 } else { 10 };
    let reference = Place::new(TINY);
    let clock = Instant::now();
    reference.good(&["run", "p.yaml", "--threads", "2"]);
    let whole = clock.elapsed();
    let want = reference.digests();
    assert_eq!(want.len(), 7, "{want:?}");
    let mut draws = Draws(7);
    let (mut killed, mut stores, mut seen) = (0, 0, 0);
    while killed < kills {
        let place = Place::new(TINY);
        stores += 1;
        // Up to five kills in one store: what resumed is killed again.
        for _ in 0..5 {
            let mut child = place.command(&["run", "p.yaml", "--threads", "2"]);
            let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(draws.below(whole.as_micros() as u64)));
            let over = child.try_wait().unwrap().is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            killed += usize::from(!over);
            if over || killed == kills {
                break;
            }
        }
        place.good(&["run", "p.yaml", "--threads", "2"]);
        assert_eq!(place.digests(), want, "store {stores}, after {killed} kills");
        let (good, bad) = place.store().list().unwrap();
        assert_eq!((good.len(), bad), (8, Vec::new()));
        place.good(&["cache", "verify"]);
        let left = |folder: &str| std::fs::read_dir(place.path("home").join(folder)).unwrap().count();
        assert_eq!((left("work"), left("store")), (0, 8), "no checkpoint and no half-written artifact stays");
        // One that was killed before it had a record is in no list; no other is said to run still.
        let runs = place.good(&["runs", "ls"]).0;
        assert!(!runs.contains("running"), "{runs}");
        seen += runs.matches("killed").count();
    }
    assert!(seen > kills / 2, "{seen} of {kills} killed runs are listed as killed");
}

#[test]
fn two_runs_at_once_share_the_work() {
    let place = Place::new(TINY);
    let start = || place.command(&["run", "p.yaml", "--threads", "1", "--json"]).spawn().unwrap();
    let (a, b) = (start(), start());
    let outputs = [a, b].map(|child| child.wait_with_output().unwrap());
    let mut made = Vec::new();
    for output in &outputs {
        assert!(output.status.success(), "{}", text(&output.stderr));
        for line in text(&output.stdout).lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            if event["event"] == "finished" {
                made.push(event["name"].as_str().unwrap().to_owned());
            }
        }
    }
    made.sort();
    assert_eq!(made, ["adapter", "after", "base", "data.arith", "model", "report", "train", "warm"], "each made once");
    place.good(&["cache", "verify"]);
}

#[test]
fn a_flipped_bit_in_any_file_is_found_and_mended() {
    let place = Place::new(TINY);
    place.good(&["run", "p.yaml", "--threads", "2"]);
    let want = place.digests();
    let mut damaged = 0;
    for (name, artifact) in place.artifacts() {
        // The first, the last and the description stand for the others, which `cache verify` reads the same way.
        let all = files(&artifact.dir);
        let chosen = [all.first(), all.last()];
        for path in chosen.into_iter().flatten().collect::<std::collections::BTreeSet<_>>() {
            let mut bytes = std::fs::read(path).unwrap();
            if bytes.is_empty() {
                continue;
            }
            let before = std::fs::metadata(path).unwrap().modified().unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            std::fs::write(path, &bytes).unwrap();
            // The disk does not tell: size and time are what they were.
            std::fs::File::options().append(true).open(path).unwrap().set_modified(before).unwrap();
            if path.ends_with("artifact.json") {
                // Its fields are checked against the files; a flip in free text only changes that text.
                bytes[at] ^= 1;
                std::fs::write(path, &bytes).unwrap();
                continue;
            }
            damaged += 1;
            let said = place.fails(&["cache", "verify"], 1);
            assert!(said.contains("damaged"), "{name}: {said}");
            place.good(&["run", "p.yaml", "--threads", "2"]);
            assert_eq!(place.digests(), want, "after damage of {}", path.display());
        }
    }
    assert!(damaged >= 7, "{damaged}");
    place.good(&["cache", "verify"]);
    // The description's last half is lost.
    let base = &place.artifacts()["base"];
    let description = base.dir.join("artifact.json");
    let bytes = std::fs::read(&description).unwrap();
    std::fs::write(&description, &bytes[..bytes.len() / 2]).unwrap();
    let (_, said) = place.good(&["run", "p.yaml"]);
    assert!(said.contains("base: the stored artifact was damaged") && said.contains("set aside"), "{said}");
    assert_eq!(place.digests(), want);
}

#[test]
fn a_deleted_file_is_made_again_and_nothing_else() {
    let place = Place::new(TINY);
    place.good(&["run", "p.yaml", "--threads", "2"]);
    let want = place.digests();
    let adapter = &place.artifacts()["adapter"];
    let weights = files(&adapter.dir).into_iter().find(|p| p.extension().is_some_and(|e| e == "safetensors")).unwrap();
    std::fs::remove_file(&weights).unwrap();
    assert_eq!(place.would_run(&[])[0], "adapter");
    let (_, said) = place.good(&["run", "p.yaml", "--threads", "2"]);
    assert!(said.contains("ran 1, cached 7"), "{said}");
    assert_eq!(place.digests(), want);
    // The whole entry, and everything beside the entries.
    std::fs::remove_dir_all(&place.artifacts()["base"].dir).unwrap();
    for folder in ["stamps", "locks", "runs"] {
        std::fs::remove_dir_all(place.path("home").join(folder)).unwrap();
    }
    let (_, said) = place.good(&["run", "p.yaml", "--threads", "2"]);
    assert!(said.contains("ran 1, cached 7"), "{said}");
    assert_eq!(place.digests(), want);
}

#[test]
fn clocks_may_jump() {
    let place = Place::new(TINY);
    place.good(&["run", "p.yaml", "--threads", "2"]);
    let day = Duration::from_secs(86_400);
    for time in [SystemTime::UNIX_EPOCH + day, SystemTime::now() + 3000 * day] {
        for path in files(&place.path("home")).into_iter().chain(files(&place.path("hf"))) {
            std::fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        assert!(place.would_run(&[]).is_empty(), "{time:?}");
        let (_, said) = place.good(&["run", "p.yaml"]);
        assert!(said.contains("nothing to do"), "{said}");
    }
    // Artifacts from the future are young, not old, although this pipeline needs none of them.
    std::fs::write(place.path("q.yaml"), "name: q\nstages:\n  - {id: model, run: {download: {repo: bundled}}}\n")
        .unwrap();
    let gc = |more: &[&str]| place.good(&[&["cache", "gc", "--keep", "q.yaml"], more].concat()).0;
    assert!(gc(&[]).contains("7 items"), "{}", gc(&[]));
    let said = gc(&["--older-than", "1h"]);
    assert!(said.contains("nothing would be removed"), "{said}");
}

/// A small file system, taken down at the end; None where this user may not mount.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn new(place: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(place).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(place).stderr(Stdio::null());
        if mount.status().is_ok_and(|s| s.success()) {
            return Some(Self(place.to_owned()));
        }
        eprintln!("skipped: this user may not mount a small file system");
        None
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_stops_the_run_and_loses_nothing() {
    let place = Place::new(TINY);
    let reference = Place::new(TINY);
    reference.good(&["run", "p.yaml", "--threads", "2"]);
    let Some(disk) = Tmpfs::new(&place.path("home"), "size=700k") else { return };
    let said = place.fails(&["run", "p.yaml", "--threads", "2"], 1);
    assert!(said.contains("disk is full") || said.contains("No space left"), "{said}");
    assert!(said.contains("free some space"), "a hint says what to do: {said}");
    let (good, bad) = place.store().list().unwrap();
    assert!(bad.is_empty() && good.len() < 8, "{} good, bad: {bad:?}", good.len());
    disk.remount("size=200m");
    place.good(&["run", "p.yaml", "--threads", "2"]);
    assert_eq!(place.digests(), reference.digests());
    place.good(&["cache", "verify"]);
}

#[test]
fn a_read_only_store_still_serves_what_it_has() {
    let place = Place::new(TINY);
    let Some(disk) = Tmpfs::new(&place.path("home"), "size=200m") else { return };
    place.good(&["run", "p.yaml", "--threads", "2"]);
    disk.remount("ro");
    assert!(place.would_run(&[]).is_empty());
    let model = text(&place.qerl(&["path", "tiny:base"]).stdout);
    assert!(Path::new(model.trim()).join("config.json").exists(), "{model}");
    let (_, said) = place.good(&["run", "p.yaml"]);
    assert!(said.contains("nothing to do"), "{said}");
    let said = place.fails(&["run", "p.yaml", "--set", "adapter.seed=2"], 1);
    assert!(said.contains("read-only") && said.contains("choose another folder"), "{said}");
    disk.remount("rw");
    place.good(&["run", "p.yaml", "--set", "adapter.seed=2"]);
}

/// The binary as a user without rights and in `group`; None where this user may not become another.
fn as_other(place: &Place, user: u32, group: u32, args: &[&str]) -> Option<std::process::Output> {
    let plain = place.command(args);
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={group}"), "--clear-groups", "--inh-caps=-all"]);
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(place.dir.path()).env_clear();
    for (key, value) in plain.get_envs() {
        if let Some(value) = value {
            command.env(key, value);
        }
    }
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    if !rustix_is_root() {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    match command.output() {
        Ok(output) if !text(&output.stderr).contains("setpriv:") => Some(output),
        _ => {
            eprintln!("skipped: setpriv cannot change the user here");
            None
        }
    }
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Whether another user can run the binary where it lies.
fn reachable(place: &Place) -> bool {
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    as_other(place, 65_534, 65_534, &["--version"]).is_some_and(|o| o.status.success())
}

#[test]
fn a_store_that_may_not_be_written_is_said() {
    let place = Place::new(TINY);
    if !reachable(&place) {
        eprintln!("skipped: another user cannot run the binary here");
        return;
    }
    let other = |args: &[&str]| as_other(&place, 65_534, 65_534, args).unwrap();
    let done = other(&["run", "p.yaml"]);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("Permission denied") && said.contains("hint:"), "{said}");
    // One that holds everything but belongs to somebody else.
    place.good(&["run", "p.yaml", "--threads", "2"]);
    let done = other(&["plan", "p.yaml"]);
    assert!(text(&done.stdout).contains("8 cached, 0 to run"), "{}{}", text(&done.stdout), text(&done.stderr));
    let open = place.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let done = other(&["run", "p.yaml", "--reports", "open"]);
    assert!(text(&done.stderr).contains("nothing to do"), "{}", text(&done.stderr));
    // An entry that cannot be read is not taken for a damaged one, let alone thrown away.
    let entry = &place.artifacts()["base"].dir;
    std::fs::set_permissions(entry, std::fs::Permissions::from_mode(0o700)).unwrap();
    let done = other(&["plan", "p.yaml"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("Permission denied"), "{}", text(&done.stderr));
    assert!(entry.join("artifact.json").exists());
}

#[test]
fn a_group_shares_a_store() {
    let place = Place::new(TINY);
    if !reachable(&place) {
        eprintln!("skipped: another user cannot run the binary here");
        return;
    }
    // Two users of the group 12345 who have nothing else in common; reports go to folders of their own.
    let shared = place.path("shared");
    std::fs::create_dir(&shared).unwrap();
    std::os::unix::fs::chown(&shared, Some(40_001), Some(12_345)).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o2775)).unwrap();
    let member = |user: u32, args: &[&str]| {
        let own = place.path(&format!("user{user}"));
        std::fs::create_dir_all(&own).unwrap();
        std::os::unix::fs::chown(&own, Some(user), Some(12_345)).unwrap();
        let plain = place.command(args);
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--regid=12345", "--clear-groups", "--inh-caps=-all"]);
        command.arg(plain.get_program()).args(plain.get_args()).current_dir(&own).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("QERL_STORE", &shared).env("HF_HOME", own.join("hf")).env("HF_HUB_OFFLINE", "1");
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, said) = member(40_001, &["run", "../p.yaml", "--until", "adapter"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, _, said) = member(40_002, &["run", "../p.yaml", "--until", "warm"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("base: started") && !said.contains("adapter: started"), "{said}");
    // What one made, the other may replace and remove.
    let (code, _, said) = member(40_001, &["run", "../p.yaml", "--until", "warm", "--force", "warm"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, out, said) = member(40_002, &["cache", "rm", "tiny:base", "tiny:warm"]);
    assert_eq!(code, Some(0), "{out}{said}");
    for path in files(&shared) {
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.gid(), meta.mode() & 0o060), (12_345, 0o060), "{}", path.display());
    }
}
