//! The store: what is written is found again, what is damaged is noticed, what is half-written is never seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use qerl::control::Cancel;
use qerl::error::Kind as Trouble;
use qerl::stages::Kind;
use qerl::store::{Artifact, Finished, Handle, Key, Location, Lookup, Provenance, Store};

fn key(name: &str) -> Key {
    Key {
        kind: Kind::Quantize,
        version: 1,
        backend: None,
        config: serde_json::json!({ "name": name }),
        inputs: BTreeMap::new(),
        files: BTreeMap::new(),
    }
}

fn own() -> Handle {
    Handle::Model { at: Location::Own { path: ".".to_owned() } }
}

fn finished(declared: &[&str], handle: Handle) -> Finished {
    Finished {
        declared: declared.iter().map(|s| (*s).to_owned()).collect(),
        handle,
        summary: serde_json::Value::Null,
        inputs: BTreeMap::new(),
        provenance: Provenance::default(),
    }
}

fn put(store: &Store, name: &str, files: &[(&str, &str)], declared: &[&str], handle: Handle) -> Artifact {
    let key = key(name);
    let lock = store.lock(&key.fingerprint(), name, &Cancel::new(), |_| {}).unwrap();
    let draft = store.begin(&key.fingerprint(), &lock).unwrap();
    for (path, text) in files {
        let path = draft.dir().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    draft.commit(&key, finished(declared, handle)).unwrap()
}

fn store(dir: &Path) -> Store {
    Store::open(dir.join("home")).unwrap()
}

#[test]
fn what_is_stored_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    assert!(store.get(&key("a").fingerprint()).unwrap().is_none());
    assert!(!store.root.exists(), "looking creates nothing");
    let made = put(&store, "a", &[("config.json", "{}"), ("w/m.bin", "12345")], &["config.json", "w"], own());
    let found = store.get(&key("a").fingerprint()).unwrap().unwrap();
    assert_eq!(found.meta.digest, made.meta.digest);
    assert_eq!(found.meta.files["w/m.bin"].size, 5);
    assert_eq!(found.meta.files["w/m.bin"].blake3, blake3::hash(b"12345").to_hex().to_string());
    assert_eq!(found.meta.declared, ["config.json", "w/m.bin"]);
    let at = store.locate(&found, &Location::Own { path: "w/m.bin".to_owned() }).unwrap();
    assert_eq!(std::fs::read_to_string(at).unwrap(), "12345");
    let names: Vec<_> = std::fs::read_dir(store.root.join("store")).unwrap().collect();
    assert_eq!(names.len(), 1, "no temp dir is left");
}

#[test]
fn the_digest_covers_declared_outputs_and_references_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let digest =
        |name: &str, files: &[(&str, &str)], handle: Handle| put(&store, name, files, &["out"], handle).meta.digest;
    let base = digest("a", &[("out", "x"), ("metrics", "1")], own());
    assert_eq!(base, digest("b", &[("out", "x"), ("metrics", "2")], own()));
    assert_ne!(base, digest("c", &[("out", "y"), ("metrics", "1")], own()));
    let adapter = |on: &str| Handle::Adapter {
        model: Location::Artifact { fingerprint: key(on).fingerprint(), path: ".".to_owned() },
        adapters: BTreeMap::new(),
    };
    let on_a = digest("d", &[("out", "x")], adapter("a"));
    assert_eq!(on_a, digest("e", &[("out", "x")], adapter("b")), "equal bases, whatever their fingerprints");
    assert_ne!(on_a, digest("f", &[("out", "x")], adapter("c")), "the same adapter on another base");
}

#[test]
fn a_stage_that_forgets_an_output_or_writes_the_stores_file_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for (file, declared) in [("a", "b"), ("artifact.json", "artifact.json")] {
        let key = key("x");
        let lock = store.lock(&key.fingerprint(), "x", &Cancel::new(), |_| {}).unwrap();
        let draft = store.begin(&key.fingerprint(), &lock).unwrap();
        std::fs::write(draft.dir().join(file), "1").unwrap();
        let error = draft.commit(&key, finished(&[declared], own())).unwrap_err();
        assert_eq!(error.kind(), Trouble::Failed);
        assert_eq!(std::fs::read_dir(store.root.join("store")).unwrap().count(), 0);
    }
}

#[test]
fn damage_is_noticed_and_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let fingerprint = key("a").fingerprint();
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("bytes", |d| std::fs::write(d.join("out"), "tail short").unwrap()),
        ("content", |d| std::fs::write(d.join("out"), "CONTENT").unwrap()),
        ("missing", |d| std::fs::remove_file(d.join("out")).unwrap()),
        ("artifact.json", |d| std::fs::write(d.join("artifact.json"), "{").unwrap()),
        ("artifact.json is missing", |d| std::fs::remove_file(d.join("artifact.json")).unwrap()),
    ];
    for (what, damage) in damages {
        let made = put(&store, "a", &[("out", "content")], &["out"], own());
        damage(&made.dir);
        let Lookup::Bad(why) = store.lookup(&fingerprint).unwrap() else { panic!("{what} was not noticed") };
        assert!(why.contains(what), "{why}");
        let error = store.get(&fingerprint).unwrap_err();
        assert_eq!(error.kind(), Trouble::Integrity);
        assert!(error.hint_text().is_some());
        let lock = store.lock(&fingerprint, "a", &Cancel::new(), |_| {}).unwrap();
        let place = store.quarantine(&fingerprint, &lock).unwrap();
        assert!(place.exists());
        assert!(matches!(store.lookup(&fingerprint).unwrap(), Lookup::Missing));
    }
    assert_eq!(std::fs::read_dir(store.root.join("quarantine")).unwrap().count(), 5);
}

#[test]
fn same_size_same_time_damage_is_found_by_verify() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let made = put(&store, "a", &[("out", "content")], &["out"], own());
    let file = made.dir.join("out");
    let time = std::fs::metadata(&file).unwrap().modified().unwrap();
    std::fs::write(&file, "CONTENT").unwrap();
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    assert!(matches!(store.lookup(&made.meta.fingerprint).unwrap(), Lookup::Hit(_)), "a hit does not read 15 GB");
    assert!(matches!(store.verify(&made.meta.fingerprint).unwrap(), Lookup::Bad(_)));
}

#[test]
fn a_touched_file_is_hashed_once_and_stays_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let made = put(&store, "a", &[("out", "content")], &["out"], own());
    std::fs::write(made.dir.join("out"), "content").unwrap();
    assert!(store.get(&made.meta.fingerprint).unwrap().is_some());
}

#[test]
fn nothing_leads_out_of_an_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let made = put(&store, "a", &[("out", "x")], &["out"], own());
    let hub =
        |repo: &str, commit: &str| Location::Hub { repo: repo.to_owned(), dataset: false, commit: commit.to_owned() };
    for location in [
        Location::Own { path: "../../x".to_owned() },
        Location::Own { path: "/etc/passwd".to_owned() },
        Location::Artifact { fingerprint: "../..".to_owned(), path: ".".to_owned() },
        hub("../..", &"a".repeat(40)),
        hub("a/b", "../../.."),
    ] {
        let error = store.locate(&made, &location).unwrap_err();
        assert_eq!(error.kind(), Trouble::Integrity, "{location:?}");
    }
    let gone = Location::Artifact { fingerprint: "0".repeat(64), path: ".".to_owned() };
    assert_eq!(store.locate(&made, &gone).unwrap_err().kind(), Trouble::Missing);
}

#[test]
fn an_entry_whose_reference_is_gone_is_bad() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let local = dir.path().join("model");
    std::fs::create_dir(&local).unwrap();
    let made = put(&store, "a", &[], &[], Handle::Model { at: Location::Local { path: local.clone() } });
    assert!(store.get(&made.meta.fingerprint).unwrap().is_some());
    std::fs::remove_dir(&local).unwrap();
    assert!(matches!(store.lookup(&made.meta.fingerprint).unwrap(), Lookup::Bad(_)));
}

#[test]
fn a_replaced_entry_is_never_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let fingerprint = key("a").fingerprint();
    put(&store, "a", &[("out", "one")], &["out"], own());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                assert!(store.root.join("store").join(&fingerprint).join("artifact.json").exists());
            }
        });
        for text in ["two", "three", "four"] {
            put(&store, "a", &[("out", text)], &["out"], own());
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        reader.join().unwrap();
    });
    let found = store.get(&fingerprint).unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(found.dir.join("out")).unwrap(), "four");
}

#[test]
fn gc_keeps_what_is_kept_and_what_it_stands_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    put(&store, "base", &[("out", "b")], &["out"], own());
    let on = Location::Artifact { fingerprint: key("base").fingerprint(), path: ".".to_owned() };
    put(&store, "adapter", &[("out", "a")], &["out"], Handle::Adapter { model: on, adapters: BTreeMap::new() });
    put(&store, "old", &[("out", "old")], &["out"], own());
    let busy = put(&store, "busy", &[("out", "busy")], &["out"], own());
    let _held = store.try_lock(&busy.meta.fingerprint, "someone").unwrap().unwrap();
    std::fs::create_dir_all(store.work(&key("old").fingerprint())).unwrap();
    let keep = BTreeSet::from([key("adapter").fingerprint()]);
    let would = store.gc(&keep, true).unwrap();
    assert_eq!(store.fingerprints().unwrap().len(), 4, "a dry run removes nothing");
    assert!(would.iter().any(|r| r.what == format!("store/{}", key("old").fingerprint())));
    store.gc(&keep, false).unwrap();
    let mut left = vec![key("adapter").fingerprint(), key("base").fingerprint(), busy.meta.fingerprint.clone()];
    left.sort();
    assert_eq!(store.fingerprints().unwrap(), left);
    assert!(!store.work(&key("old").fingerprint()).exists());
}

#[test]
fn a_store_that_is_no_folder_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("home");
    std::fs::write(&file, "").unwrap();
    let error = Store::open(&file).unwrap_err();
    assert_eq!(error.kind(), Trouble::Storage);
    assert!(error.hint_text().unwrap().contains("QERL_HOME"));
    // The folder of entries itself is a file.
    let store = Store::open(dir.path().join("other")).unwrap();
    std::fs::create_dir(&store.root).unwrap();
    std::fs::write(store.root.join("store"), "").unwrap();
    assert_eq!(store.get(&key("a").fingerprint()).unwrap_err().kind(), Trouble::Storage);
    assert_eq!(store.list().unwrap_err().kind(), Trouble::Storage);
}

#[test]
fn a_writer_killed_before_the_rename_leaves_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let fingerprint = key("a").fingerprint();
    let lock = store.lock(&fingerprint, "a", &Cancel::new(), |_| {}).unwrap();
    let draft = store.begin(&fingerprint, &lock).unwrap();
    std::fs::write(draft.dir().join("out"), "content").unwrap();
    std::fs::write(draft.dir().join("artifact.json"), "{}").unwrap();
    let place = draft.dir().to_owned();
    // A killed process runs no destructors, but the kernel gives its lock back.
    std::mem::forget(draft);
    drop(lock);
    assert!(place.exists());
    assert!(store.get(&fingerprint).unwrap().is_none());
    assert!(store.fingerprints().unwrap().is_empty());
    assert_eq!(store.sweep_drafts().unwrap(), 1);
    assert!(!place.exists());
}
