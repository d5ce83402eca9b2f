//! Downloads from a hub that behaves, and from one that does not.

mod hub_server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hub_server::{Server, git_id, sha256};
use qerl::control::{Cancel, Progress, Quiet};
use qerl::error::Kind;
use qerl::hub::{BlobId, Hub, HubConfig, Manifest, RemoteFile, Snapshot, Token, ensure_present};
use qerl::pipeline::{Graph, Instance, Resources};
use qerl::run::{Deaf, Executor, Options, Summary, dispatch::Builtin};
use qerl::stages::{Context, download};
use qerl::store::{Finished, Handle, Key, Location, Provenance, Store};
use qerl::{Error, Result};

/// Bytes without a pattern that a shifted copy would have too.
fn noise(n: usize) -> Vec<u8> {
    let mut state = 7u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

struct Bench {
    dir: tempfile::TempDir,
    server: Server,
}

const SIZE: usize = 300_000;

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, bytes: &[u8]| {
            let path = dir.path().join("root").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        put("models/o/m/config.json", b"{\"model_type\": \"qwen2\"}");
        put("models/o/m/model.safetensors", &noise(SIZE));
        put("models/o/m/pytorch_model.bin", b"pickle");
        put("models/o/m/onnx/model.onnx", b"onnx");
        put("datasets/o/d/README.md", b"# rows");
        put("datasets/o/d/main/test-00000-of-00001.parquet", &noise(1000));
        put("datasets/o/d/main/train-00000-of-00001.parquet", &noise(2000));
        put("datasets/o/d/other/a b%.parquet", &noise(500));
        put("datasets/o/lines/test.jsonl", b"{\"a\": 1}\n");
        let server = Server::start(&dir.path().join("root"));
        Self { dir, server }
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("hub")
    }

    fn config(&self) -> HubConfig {
        let mut config = HubConfig::new(self.server.endpoint(), self.cache());
        config.backoff = Duration::from_millis(5);
        config.stall = Duration::from_millis(400);
        config.retries = 3;
        config
    }

    fn hub(&self) -> Hub {
        Hub::new(self.config()).unwrap()
    }

    fn resolve(&self) -> Snapshot {
        self.hub().resolve("o/m", false, "main", &Cancel::new()).unwrap()
    }

    /// Fetches the weights, whose snapshot was resolved before anything went wrong.
    fn weights(&self, hub: &Hub, snapshot: &Snapshot) -> Result<Vec<u8>> {
        let file = weights_of(snapshot);
        let folder = hub.fetch(snapshot, &[file], &Quiet, &Cancel::new())?;
        Ok(std::fs::read(folder.join(&file.path)).unwrap())
    }

    fn part(&self) -> PathBuf {
        self.cache().join("models--o--m/blobs").join(sha256(&noise(SIZE)) + ".incomplete")
    }

    fn store(&self) -> Store {
        Store::open(self.dir.path().join("qerl")).unwrap().with_hub_cache(self.cache())
    }

    /// Runs the stage; gives its output and the folder that became the artifact.
    fn stage(&self, hub: &Hub, config: serde_json::Value) -> Result<(download::Config, qerl::stages::Output, PathBuf)> {
        let store = self.store();
        let output = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let config: download::Config = serde_json::from_value(config).unwrap();
        let context = Context {
            inputs: Vec::new(),
            output: output.clone(),
            work: self.dir.path().join("work"),
            store: &store,
            progress: &Quiet,
            cancel: &Cancel::new(),
            threads: 1,
            base_dir: self.dir.path().to_path_buf(),
            hub,
        };
        let result = download::run(&context, &config)?;
        Ok((config, result, output))
    }
}

fn weights_of(snapshot: &Snapshot) -> &RemoteFile {
    snapshot.files.iter().find(|file| file.path == "model.safetensors").unwrap()
}

fn all(snapshot: &Snapshot) -> Vec<&RemoteFile> {
    snapshot.files.iter().collect()
}

/// Every error tells what to do next.
fn hinted(error: Error, kind: Kind, words: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(error.hint_text().is_some_and(|hint| !hint.is_empty()), "{error}");
}

#[test]
fn a_snapshot_lies_in_the_cache_as_other_tools_expect_it() {
    let bench = Bench::new();
    let hub = bench.hub();
    let snapshot = bench.resolve();
    assert_eq!(snapshot.commit, Server::commit());
    let config = snapshot.files.iter().find(|f| f.path == "config.json").unwrap();
    assert_eq!(config.id, BlobId::Git(git_id(b"{\"model_type\": \"qwen2\"}")));
    assert_eq!(weights_of(&snapshot).id, BlobId::Sha256(sha256(&noise(SIZE))));
    let folder = hub.fetch(&snapshot, &all(&snapshot), &Quiet, &Cancel::new()).unwrap();
    hub.remember(&snapshot, "main");
    let repo = bench.cache().join("models--o--m");
    assert_eq!(folder, repo.join("snapshots").join(Server::commit()));
    let link = std::fs::read_link(folder.join("onnx/model.onnx")).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(git_id(b"onnx")));
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), noise(SIZE));
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), Server::commit());
    let left: Vec<_> = std::fs::read_dir(repo.join("blobs")).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "no unfinished files: {left:?}");
    // A second time nothing is asked for; offline the cache knows it all.
    bench.server.seen();
    hub.fetch(&snapshot, &all(&snapshot), &Quiet, &Cancel::new()).unwrap();
    let mut config = bench.config();
    config.offline = true;
    let offline = Hub::new(config).unwrap();
    assert_eq!(offline.resolve("o/m", false, "main", &Cancel::new()).unwrap().files, snapshot.files);
    hinted(offline.resolve("o/x", false, "main", &Cancel::new()).unwrap_err(), Kind::Missing, "HF_HUB_OFFLINE");
    std::fs::remove_file(repo.join("blobs").join(git_id(b"onnx"))).unwrap();
    let lost = offline.fetch(&snapshot, &all(&snapshot), &Quiet, &Cancel::new());
    hinted(lost.unwrap_err(), Kind::Network, "onnx/model.onnx");
    assert!(bench.server.seen().is_empty());
}

#[test]
fn what_was_cut_off_is_resumed() {
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    bench.server.faults().cut = Some((100_000, 2));
    bench.server.seen();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    let seen: Vec<_> = bench.server.seen().into_iter().filter(|s| s.storage).collect();
    let ranges: Vec<_> = seen.iter().map(|s| s.range.as_deref()).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-"), Some("bytes=200000-")]);
    assert_eq!(seen[1].if_range, Some(format!("\"{}\"", sha256(&noise(SIZE)))));
}

#[test]
fn a_later_run_resumes_what_an_earlier_one_left() {
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    bench.server.faults().cut = Some((1000, 99));
    hinted(bench.weights(&hub, &snapshot).unwrap_err(), Kind::Network, "model.safetensors");
    assert_eq!(std::fs::metadata(bench.part()).unwrap().len(), 4000, "what four attempts brought");
    assert_eq!(hub.missing_bytes(&snapshot, &[weights_of(&snapshot)]), SIZE as u64 - 4000);
    bench.server.faults().cut = None;
    bench.server.seen();
    assert_eq!(bench.weights(&bench.hub(), &snapshot).unwrap(), noise(SIZE));
    assert_eq!(bench.server.seen()[0].range.as_deref(), Some("bytes=4000-"));
}

#[test]
fn leftovers_that_do_not_fit_are_fetched_anew() {
    for leftover in [vec![1; 5000], vec![1; SIZE], vec![1; SIZE + 1]] {
        let bench = Bench::new();
        let (hub, snapshot) = (bench.hub(), bench.resolve());
        std::fs::create_dir_all(bench.part().parent().unwrap()).unwrap();
        std::fs::write(bench.part(), leftover).unwrap();
        assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    }
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    let mut faults = bench.server.faults();
    (faults.ignore_range, faults.cut) = (true, Some((100_000, 1)));
    drop(faults);
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE), "a server without ranges sends it all again");
}

#[test]
fn wrong_bytes_are_never_kept() {
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    bench.server.faults().corrupt = 1;
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE), "the second try is right");
    // Damage in the cache, whoever made it, is found when a download looks again.
    let blob = bench.part().with_extension("");
    let mut bytes = noise(SIZE);
    bytes[5] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    std::fs::write(&blob, &bytes).unwrap();
    bench.server.faults().corrupt = 99;
    hinted(bench.weights(&hub, &snapshot).unwrap_err(), Kind::Integrity, "digest");
    assert!(!blob.exists() && !bench.part().exists());
}

#[test]
fn wrong_sizes_are_errors() {
    let bench = Bench::new();
    bench.server.faults().wrong_size = true;
    let snapshot = bench.resolve();
    hinted(bench.weights(&bench.hub(), &snapshot).unwrap_err(), Kind::Integrity, "promised");
    let small = snapshot.files.iter().find(|f| f.path == "config.json").unwrap();
    let error = bench.hub().fetch(&snapshot, &[small], &Quiet, &Cancel::new()).unwrap_err();
    hinted(error, Kind::Integrity, "promised");
}

#[test]
fn trouble_that_passes_is_waited_out_and_lasting_trouble_is_not() {
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    bench.server.faults().statuses = [503, 429, 500].into();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    let bench = Bench::new();
    bench.server.faults().statuses = [503; 9].into();
    hinted(bench.weights(&bench.hub(), &snapshot).unwrap_err(), Kind::Network, "503");
    let mut config = bench.config();
    config.endpoint = "http://127.0.0.1:1".to_owned();
    let nobody = Hub::new(config).unwrap();
    hinted(nobody.resolve("o/m", false, "main", &Cancel::new()).unwrap_err(), Kind::Network, "127.0.0.1");
}

#[test]
fn stalled_connections_are_given_up_and_slow_ones_are_not() {
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    bench.server.faults().stall = Some((70_000, 1));
    let clock = Instant::now();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    assert!(clock.elapsed() < Duration::from_millis(2500), "{:?}", clock.elapsed());
    let bench = Bench::new();
    bench.server.faults().slow = Some(Duration::from_millis(30));
    bench.server.seen();
    assert_eq!(bench.weights(&bench.hub(), &snapshot).unwrap(), noise(SIZE));
    assert_eq!(bench.server.seen().iter().filter(|s| s.storage).count(), 1);
}

#[test]
fn the_user_can_stop_a_download_and_go_on_later() {
    struct StopAt<'a>(&'a Cancel, Mutex<u64>);
    impl Progress for StopAt<'_> {
        fn total(&self, total: u64, _: &'static str) {
            assert_eq!(total, SIZE as u64);
        }
        fn at(&self, done: u64, _: &str) {
            *self.1.lock().unwrap() = done;
            if done > 0 {
                self.0.cancel();
            }
        }
        fn say(&self, _: &str) {}
    }
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    bench.server.faults().slow = Some(Duration::from_millis(50));
    let cancel = Cancel::new();
    let watch = StopAt(&cancel, Mutex::new(0));
    let error = hub.fetch(&snapshot, &[weights_of(&snapshot)], &watch, &cancel).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
    let kept = std::fs::metadata(bench.part()).unwrap().len();
    assert!(kept > 0 && kept < SIZE as u64, "{kept}");
    bench.server.faults().slow = None;
    bench.server.seen();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    assert_eq!(bench.server.seen()[0].range, Some(format!("bytes={kept}-")));
}

#[test]
fn the_token_goes_to_the_endpoint_alone() {
    let bench = Bench::new();
    let snapshot = bench.resolve();
    bench.server.faults().token = Some("hf_right".to_owned());
    bench.server.seen();
    let none = bench.hub().resolve("o/m", false, "main", &Cancel::new()).unwrap_err();
    assert!(none.hint_text().unwrap().contains("HF_TOKEN"));
    hinted(none, Kind::Missing, "private");
    let with = |token: &str| {
        let mut config = bench.config();
        config.token = Some(Token::new(token).unwrap());
        Hub::new(config).unwrap()
    };
    let wrong = with("hf_wrong").resolve("o/m", false, "main", &Cancel::new()).unwrap_err();
    assert!(!format!("{wrong} {wrong:?} {:?}", wrong.hint_text()).contains("hf_wrong"));
    hinted(wrong, Kind::Network, "token");
    let hub = with("hf_right");
    hub.resolve("o/m", false, "main", &Cancel::new()).unwrap();
    assert!(!format!("{hub:?}").contains("hf_right"));
    bench.server.seen();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    let seen = bench.server.seen();
    assert!(seen.iter().any(|s| !s.storage && s.token.is_some()));
    assert!(seen.iter().any(|s| s.storage), "the storage was asked");
    assert!(seen.iter().all(|s| !s.storage || s.token.is_none()), "without the token: {seen:?}");
}

#[test]
fn redirects_that_lead_astray_are_refused() {
    let bench = Bench::new();
    let snapshot = bench.resolve();
    let mut config = bench.config();
    config.token = Some(Token::new("hf_right").unwrap());
    let hub = Hub::new(config).unwrap();
    for (target, words) in [
        ("ftp://h/x", "neither http"),
        ("file:///etc/passwd", "no address"),
        ("/o/m/resolve/x/model.safetensors", "10 redirects"),
    ] {
        bench.server.faults().redirect = Some(target.to_owned());
        let error = bench.weights(&hub, &snapshot).unwrap_err();
        hinted(error, Kind::Network, words);
    }
}

#[test]
fn refusals_say_what_to_do() {
    let bench = Bench::new();
    let resolve = |repo: &str, revision: &str| bench.hub().resolve(repo, false, revision, &Cancel::new()).unwrap_err();
    hinted(resolve("o/none", "main"), Kind::Missing, "o/none");
    hinted(resolve("o/m", "gone"), Kind::Missing, "revision `gone`");
    hinted(resolve("../m", "main"), Kind::Usage, "not the name");
    hinted(resolve("o/m", "../../x"), Kind::Usage, "not a revision");
    let snapshot = bench.resolve();
    std::fs::remove_file(bench.dir.path().join("root/models/o/m/model.safetensors")).unwrap();
    hinted(bench.weights(&bench.hub(), &snapshot).unwrap_err(), Kind::Missing, "model.safetensors");
    bench.server.faults().gated = true;
    let gated = resolve("o/m", "main");
    assert!(gated.hint_text().unwrap().contains("/o/m"));
    hinted(gated, Kind::Network, "on request");
    bench.server.faults().gated = false;
    for body in ["<html>log in</html>", "{}", "[]", "{\"sha\": \"x\"}"] {
        bench.server.faults().api_body = Some(body.to_owned());
        hinted(resolve("o/m", "main"), Kind::Network, "description");
    }
}

#[test]
fn a_hub_that_names_hostile_files_is_refused() {
    for name in
        ["../../../evil", "/etc/evil", "a\\..\\evil", "a/../evil", "x\0y", "nul", ".git/config", "config.json/x"]
    {
        let bench = Bench::new();
        bench.server.faults().extra_names = vec![name.to_owned()];
        let error = bench.hub().resolve("o/m", false, "main", &Cancel::new()).unwrap_err();
        assert!(error.hint_text().is_some(), "{name}: {error}");
        assert!(!bench.cache().exists(), "{name}: nothing was written");
    }
}

#[test]
fn a_cache_that_cannot_be_used_is_named() {
    let bench = Bench::new();
    let (hub, snapshot) = (bench.hub(), bench.resolve());
    std::fs::write(bench.cache(), "").unwrap();
    let cache = bench.cache().display().to_string();
    let error = bench.weights(&hub, &snapshot).unwrap_err();
    assert!(error.hint_text().is_some_and(|hint| hint.contains("HF_HOME")), "{error}");
    hinted(error, Kind::Storage, &cache);
    // What a later run finds in its place is used.
    std::fs::remove_file(bench.cache()).unwrap();
    assert_eq!(bench.weights(&hub, &snapshot).unwrap(), noise(SIZE));
    // A damaged pointer to the commit of `main` does no harm either.
    std::fs::create_dir_all(bench.cache().join("models--o--m/refs")).unwrap();
    std::fs::write(bench.cache().join("models--o--m/refs/main"), b"\xff\xfe../../..").unwrap();
    assert_eq!(bench.resolve(), snapshot);
}

#[test]
fn long_listings_come_page_by_page() {
    let bench = Bench::new();
    let whole = bench.resolve();
    bench.server.faults().page = Some(1);
    let mut config = bench.config();
    config.listing_limit = 2;
    let hub = Hub::new(config).unwrap();
    assert_eq!(hub.resolve("o/m", false, "main", &Cancel::new()).unwrap(), whole);
    assert_eq!(bench.server.seen().iter().filter(|s| s.path.contains("/tree/")).count(), 4);
    // Mirrors that leave sizes out are asked for the tree as well.
    bench.server.faults().no_sizes = true;
    assert_eq!(bench.resolve(), whole);
    bench.server.faults().endless = true;
    hinted(hub.resolve("o/m", false, "main", &Cancel::new()).unwrap_err(), Kind::Network, "never ends");
    bench.server.faults().page_elsewhere = true;
    hinted(hub.resolve("o/m", false, "main", &Cancel::new()).unwrap_err(), Kind::Network, "another host");
}

#[test]
fn two_downloads_of_one_file_share_the_work() {
    let bench = Bench::new();
    let snapshot = bench.resolve();
    bench.server.faults().slow = Some(Duration::from_millis(10));
    bench.server.seen();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(bench.weights(&bench.hub(), &snapshot).unwrap(), noise(SIZE)));
        }
    });
    assert_eq!(bench.server.seen().iter().filter(|s| s.storage).count(), 1);
}

#[test]
fn the_stage_leaves_the_files_in_the_cache_and_notices_when_they_go() {
    let bench = Bench::new();
    let hub = bench.hub();
    let (_, output, folder) = bench.stage(&hub, serde_json::json!({"repo": "o/m"})).unwrap();
    let at = Location::Hub { repo: "o/m".into(), dataset: false, commit: Server::commit() };
    assert_eq!(output.handle, Handle::Model { at });
    assert_eq!(output.declared, [Manifest::FILE]);
    let manifest = Manifest::read(&folder).unwrap();
    let names: Vec<&str> = manifest.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(names, ["config.json", "model.safetensors"], "one form of the weights, no leftovers of other tools");
    bench.server.seen();
    let place = ensure_present(&hub, &manifest, &Quiet, &Cancel::new()).unwrap();
    assert!(bench.server.seen().is_empty(), "what is there is not asked for");
    std::fs::remove_file(bench.part().with_extension("")).unwrap();
    ensure_present(&hub, &manifest, &Quiet, &Cancel::new()).unwrap();
    assert_eq!(std::fs::read(place.join("model.safetensors")).unwrap(), noise(SIZE));
    assert!(!bench.server.seen().iter().any(|s| s.path.contains("config.json")), "only what was lost");
    for bad in ["../x", "/x"] {
        let mut manifest = manifest.clone();
        manifest.files[0].path = bad.to_owned();
        assert!(ensure_present(&hub, &manifest, &Quiet, &Cancel::new()).is_err(), "{bad}");
    }
}

#[test]
fn a_pinned_download_asks_nobody_for_what_is_pinned() {
    let bench = Bench::new();
    let hub = bench.hub();
    let snapshot = bench.resolve();
    let pins: BTreeMap<String, String> = snapshot
        .files
        .iter()
        .map(|f| {
            let kind = if matches!(f.id, BlobId::Git(_)) { "git" } else { "sha256" };
            (f.path.clone(), format!("{kind}:{}:{}", f.id.as_str(), f.size))
        })
        .collect();
    let config = |pins: &BTreeMap<String, String>| serde_json::json!({"repo": "o/m", "revision": snapshot.commit, "asked": "main", "pins": pins});
    bench.server.seen();
    bench.stage(&hub, config(&pins)).unwrap();
    assert!(bench.server.seen().iter().all(|s| !s.path.starts_with("/api/")));
    assert!(bench.cache().join("models--o--m/refs/main").is_file());
    // Other bytes than those in qerl.lock are refused, whatever the hub says of them.
    let mut other = pins.clone();
    other.insert("config.json".to_owned(), format!("git:{}:23", "ab".repeat(20)));
    hinted(bench.stage(&hub, config(&other)).unwrap_err(), Kind::Integrity, "config.json");
    other.insert("../x".to_owned(), format!("git:{}:23", "ab".repeat(20)));
    assert_eq!(bench.stage(&hub, config(&other)).unwrap_err().kind(), Kind::Integrity);
}

#[test]
fn data_sets_bring_the_rows_of_their_configuration() {
    let bench = Bench::new();
    let hub = bench.hub();
    let names = |config: serde_json::Value| -> Vec<String> {
        let (_, output, folder) = bench.stage(&hub, config).unwrap();
        assert!(matches!(output.handle, Handle::Files { .. }));
        Manifest::read(&folder).unwrap().files.into_iter().map(|f| f.path).collect()
    };
    let main = ["README.md", "main/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet"];
    assert_eq!(names(serde_json::json!({"repo": "o/d", "dataset": true, "config": "main"})), main);
    let glob = names(serde_json::json!({"repo": "o/d", "dataset": true, "files": ["other/*"]}));
    assert_eq!(glob, ["other/a b%.parquet"], "names are encoded on the way");
    assert_eq!(names(serde_json::json!({"repo": "o/lines", "dataset": true})), ["test.jsonl"]);
    let error = bench.stage(&hub, serde_json::json!({"repo": "o/d", "dataset": true, "files": ["*.csv"]})).unwrap_err();
    hinted(error, Kind::Usage, "*.csv");
    let error = bench.stage(&hub, serde_json::json!({"repo": "o/m", "files": ["*.json"]})).unwrap_err();
    hinted(error, Kind::Usage, "weights");
}

#[test]
fn local_sources_stay_where_they_are() {
    let bench = Bench::new();
    let hub = bench.hub();
    let model = bench.dir.path().join("root/models/o/m");
    let (_, output, _) = bench.stage(&hub, serde_json::json!({"repo": "file:root/models/o/m"})).unwrap();
    assert_eq!(output.handle, Handle::Model { at: Location::Local { path: model } });
    let file = "file:root/datasets/o/lines/test.jsonl";
    let (_, output, _) = bench.stage(&hub, serde_json::json!({"repo": file, "dataset": true})).unwrap();
    let path = bench.dir.path().join("root/datasets/o/lines/test.jsonl");
    assert_eq!(output.handle, Handle::Files { at: Location::Local { path } });
    for (config, kind, words) in [
        (serde_json::json!({"repo": file}), Kind::Input, "not a GGUF"),
        (serde_json::json!({"repo": "file:root/datasets/o/d"}), Kind::Input, "config.json"),
        (serde_json::json!({"repo": "file:nowhere"}), Kind::Missing, "nowhere"),
        (serde_json::json!({"repo": "file:root/models/o/m", "revision": "v1"}), Kind::Usage, "`revision`"),
        (serde_json::json!({"repo": "file:root/models/o/m", "files": ["x"]}), Kind::Usage, "`files`"),
        (serde_json::json!({"repo": "bundled", "dataset": true}), Kind::Usage, "not a data set"),
        (serde_json::json!({"repo": "run:nothing:here"}), Kind::Missing, "nothing"),
    ] {
        let error = bench.stage(&hub, config.clone()).unwrap_err();
        assert_eq!(error.kind(), kind, "{config}: {error}");
        assert!(error.to_string().contains(words), "{config}: {error}");
    }
    assert!(bench.server.seen().is_empty(), "nothing of it asked the hub");
}

#[test]
fn a_run_pins_downloads_and_mends_what_the_cache_has_lost() {
    let bench = Bench::new();
    let (hub, store) = (bench.hub(), bench.store());
    let run = |repo: &str| -> Summary {
        let instance = Instance {
            stage: "model".to_owned(),
            kind: qerl::stages::Kind::Download,
            point: BTreeMap::new(),
            config: serde_json::json!({"repo": repo, "revision": "main"}),
            inputs: Vec::new(),
            needs: Vec::new(),
            resources: Resources::default(),
        };
        let graph = Graph {
            name: "exp".to_owned(),
            file: bench.dir.path().join("exp.yaml"),
            instances: vec![instance],
            axes: BTreeMap::new(),
            notes: Vec::new(),
        };
        let executor = Executor {
            graph: &graph,
            store: &store,
            hub: &hub,
            stages: &Builtin,
            resolver: &hub,
            listener: &Deaf,
            cancel: Cancel::new(),
            options: Options::default(),
            lock_path: bench.dir.path().join("qerl.lock"),
        };
        let summary = executor.run().unwrap();
        assert!(summary.error.is_none(), "{:?}", summary.error);
        summary
    };
    assert_eq!(run("o/m").ran(), 1);
    let lock = std::fs::read_to_string(bench.dir.path().join("qerl.lock")).unwrap();
    assert!(lock.contains(&Server::commit()) && lock.contains(&sha256(&noise(SIZE))));
    bench.server.seen();
    assert_eq!(run("o/m").cached(), 1);
    assert!(bench.server.seen().is_empty(), "a second run asks nobody");
    let blob = bench.part().with_extension("");
    std::fs::remove_file(&blob).unwrap();
    assert_eq!(run("o/m").cached(), 1);
    assert_eq!(std::fs::read(&blob).unwrap(), noise(SIZE));
    // The whole repository has left the cache.
    std::fs::remove_dir_all(bench.cache()).unwrap();
    assert_eq!(run("o/m").ran(), 1);
    assert!(blob.exists());
    // The same content at another place: the artifact must not refer to the old one.
    let local = bench.dir.path().join("root/models/o/m");
    let copy = bench.dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(local.join(name), copy.join(name)).unwrap();
    }
    let second = bench.dir.path().join("second");
    std::fs::create_dir(&second).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(local.join(name), second.join(name)).unwrap();
    }
    assert_eq!(run("file:copy").ran(), 1);
    assert_eq!(run("file:copy").cached(), 1);
    assert_eq!(run("file:second").ran(), 1);
    let artifact = store.resolve("exp:model").unwrap();
    assert_eq!(artifact.meta.handle, Handle::Model { at: Location::Local { path: second } });
    // An earlier run as the source.
    let from = run("run:exp:model");
    assert_eq!(from.ran() + from.cached(), 1);
}

#[test]
fn an_earlier_adapter_comes_with_its_checkpoints() {
    let bench = Bench::new();
    let (hub, store) = (bench.hub(), bench.store());
    let key = Key {
        kind: qerl::stages::Kind::Train,
        version: 1,
        backend: None,
        config: serde_json::Value::Null,
        inputs: BTreeMap::new(),
        files: BTreeMap::new(),
    };
    let model = Location::Local { path: bench.dir.path().join("root/models/o/m") };
    let adapters = [("last", "steps/2"), ("2", "steps/2"), ("1", "steps/1")];
    let adapters: BTreeMap<String, String> = adapters.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    let handle = Handle::Adapter { model: model.clone(), adapters: adapters.clone() };
    let lock = store.lock(&key.fingerprint(), "train", &Cancel::new(), |_| {}).unwrap();
    let draft = store.begin(&key.fingerprint(), &lock).unwrap();
    for step in ["1", "2"] {
        let folder = draft.dir().join("steps").join(step);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("adapter_model.safetensors"), step).unwrap();
    }
    let finished = Finished {
        declared: vec!["steps".to_owned()],
        handle: handle.clone(),
        summary: serde_json::Value::Null,
        inputs: BTreeMap::new(),
        provenance: Provenance::default(),
    };
    let artifact = draft.commit(&key, finished).unwrap();
    store.set_name("exp", "train", &artifact.meta.fingerprint).unwrap();
    let (_, output, folder) = bench.stage(&hub, serde_json::json!({"repo": "run:exp:train"})).unwrap();
    assert_eq!(output.handle, handle);
    assert_eq!(output.declared, ["steps"]);
    assert_eq!(std::fs::read_to_string(folder.join("steps/2/adapter_model.safetensors")).unwrap(), "2");
    let data = bench.stage(&hub, serde_json::json!({"repo": "run:exp:train", "dataset": true}));
    hinted(data.unwrap_err(), Kind::Usage, "no data set");
}
