//! Bad input as a user meets it: `qerl run` with a damaged model, an empty data set, a full disk, a cache that cannot
//! be read. Every time the exit code is 1, the message names the file, what is wrong and what to do next, and what
//! was finished earlier is taken from the store afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use qerl::hub::bundled;
use serde_json::{Value, json};

const PIPELINE: &str = r#"
name: bad
data: {mine: {repo: "file:problems.jsonl", columns: {prompt: question, answer: answer}, template: plain}}
stages:
  - id: model
    run: {download: {repo: "file:model"}}
  - id: base
    run: {quantize: {model: model, format: nvfp4}}
  - id: check
    run: {eval: {policy: base, data: [mine], max_new_tokens: 2}}
"#;

/// A pipeline over files of this machine, sound until a test damages them.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bench = Self(dir);
        std::fs::create_dir(bench.at("model")).unwrap();
        bundled::write(&bench.at("model")).unwrap();
        std::fs::write(bench.at("bad.yaml"), PIPELINE).unwrap();
        bench.problems("{\"question\": \"2 + 2 =\", \"answer\": \"4\"}\n");
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn problems(&self, text: &str) {
        std::fs::write(self.at("problems.jsonl"), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qerl"));
        command.args(args);
        self.around(command)
    }

    fn around(&self, mut command: Command) -> Command {
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command.env("QERL_HOME", self.at("home")).env("HF_HOME", self.at("hf"));
        command.env("HF_ENDPOINT", "http://127.0.0.1:1");
        for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self) -> Output {
        self.command(&["run", "bad.yaml", "--keep-going"]).output().unwrap()
    }

    /// Runs with the fault, then again after `mend`: nothing that was finished is done a second time.
    #[track_caller]
    fn fails_then_goes_on(&self, wanted: &[&str], finished: usize, mend: impl FnOnce()) {
        refused(&self.run(), wanted);
        mend();
        let again = said(&self.run(), 0);
        assert!(again.contains(&format!("{finished} cached")), "{finished} stages were finished before: {again}");
        assert!(said(&self.run(), 0).contains("nothing to do"));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Exit code 1, and the error at the end holds all of `wanted` and a hint.
#[track_caller]
fn refused(output: &Output, wanted: &[&str]) {
    let said = said(output, 1);
    let error = said.split("\nerror: ").last().unwrap();
    for want in wanted.iter().chain(&["hint: "]) {
        assert!(error.contains(want), "the error does not say {want:?}: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// The header and the data of a safetensors file.
fn split(path: &Path) -> (Value, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + n]).unwrap(), bytes[8 + n..].to_vec())
}

fn join(path: &Path, header: &Value, data: &[u8]) {
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    std::fs::write(path, bytes).unwrap();
}

const TENSOR: &str = "model.layers.0.mlp.gate_proj.weight";

/// The data set and its split are finished; the model is listed anew, as its files are others.
const DATA_STAGES: usize = 2;

#[test]
fn a_truncated_model() {
    for keep in [4, 100, 500_000] {
        let bench = Bench::new();
        let path = bench.at("model/model.safetensors");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..keep]).unwrap();
        let mend = || std::fs::write(&path, &whole).unwrap();
        bench.fails_then_goes_on(&["base: ", "model/model.safetensors", "damaged or incomplete"], DATA_STAGES, mend);
    }
}

#[test]
fn a_header_that_lies() {
    type Lie = fn(&mut Value);
    let lies: [(Lie, &str); 4] = [
        (|h| h[TENSOR]["data_offsets"][1] = json!(1u64 << 40), "lie outside of"),
        (|h| h[TENSOR]["shape"] = json!([1u64 << 40, 1u64 << 40]), "larger than memory"),
        (|h| h[TENSOR]["dtype"] = json!("F64"), "bytes"),
        (|h| drop(h.as_object_mut().unwrap().remove(TENSOR)), "unused bytes lie before"),
    ];
    for (lie, what) in lies {
        let bench = Bench::new();
        let path = bench.at("model/model.safetensors");
        let whole = std::fs::read(&path).unwrap();
        let (mut header, data) = split(&path);
        lie(&mut header);
        join(&path, &header, &data);
        let mend = || std::fs::write(&path, &whole).unwrap();
        bench.fails_then_goes_on(&["base: ", "model/model.safetensors", what], DATA_STAGES, mend);
    }
}

#[test]
fn a_missing_shard() {
    let bench = Bench::new();
    let (whole, one) = (bench.at("model/model.safetensors"), bench.at("model/model-00001-of-00002.safetensors"));
    let (header, _) = split(&whole);
    let names = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
    let map: serde_json::Map<String, Value> = names
        .map(|name| {
            let shard = if name == TENSOR { 2 } else { 1 };
            (name.clone(), json!(format!("model-0000{shard}-of-00002.safetensors")))
        })
        .collect();
    std::fs::rename(&whole, &one).unwrap();
    let index = bench.at("model/model.safetensors.index.json");
    std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    let mend = || {
        std::fs::remove_file(&index).unwrap();
        std::fs::rename(&one, &whole).unwrap();
    };
    bench.fails_then_goes_on(&["lacks shards: model-00002-of-00002.safetensors", "fetch"], DATA_STAGES, mend);
}

#[test]
fn shapes_and_architectures_that_do_not_fit() {
    for (key, value, file, what) in [
        ("intermediate_size", json!(1024), "model/model.safetensors", "[1024, 128] is needed here"),
        ("num_hidden_layers", json!(99), "model", "model.layers.4."),
        ("architectures", json!(["MambaForCausalLM"]), "model/config.json", "MambaForCausalLM is not supported"),
        ("hidden_act", json!("gelu"), "model/config.json", "gelu"),
    ] {
        let bench = Bench::new();
        let path = bench.at("model/config.json");
        let whole = std::fs::read_to_string(&path).unwrap();
        let mut config: Value = serde_json::from_str(&whole).unwrap();
        config[key] = value;
        std::fs::write(&path, config.to_string()).unwrap();
        let mend = || std::fs::write(&path, &whole).unwrap();
        bench.fails_then_goes_on(&["base: ", file, what], DATA_STAGES, mend);
    }
}

#[test]
fn data_sets_without_a_problem() {
    for (rows, what) in [
        ("", "problems.jsonl"),
        ("\n\n", "problems.jsonl"),
        ("{\"q\": \"2 + 2 =\", \"answer\": \"4\"}\n", "question"),
        ("{\"question\": \"2 + 2 =\", \"answer\": \"\"}\n", "answer"),
        ("{\"question\": \"2 + 2", "problems.jsonl"),
    ] {
        let bench = Bench::new();
        bench.problems(rows);
        // The model and its quantization are finished all the same.
        let mend = || bench.problems("{\"question\": \"1 + 1 =\", \"answer\": \"2\"}\n");
        bench.fails_then_goes_on(&["data.mine: ", what], 2, mend);
    }
}

#[test]
fn a_full_disk() {
    let bench = Bench::new();
    let home = bench.at("home");
    std::fs::create_dir(&home).unwrap();
    // Room for everything but the quantized weights.
    let mount = |args: &[&str]| {
        let status = Command::new("mount").args(args).arg(&home).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=400k", "tmpfs"]) {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0).status();
        }
    }
    let _unmount = Unmount(&home);
    let mend = || assert!(mount(&["-o", "remount,size=64m"]));
    bench.fails_then_goes_on(&["base: ", "model.safetensors", "the disk is full", "finished stages are kept"], 3, mend);
}

#[test]
fn caches_that_are_files_or_out_of_place() {
    let bench = Bench::new();
    std::fs::write(bench.at("file"), "").unwrap();
    let store = bench.command(&["run", "bad.yaml"]).env("QERL_HOME", bench.at("file")).output().unwrap();
    refused(&store, &["/file is not a folder", "QERL_HOME"]);
    // The hub's cache is not needed by what is here already, and is named where it is.
    said(&bench.command(&["run", "bad.yaml"]).env("HF_HOME", bench.at("file")).output().unwrap(), 0);
    let doctor = bench.command(&["doctor"]).env("HF_HOME", bench.at("file")).output().unwrap();
    let line = text(&doctor.stdout).lines().find(|line| line.contains("file/hub")).unwrap_or_default().to_owned();
    assert!(line.contains("NOT WRITABLE"), "{line}");
}

/// Someone who owns nothing here; `None` where this user cannot become one.
fn nobody(bench: &Bench, args: &[&str]) -> Option<Output> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_qerl")]).args(args);
    let output = bench.around(command).output().ok()?;
    // setpriv's own failures, and a binary in a folder of root alone, are no answer of qerl's.
    (!text(&output.stderr).starts_with("setpriv:")).then_some(output)
}

#[test]
fn a_store_of_another_user() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let allow = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    said(&bench.run(), 0);
    allow(bench.0.path(), 0o755);
    if nobody(&bench, &["--version"]).is_none_or(|output| !output.status.success()) {
        eprintln!("skipped: this user cannot run qerl as another one (setpriv)");
        return;
    }
    let run = || nobody(&bench, &["run", "bad.yaml"]).unwrap();
    let (store, hint) = (bench.at("home/store"), "check the permissions of");
    allow(&store, 0o700);
    refused(&run(), &["home/store", "Permission denied", hint, "QERL_HOME"]);
    allow(&store, 0o755);
    let entry = text(&bench.command(&["path", "bad:base"]).output().unwrap().stdout);
    allow(Path::new(entry.trim()), 0o700);
    refused(&run(), &[entry.trim(), "Permission denied", hint]);
    // The owner has lost nothing by that.
    allow(Path::new(entry.trim()), 0o755);
    assert!(said(&bench.run(), 0).contains("nothing to do"));
    // A new store where this user may not write.
    let fresh = bench.at("fresh");
    std::fs::create_dir(&fresh).unwrap();
    allow(&fresh, 0o755);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_qerl"), "run", "bad.yaml"]);
    let output = bench.around(command).env("QERL_HOME", fresh.join("home")).output().unwrap();
    refused(&output, &["fresh/home", "Permission denied", "who owns"]);
}
