//! The single steps as a shell sees them, on a model of random weights with a tokenizer of characters.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use qerl::engine::{Batch, Load, NamedTensor, Pass, Row, Trainable, load};
use qerl::model::{ModelConfig, names, write_dense};
use qerl::rl::random::normal;
use qerl::tensors::DType;
use serde_json::{Value, json};
use tempfile::TempDir;

const LETTERS: &str = "abcdefgh +=?\n";

/// A folder with `model`; commands run in it.
fn place() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let mut vocab = serde_json::Map::from_iter([("<eos>".to_owned(), json!(0)), ("<unk>".to_owned(), json!(1))]);
    for letter in LETTERS.chars() {
        vocab.insert(letter.to_string(), json!(vocab.len()));
    }
    let config = json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": vocab.len(), "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": 0, "dtype": "float32"});
    let config = config.as_object().unwrap();
    let parameters = names::parameters(&ModelConfig::parse(config).unwrap()).into_iter().map(|(name, shape)| {
        let count = shape.iter().product::<usize>() as u64;
        let mean = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let data = (0..count).map(|k| (mean + 0.2 * normal(7, &name, 0, k)) as f32).collect();
        NamedTensor { name, shape, data }
    });
    write_dense(&model, config, &parameters.collect::<Vec<_>>(), DType::F32).unwrap();
    let special = |id: usize, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<eos>"), special(1, "<unk>")], "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}});
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qerl"));
    command.args(args).current_dir(dir).env("QERL_HOME", dir.join("home"));
    command
}

fn qerl(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).stdin(Stdio::null()).output().unwrap()
}

fn qerl_fed(dir: &Path, args: &[&str], input: &str) -> Output {
    let mut command = command(dir, args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn score_gives_what_the_engine_gives() {
    let dir = place();
    let model = dir.path().join("model");
    let mut engine = load(&Load { model: &model, adapter: None, trainable: Trainable::None, threads: 1 }).unwrap();
    let row = |ids: &[u32]| Row { prompt: ids[..1].into(), completion: ids[1..].to_vec() };
    let batch = Batch { rows: vec![row(&[3, 4, 5, 6]), row(&[2, 9])], temperature: 0.5 };
    let want = engine.forward(&batch, Pass::Score).unwrap();
    std::fs::write(dir.path().join("ids.json"), "[[3, 4, 5, 6],\n [2, 9]]").unwrap();
    let rows = lines(&qerl(dir.path(), &["score", "model", "--ids", "ids.json", "--temperature", "0.5"]));
    assert_eq!(rows.len(), 2);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(floats(&row["log_probs"]), want.log_probs[i]);
        assert_eq!(floats(&row["entropies"]), want.entropies[i]);
    }
    let nll = -f64::from(want.log_probs[1][0]);
    assert!((rows[1]["mean_nll"].as_f64().unwrap() - nll).abs() < 1e-9);

    // The same rows as lines of stdin, in one object.
    let args = ["score", "model", "--ids", "-", "--temperature", "0.5", "--json"];
    let all = lines(&qerl_fed(dir.path(), &args, "[3, 4, 5, 6]\n[2, 9]\n"));
    assert_eq!((&all[0]["rows"], &all[0]["tokens"]), (&json!(rows), &json!(4)));
    let mean = -want.log_probs.concat().iter().map(|&x| f64::from(x)).sum::<f64>() / 4.0;
    assert!((all[0]["mean_nll"].as_f64().unwrap() - mean).abs() < 1e-9);
}

#[test]
fn score_refuses_bad_ids_by_row_and_place() {
    let dir = place();
    for (input, what) in [
        ("[[2, 3], [4, 15]]", "row 2: token 2: id 15 is outside the vocabulary of 15"),
        ("[[2, -3]]", "row 1: token 2: -3 is no token id"),
        ("[[2, 3.5]]", "3.5 is no token id"),
        ("[[2, \"a\"]]", "\"a\" is no token id"),
        ("[[2]]", "row 1: 1 tokens leave none to score"),
        ("[[2, 3], 4]", "row 2: this is not a list"),
        ("{\"a\": 1}", "row 1: this is not a list"),
        ("[[2, 3", "not valid JSON"),
        ("", "holds no rows"),
        (&json!([vec![2; 65]]).to_string(), "context of 64"),
    ] {
        let done = qerl_fed(dir.path(), &["score", "model", "--ids", "-"], input);
        let said = text(&done.stderr);
        assert!(said.contains(what) && said.contains("stdin"), "{input}: {said}");
        assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0), "{input}: {said}");
    }
}

#[test]
fn generate_gives_the_same_every_time_and_scores_agree() {
    let dir = place();
    let greedy = ["generate", "model", "--raw", "--prompt", "ab+", "--max-new-tokens", "9", "--json"];
    let (first, again) = (qerl(dir.path(), &greedy), qerl(dir.path(), &greedy));
    assert_eq!(first.stdout, again.stdout);
    assert!(text(&first.stderr).contains("tokens/s"));
    let made = &lines(&first)[0];
    assert_eq!(made["prompt"], "ab+");
    let tokens: Vec<u64> = made["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    let ended = tokens.last() == Some(&0);
    assert_eq!(made["finish"], if ended { "eos" } else { "length" });
    assert!(ended || tokens.len() == 9);
    // The prompt's ids are those of its letters.
    let ids: Vec<u64> = [2, 3, 11].into_iter().chain(tokens.iter().copied()).collect();
    let scored = lines(&qerl_fed(dir.path(), &["score", "model", "--ids", "-"], &json!([ids]).to_string()));
    let (scored, drawn) = (floats(&scored[0]["log_probs"]), floats(&made["log_probs"]));
    assert_eq!(scored.len(), 2 + drawn.len());
    // The logits are the same bits; sampling and scoring sum their exponentials in other orders.
    assert!(scored[2..].iter().zip(&drawn).all(|(a, b)| (a - b).abs() < 1e-6), "{scored:?} {drawn:?}");

    // Without --json the text alone; letters by their ids.
    let plain = qerl(dir.path(), &greedy[..greedy.len() - 1]);
    assert_eq!(text(&plain.stdout), format!("{}\n", made["text"].as_str().unwrap()));

    let drawn = |seed: &str| {
        let args = ["--prompts", "-", "--samples", "3", "--temperature", "1.5", "--max-new-tokens", "8", "--json"];
        let args: Vec<&str> = ["generate", "model", "--seed", seed].into_iter().chain(args).collect();
        lines(&qerl_fed(dir.path(), &args, "\"a?\"\n\n{\"prompt\": \"b?\"}\n"))
    };
    let rows = drawn("1");
    let prompts: Vec<&str> = rows.iter().map(|row| row["prompt"].as_str().unwrap()).collect();
    assert_eq!(prompts, ["a?", "a?", "a?", "b?", "b?", "b?"]);
    assert_ne!(rows[0]["tokens"], rows[1]["tokens"], "samples differ");
    assert_eq!(rows, drawn("1"));
    assert_ne!(rows, drawn("2"));
}

#[test]
fn chat_keeps_the_conversation_until_it_is_reset() {
    let dir = place();
    let args = ["chat", "model", "--max-new-tokens", "5", "--temperature", "0"];
    let talk = |input: &str| {
        let done = qerl_fed(dir.path(), &args, input);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let once = talk("ab?\n");
    let twice = talk("ab?\n/reset\n\nab?\n/exit\nab?\n");
    assert_eq!(twice, once.repeat(2), "after a reset the same question has the same answer");
    assert!(talk("ab?\nab?\n").starts_with(&once));
    // Far more than the context of 64 holds: the oldest turns go.
    let long = qerl_fed(dir.path(), &args, &"abcdefgh\n".repeat(8));
    assert!(long.status.success() && text(&long.stderr).contains("forgotten"), "{}", text(&long.stderr));
    let all = qerl_fed(dir.path(), &args, &"abcdefgh".repeat(9));
    assert!(text(&all.stderr).contains("context of 64"), "{}", text(&all.stderr));
    assert_eq!(all.status.code(), Some(1));
}

#[test]
fn selftest_passes_on_a_sound_engine_and_tells_golden_data_apart() {
    let dir = place();
    let done = qerl(dir.path(), &["selftest", "--model", "model", "--json", "--threads", "1"]);
    let found = &lines(&done)[0];
    // Two adapters' worth of scores at two temperatures, one continuation, and 7 pairs and 2 norms in each of 2 layers.
    assert_eq!((&found["passed"], &found["failed"]), (&json!(8 + 1 + 2 * (14 + 2)), &json!(0)), "{found:#}");
    let checks = found["checks"].as_array().unwrap();
    assert!(checks.iter().any(|c| c["name"].as_str().unwrap().contains("layers.1.mlp.down_proj.lora_A")));

    let done = qerl(dir.path(), &["selftest", "--golden", "model"]);
    assert_eq!(done.status.code(), Some(1), "no golden data there");

    // Golden values that are not this model's.
    let models = dir.path().join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::rename(dir.path().join("model"), models.join("tiny")).unwrap();
    let spec = |name: &str, dtype, shape: &[usize]| qerl::tensors::Spec::new(name, dtype, shape.to_vec());
    let ids: Vec<u8> = [2i64, 3, 4].iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensors =
        [(spec("input_ids", DType::I64, &[1, 3]), ids), (spec("loss", DType::F32, &[1]), 9f32.to_le_bytes().to_vec())];
    qerl::tensors::write_file(&models.join("tiny_expected.safetensors"), &tensors).unwrap();
    let done = qerl(dir.path(), &["selftest", "--golden", "."]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stdout).contains("FAILED tiny loss"), "{}", text(&done.stdout));
    assert!(text(&done.stdout).contains("0 of 1 checks"), "{}", text(&done.stdout));
}

#[test]
fn what_cannot_work_is_refused() {
    let dir = place();
    for name in ["empty", "bare"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("bare/config.json"), "{}").unwrap();
    std::fs::write(dir.path().join("prompts.jsonl"), "\"a\"\n{\"text\": 1}\n").unwrap();
    for (args, what, code) in [
        (&["generate", "model"][..], "--prompt", 2),
        (&["generate", "nowhere", "--prompt", "a"], "not a model's folder", 1),
        (&["generate", "tiny:train", "--prompt", "a"], "nothing finished", 1),
        (&["generate", "empty", "--prompt", "a"], "config.json", 1),
        (&["generate", "bare", "--prompt", "a"], "tokenizer.json", 1),
        (&["generate", "model", "--prompt", "a", "--adapter", "empty"], "holds no adapter", 1),
        (&["generate", "model", "--prompt", "a", "--checkpoint", "best"], "address", 2),
        (&["generate", "model", "--prompt", "a", "--samples", "2"], "temperature 0", 2),
        (&["generate", "model", "--prompt", "a", "--samples", "0"], "--samples 0", 2),
        (&["generate", "model", "--prompt", "a", "--top-p", "0"], "--top-p 0", 2),
        (&["generate", "model", "--prompt", "a", "--min-p", "2"], "--min-p 2", 2),
        (&["generate", "model", "--prompt", "a", "--temperature", "nan"], "--temperature NaN", 2),
        (&["generate", "model", "--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens 0", 2),
        (&["generate", "model", "--prompt", "", "--raw"], "prompt 1: there is not a single token", 1),
        (&["generate", "model", "--prompts", "prompts.jsonl"], "prompts.jsonl line 2 holds no prompt", 1),
        (&["generate", "model", "--prompts", "none.jsonl"], "none.jsonl", 1),
        (&["score", "model", "--ids", "none.json"], "none.json", 1),
        (&["score", "model", "--ids", "prompts.jsonl", "--temperature", "0"], "--temperature 0", 2),
        (&["chat", "bare"], "tokenizer.json", 1),
        (&["selftest", "--golden", "nowhere"], "nowhere", 1),
        (&["selftest", "--device", "abacus"], "abacus", 2),
        (&["quantize", "nowhere", "--format", "nvfp4", "--out", "out"], "not a model's folder", 1),
        (&["quantize", "prompts.jsonl", "--format", "nvfp4", "--out", "out"], "GGUF", 1),
    ] {
        let done = qerl(dir.path(), args);
        let said = text(&done.stderr);
        assert!(said.contains(what), "{args:?}: {said}");
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
    }
}
