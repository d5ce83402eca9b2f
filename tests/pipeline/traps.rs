//! YAML's traps: what looks like one thing and is read as another elsewhere, and texts that are hardly YAML at all.

use qerl::pipeline::{Diagnostics, Options};
use serde_json::{Value, json};

use super::{Folder, MODEL, bad, good, instance, sets};

/// `key: written` of a stage's configuration, as it is read.
fn read(stage: &str, key: &str, written: &str) -> Value {
    let (kind, rest) = match stage {
        "download" => ("download", "repo: a/b"),
        "lora" => ("lora", "model: model"),
        _ => ("train", "policy: model, data: sums, steps: 1"),
    };
    let text = format!("{MODEL}  - {{id: s, run: {{{kind}: {{{rest}, {key}: {written}}}}}}}\n");
    instance(&good(&text, &Options::default()), "s").config[key].clone()
}

/// What is said about `key: written` of a LoRA or a training.
fn said(stage: &str, key: &str, written: &str) -> String {
    let rest = if stage == "lora" { "model: model" } else { "policy: model, data: sums, steps: 1" };
    let text = format!("{MODEL}  - {{id: s, run: {{{stage}: {{{rest}, {key}: {written}}}}}}}\n");
    bad(&text, &Options::default())
}

/// Loads bytes as they are.
fn bytes(content: &[u8]) -> Result<qerl::pipeline::Graph, Diagnostics> {
    let folder = Folder::new(&[]);
    std::fs::write(folder.path("p.yaml"), content).unwrap();
    folder.load("p.yaml", &Options::default())
}

#[test]
fn numbers_are_numbers_whatever_their_spelling() {
    for written in ["1e-5", "1.0e-5", "0.00001", "1E-5", "+1e-5"] {
        assert_eq!(read("train", "lr", written), json!(1e-5), "{written}");
    }
    // YAML 1.2 knows no octal numbers with a leading zero: this is not 493.
    assert_eq!(read("lora", "rank", "0755"), json!(755));
    assert_eq!(read("lora", "rank", "0o17"), json!(15));
    assert_eq!(read("lora", "rank", "1e2"), json!(100));
}

#[test]
fn strings_are_what_was_written() {
    for written in
        ["61e9540", "0755", "1e5", "1_000", "NO", "on", "yes", "12:30:45", "1.10", "0x1f", "true", "2024-01-01"]
    {
        assert_eq!(read("download", "revision", written), json!(written), "{written}");
        assert_eq!(read("download", "revision", &format!("'{written}'")), json!(written), "quoted {written}");
    }
}

#[test]
fn what_is_no_number_and_no_boolean_is_refused_with_what_to_write() {
    for (stage, key, written, want) in [
        ("lora", "rank", "1_000", "write 1000"),
        ("lora", "rank", "'8'", "write 8"),
        ("train", "lr", "'1e-5'", "write 1e-5"),
        ("lora", "train_norms", "yes", "write true"),
        ("lora", "train_norms", "on", "write true"),
        ("lora", "train_norms", "NO", "write false"),
        ("lora", "train_norms", "off", "write false"),
        ("lora", "rank", "1.5", "expected an integer"),
        ("lora", "rank", "99999999999999999999", "expected an integer"),
        ("train", "lr", ".nan", "expected a number"),
        ("train", "lr", ".inf", "expected a number"),
        ("train", "lr", "1e999", "expected a number"),
        ("lora", "rank", "12:30:45", "expected an integer"),
        ("lora", "rank", "[8]", "expected an integer"),
        ("lora", "rank", "{a: 8}", "expected an integer"),
    ] {
        let text = said(stage, key, written);
        assert!(text.contains(want) && text.contains('^') && text.contains("p.yaml:4:"), "{key}: {written}\n{text}");
    }
}

#[test]
fn the_same_holds_for_set() {
    let text = format!("{MODEL}  - {{id: l, run: {{lora: {{model: model}}}}}}\n");
    let graph = good(&text, &sets(&["l.alpha=1e-5", "model.repo=a/b", "model.revision=61e9540"]));
    assert_eq!(instance(&graph, "l").config["alpha"], json!(1e-5));
    assert_eq!(instance(&graph, "model").config["revision"], "61e9540");
    assert!(bad(&text, &sets(&["l.rank=1_000"])).contains("--set:1:8"));
    assert!(bad(&text, &sets(&["l.train_norms=NO"])).contains("write false"));
}

#[test]
fn equal_keys_are_refused_on_every_level() {
    for (text, place) in [
        (format!("{MODEL}name: y\n"), "p.yaml:4:1"),
        (format!("{MODEL}vars: {{a: 1, b: 2, a: 3}}\n"), "p.yaml:4:20"),
        (format!("{MODEL}  - {{id: l, run: {{lora: {{model: model, rank: 1, rank: 1}}}}}}\n"), "p.yaml:4:49"),
        (format!("{MODEL}  - {{id: l, id: l, run: {{lora: {{model: model}}}}}}\n"), "p.yaml:4:13"),
        (format!("{MODEL}sweep: {{seed: {{a: 1, \"a\": 2}}}}\n"), "p.yaml:4:22"),
    ] {
        let said = bad(&text, &Options::default());
        assert!(said.contains("stands twice") && said.contains(place) && said.contains("the first one"), "{said}");
    }
}

#[test]
fn anchors_and_merge_keys_show_both_places() {
    let text = "name: x
x-common: &common {rank: big}
stages:
  - {id: model, run: {download: {repo: bundled}}}
  - {id: a, run: {lora: {<<: *common, model: model}}}
  - {id: b, run: {lora: {model: model, rank: *common}}}
";
    let said = bad(text, &Options::default());
    assert!(said.contains("`a.rank` cannot be the string `big`") && said.contains("p.yaml:2:26"), "{said}");
    assert!(said.contains("`b.rank` cannot be a map") && said.contains("used here"), "{said}");
    for (text, want) in [
        ("name: x\nstages: []\nx-a: {<<: 1}\n", "`<<` merges maps only"),
        ("name: x\nstages: []\nx-a: &a [*a]\n", "alias"),
        ("name: x\nstages: []\nx-a: *b\n", "no anchor"),
    ] {
        let said = bad(text, &Options::default());
        assert!(said.contains(want) && said.contains('^'), "{said}");
    }
}

#[test]
fn tabs_are_refused_where_they_indent() {
    let said = bad("name: x\nstages:\n\t- {id: model, run: {download: {repo: bundled}}}\n", &Options::default());
    assert!(said.contains("p.yaml:3:") && said.to_lowercase().contains("tab"), "{said}");
    let said = bad("name: x\nvars:\n  a: 1\n\tb: 2\nstages: []\n", &Options::default());
    assert!(said.contains("p.yaml:4:1") && said.contains("replace the tab by spaces"), "{said}");
}

#[test]
fn windows_and_byte_order_marks_change_nothing() {
    let crlf = MODEL.replace('\n', "\r\n");
    let marked = format!("\u{feff}{MODEL}");
    let plain = bytes(MODEL.as_bytes()).unwrap();
    for text in [&crlf, &marked] {
        let graph = bytes(text.as_bytes()).unwrap_or_else(|d| panic!("{text:?}: {d}"));
        assert_eq!((&graph.name, &graph.instances[0].config), (&plain.name, &plain.instances[0].config), "{text:?}");
    }
    for text in [format!("{crlf}nmae: y\r\n"), format!("{marked}nmae: y\n")] {
        let said = bytes(text.as_bytes()).unwrap_err().render(false);
        assert!(said.contains("p.yaml:4:1") && said.contains("did you mean `name`?"), "{said}");
        assert!(!said.contains('\r'), "{said:?}");
    }
    // A mark in the first line must not move its columns.
    let said = bytes("\u{feff}nmae: x\nstages: []\n".as_bytes()).unwrap_err().render(false);
    assert!(said.contains("unknown key `nmae`") && said.contains("did you mean `name`?"), "{said}");
}

#[test]
fn what_is_no_pipeline_is_said() {
    for (content, want) in [
        (&b""[..], "a pipeline file is a map"),
        (b"\n\n# nothing here\n", "a pipeline file is a map"),
        (b"---\n", "a pipeline file is a map"),
        (b"- a\n- b\n", "got a list"),
        (b"just words\n", "got the string `just words`"),
        (b"42\n", "got the number `42`"),
        (b"name: \xff\xfe\n", "not UTF-8"),
        (
            "\u{feff}name: x\nstages: []\n".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>().leak(),
            "not UTF-8",
        ),
        (b"name: x\0\nstages: []\n", "error"),
        (b"{\"name\": \"x\", \"stages\": {}}", "`stages` is a list"),
        (b"name: x\nstages: {a: 1}\n", "`stages` is a list"),
        (b"name: x\nstages: [1, null, [a]]\n", "a stage is a map"),
        (b"name: x\nstages: []\nvars: [a]\n", "`vars` is a map"),
        (b"name: x\nstages: []\ndata: text\n", "`data` is a map"),
        (b"name: x\nstages: []\nvariants: [a]\n", "`variants` is a map"),
        (b"name: x\nstages: []\nsweep: [1]\n", "`sweep` is a map"),
        (b"name: x\nstages: []\nprofiles: [1]\n", "`profiles` is a map"),
        (b"name: x\nstages: []\ndefaults: [1]\n", "`defaults` is a map"),
        (b"name: x\nstages: []\nselect: [1]\n", "`select` is a map"),
    ] {
        let said = bytes(content).expect_err("this must be refused").render(false);
        assert!(said.contains(want), "{:?}:\n{said}", String::from_utf8_lossy(content));
    }
}

#[test]
fn errors_inside_expansions_name_their_origin() {
    let text = |sweep: &str, more: &str| {
        format!(
            "{MODEL}  - {{id: l, run: {{lora: {{model: model, rank: \"${{sweep.rank}}\"}}}}}}\nsweep: {{rank: {sweep}}}\n{more}"
        )
    };
    // The value of the axis is wrong, and the place that uses it stands beside it.
    let said = bad(&text("[4, 8, none]", ""), &Options::default());
    assert!(said.contains("`l.rank` cannot be the string `none`"), "{said}");
    assert!(said.contains("p.yaml:5:22") && said.contains("used here"), "{said}");
    // A labelled value that is not what the key takes.
    let said = bad(&text("{small: 4, large: {r: 8}}", ""), &Options::default());
    assert!(said.contains("`l.rank` cannot be a map") && said.contains("p.yaml:5:33"), "{said}");
    // A variant over a sweep: the path's value, and what it overrides.
    let said = bad(&text("[4, 8]", "variants: {a: {}, b: {l.rank: 0}}\n"), &Options::default());
    assert!(said.contains("p.yaml:6:31") && said.contains("overrides this"), "{said}");
    // A profile, and --set over it.
    let options = Options { profile: Some("p".to_owned()), ..Options::default() };
    let said = bad(&text("[4, 8]", "profiles: {p: {l.rank: none}}\n"), &options);
    assert!(said.contains("p.yaml:6:24") && said.contains("overrides this"), "{said}");
    let options = Options { sets: vec!["l.rank=none".to_owned()], ..options };
    let said = bad(&text("[4, 8]", "profiles: {p: {l.rank: 2}}\n"), &options);
    assert!(said.contains("--set:1:8") && said.contains("p.yaml:6:24") && said.contains("overrides this"), "{said}");
    // An axis replaced from the command line.
    let said = bad(&text("[4, 8]", ""), &sets(&["sweep.rank=[none]"]));
    assert!(said.contains("--set:1:13") && said.contains("used here"), "{said}");
    // Defaults of a kind.
    let said = bad(
        &format!("{MODEL}  - {{id: l, run: {{lora: {{model: model}}}}}}\ndefaults: {{lora: {{rank: none}}}}\n"),
        &Options::default(),
    );
    assert!(said.contains("p.yaml:5:25"), "{said}");
    // A variable in a variant's path.
    let said =
        bad(&text("[4, 8]", "vars: {r: none}\nvariants: {a: {}, b: {l.rank: \"${vars.r}\"}}\n"), &Options::default());
    assert!(said.contains("p.yaml:6:11") && said.contains("used here"), "{said}");
}

#[test]
fn bad_overrides_are_shown_in_their_text() {
    let text = format!("{MODEL}  - {{id: l, run: {{lora: {{model: model}}}}}}\n");
    for (set, wants) in [
        ("l.rank", &["--set"][..]),
        ("=3", &["--set"]),
        ("l.rnk=3", &["--set", "did you mean `rank`?"]),
        ("ll.rank=3", &["--set:1:1", "there is no stage `ll`"]),
        ("l.rank=[", &["--set", "not valid YAML"]),
        ("vars.x=3", &["--set:1:6", "declare it under `vars`"]),
        ("sweep.x=[3]", &["--set", "x"]),
        ("l..rank=3", &["--set"]),
        ("l.rank=2000", &["--set:1:8", "within 1..1024"]),
        ("l.resources.gpu=1", &["--set", "did you mean `gpus`?"]),
        ("l.needs=modle", &["--set", "did you mean `model`?"]),
    ] {
        let said = bad(&text, &sets(&[set]));
        assert!(wants.iter().all(|want| said.contains(want)), "{set}:\n{said}");
    }
}
