//! Input that means harm, or is no pipeline at all: refused quickly, never with a panic.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use qerl::pipeline::Options;

use super::{EXAMPLE, Folder, MODEL, bad, sets};

/// What is said about a text, soon: hours without the limits, seconds on a busy machine with them.
fn quickly(text: &str) -> String {
    let clock = Instant::now();
    let said = bad(text, &Options::default());
    let time = clock.elapsed();
    assert!(time < Duration::from_secs(10), "{time:?}: {said}");
    said
}

#[test]
fn bombs_are_refused_quickly() {
    let mut aliases = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, last) in ('b'..='n').zip('a'..='m') {
        aliases += &format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 10].join(", "));
    }
    assert!(quickly(&aliases).contains("more than 20000 values"));
    let mut vars = "name: x\nvars:\n  v0: [1, 2, 3, 4, 5, 6, 7, 8, 9]\n".to_owned();
    for i in 1..15 {
        vars += &format!("  v{i}: [{}]\n", vec![format!("\"${{vars.v{}}}\"", i - 1); 9].join(", "));
    }
    vars += "stages:\n  - {id: m, run: {download: {repo: bundled, files: \"${vars.v14}\"}}}\n";
    assert!(quickly(&vars).contains("more than 100000 values"));
    assert!(quickly(&format!("name: {}", "[".repeat(100_000))).contains("nested more than 64 deep"));
    assert!(quickly(&format!("name: {}", "{a: ".repeat(100_000))).contains("nested more than 64 deep"));
    assert!(quickly(&"- ".repeat(100_000)).contains("nested more than 64 deep"));
    assert!(quickly(&format!("name: x\n#{}", "x".repeat(2 << 20))).contains("larger than 1 MiB"));
    let chain: String = (0..400).map(|i| format!("  v{i}: \"${{vars.v{}}}\"\n", i + 1)).collect();
    let chain = format!(
        "{MODEL}  - {{id: l, run: {{lora: {{model: model, rank: \"${{vars.v0}}\"}}}}}}\nvars:\n{chain}  v400: 1\n"
    );
    assert!(quickly(&chain).contains("more than 32 deep"));
    let keys: String = (0..9000).map(|i| format!("k{i}: 1\n")).collect();
    assert!(quickly(&format!("name: x\n{keys}")).contains("unknown key `k0`"));
}

#[test]
fn aliases_and_variables_that_hold_themselves() {
    assert!(quickly("name: x\nvars: &v {a: *v}\nstages: []\n").contains("alias"));
    assert!(quickly("name: x\nstages: *nothing\n").contains("no anchor `&nothing`"));
    let text = format!(
        "{MODEL}  - {{id: l, run: {{lora: {{model: model, rank: \"${{vars.a}}\"}}}}}}\nvars: {{a: \"${{vars.b}}\", b: \"${{vars.a}}\"}}\n"
    );
    assert!(quickly(&text).contains("vars.a -> vars.b -> vars.a"));
    let text = format!(
        "{MODEL}  - {{id: l, run: {{lora: {{model: model, rank: \"${{sweep.a}}\"}}}}}}\nsweep: {{a: {{x: \"${{sweep.a}}\"}}}}\n"
    );
    assert!(quickly(&text).contains("`sweep.a` is defined by itself"));
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_read() {
    let folder = Folder::new(&[("p.yaml", "name: x\ninclude: [zero, ../../../../../../../../dev/zero]\nstages: []\n")]);
    std::os::unix::fs::symlink("/dev/zero", folder.path("zero")).unwrap();
    let said = folder.load("p.yaml", &Options::default()).unwrap_err().render(false);
    assert!(said.contains("it is not a regular file"), "{said}");
    let said = folder.load("none.yaml", &Options::default()).unwrap_err().render(false);
    assert!(said.contains("cannot read") && said.contains("No such file"), "{said}");
    std::fs::write(folder.path("latin.yaml"), b"name: \xff\n").unwrap();
    assert!(folder.load("latin.yaml", &Options::default()).unwrap_err().render(false).contains("not UTF-8"));
}

/// Loads and renders whatever comes.
fn survive(text: &str, options: &Options) {
    let folder = Folder::new(&[("p.yaml", text)]);
    if let Err(diagnostics) = folder.load("p.yaml", options) {
        assert!(!diagnostics.is_empty());
        diagnostics.render(true);
        diagnostics.to_json();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_soup_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        survive(&String::from_utf8_lossy(&bytes), &Options::default());
    }

    #[test]
    fn no_yaml_soup_panics(text in "([a-z]|[\\[\\]{}:,&*!|>'\"#%@`$?.é🦀-]|\n|  |: |- |<<: |\\$\\{vars\\.|stages:\n|variants: |run: ){0,80}") {
        survive(&text, &Options::default());
    }

    #[test]
    fn no_damaged_pipeline_panics(at in 0..EXAMPLE.len(), cut in 0usize..40, put in "[\\[\\]{}:,&*'\"$. \na-z0-9é-]{0,6}") {
        let mut bytes = EXAMPLE.replace("include: [shared/eval.yaml]\n", "").into_bytes();
        let at = at.min(bytes.len());
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, put.bytes());
        survive(&String::from_utf8_lossy(&bytes), &Options::default());
    }

    #[test]
    fn no_set_panics(set in "(vars|data|sweep|train|before|model|seed|lr|data|arith|[.=\\[\\]{}\"'$:, 0-9é-]){0,12}") {
        let text = EXAMPLE.replace("include: [shared/eval.yaml]\n", "");
        survive(&text, &sets(&[&set]));
        survive(&text, &Options { only: vec![set], ..Options::default() });
    }
}
