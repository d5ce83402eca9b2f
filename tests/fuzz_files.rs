//! Damaged model files: whatever the bytes, reading gives a value or an error, never a panic, and asks for no more memory
//! than a small factor of what lies on disk. Seeded; QERL_FUZZ_SECONDS sets how long (one second by default) and
//! QERL_FUZZ_SEED where it starts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use qerl::control::{Cancel, Quiet};
use qerl::data::text::Text;
use qerl::engine::NamedTensor;
use qerl::model::{Checkpoint, ModelConfig, Projection, compress, gguf, names, write_dense};
use qerl::quant::Format;
use qerl::tensors::DType;
use serde_json::json;

/// Counts what is in use and the most there ever was.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters only watch.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes in use at most per byte on disk, beside [`ALWAYS`]. The worst honest case is a GGUF list of one-byte values.
const FACTOR: usize = 128;

/// What reading takes whatever the file: regular expressions of a tokenizer, buffers.
const ALWAYS: usize = 32 << 20;

struct Random(u64);

impl Random {
    /// splitmix64 (Steele et al. 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

/// One to eight small changes, mostly near the front, where headers are.
fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(8) {
        let reach = if random.below(4) > 0 { bytes.len().min(2048) } else { bytes.len() };
        let at = random.below(reach);
        match random.below(7) {
            _ if bytes.is_empty() => return bytes,
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let value = [0, 1, u64::MAX, 1 << 32, 1 << 62, i64::MAX as u64][random.below(6)].to_le_bytes();
                let width = [1, 4, 8][random.below(3)];
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&value[..end - at]);
            }
            4 => {
                let end = (at + random.below(64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            5 => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                // A number in JSON becomes another one.
                if let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    let new: &[u8] =
                        [&b"-1"[..], b"0", b"99999999999999999999", b"4294967296", b"1e400", b"null", b"[]"]
                            [random.below(7)];
                    bytes.splice(at + digit..=at + digit, new.iter().copied());
                }
            }
        }
    }
    bytes
}

fn fill(dir: &Path, format: Format) {
    let json = json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "vocab_size": 20, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "tie_word_embeddings": true, "eos_token_id": 2, "torch_dtype": "bfloat16"});
    let json = json.as_object().unwrap();
    let config = ModelConfig::parse(json).unwrap();
    let all = names::parameters(&config).into_iter();
    let value = |i: usize| (i * 37 % 101) as f32 / 101.0 - 0.5;
    let tensors: Vec<NamedTensor> = all
        .map(|(name, shape)| NamedTensor { data: (0..shape.iter().product()).map(value).collect(), name, shape })
        .collect();
    let source = tempfile::tempdir().unwrap();
    write_dense(source.path(), json, &tensors, DType::BF16).unwrap();
    compress(source.path(), dir, format, true, &Quiet, &Cancel::new()).unwrap();
    let index: serde_json::Map<String, serde_json::Value> = {
        let file = qerl::tensors::TensorFile::open(&dir.join("model.safetensors")).unwrap();
        file.names().map(|name| (name.to_owned(), json!("model.safetensors"))).collect()
    };
    let index = json!({"metadata": {"total_size": 1}, "weight_map": index});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 3,
        "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true}, "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true,
        "trim_offsets": true, "use_regex": true}, "model": {"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}});
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), r#"{"eos_token": "<end>", "chat_template": "{{ messages }}"}"#)
        .unwrap();
}

/// A small Llama as GGUF.
fn gguf_file() -> Vec<u8> {
    let text = |value: &str| [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat();
    let (mut settings, mut count) = (Vec::new(), 0u64);
    let mut set = |key: &str, kind: u32, value: &[u8]| {
        settings.extend([&text(key)[..], &kind.to_le_bytes(), value].concat());
        count += 1;
    };
    set("general.architecture", 8, &text("llama"));
    for (key, value) in [
        ("block_count", 1u32),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        set(&format!("llama.{key}"), 4, &value.to_le_bytes());
    }
    set("tokenizer.ggml.model", 8, &text("gpt2"));
    set("tokenizer.ggml.pre", 8, &text("smollm"));
    for (key, list) in [("tokens", vec!["<end>", "a", "b", "ab"]), ("merges", vec!["a b"])] {
        let texts: Vec<u8> = list.iter().flat_map(|item| text(item)).collect();
        let value = [&8u32.to_le_bytes()[..], &(list.len() as u64).to_le_bytes(), &texts].concat();
        set(&format!("tokenizer.ggml.{key}"), 9, &value);
    }
    let (mut infos, mut data, mut tensors) = (Vec::new(), Vec::new(), 0u64);
    for (name, shape) in [
        ("token_embd", vec![4usize, 8]),
        ("output_norm", vec![8]),
        ("blk.0.attn_norm", vec![8]),
        ("blk.0.ffn_norm", vec![8]),
        ("blk.0.attn_q", vec![8, 8]),
        ("blk.0.attn_k", vec![4, 8]),
        ("blk.0.attn_v", vec![4, 8]),
        ("blk.0.attn_output", vec![8, 8]),
        ("blk.0.ffn_gate", vec![16, 8]),
        ("blk.0.ffn_up", vec![16, 8]),
        ("blk.0.ffn_down", vec![8, 16]),
    ] {
        infos.extend(text(&format!("{name}.weight")));
        infos.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| infos.extend((*dim as u64).to_le_bytes()));
        infos.extend(0u32.to_le_bytes());
        infos.extend((data.len() as u64).to_le_bytes());
        data.extend((0..shape.iter().product()).flat_map(|i: usize| (i as f32).to_le_bytes()));
        tensors += 1;
    }
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &count.to_le_bytes()].concat();
    bytes.extend(settings);
    bytes.extend(infos);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

/// Reads everything that a run would read.
fn read_folder(dir: &Path) -> qerl::Result<()> {
    // The tokenizer apart: it must hold whatever the weights are.
    let text = Text::open(dir).and_then(|text| text.encode("ab<end>ba"));
    let model = Checkpoint::open(dir)?;
    for layer in 0..model.config.num_layers {
        for projection in Projection::ALL {
            model.linear(&projection.prefix(layer))?.dequantize();
            model.bias(&projection.prefix(layer))?;
        }
    }
    model.dense(names::FINAL_NORM)?;
    model.embedding()?.dequantize();
    text.map(drop)
}

#[test]
fn damaged_files_give_values_or_errors_and_take_no_memory_of_their_own() {
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let time = Duration::from_secs(setting("QERL_FUZZ_SECONDS").unwrap_or(1));
    let seed = setting("QERL_FUZZ_SEED").unwrap_or(1);
    let folders = [Format::Nvfp4, Format::Mxfp4, Format::Nf4].map(|format| {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), format);
        read_folder(dir.path()).unwrap();
        dir
    });
    let gguf_bytes = gguf_file();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    std::fs::write(&path, &gguf_bytes).unwrap();
    let import = || gguf::import(&path, place.path(), &Quiet, &Cancel::new()).map(drop);
    import().unwrap();
    const FILES: [&str; 5] =
        ["model.safetensors", "config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"];
    let (begin, mut rounds, mut refused) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < time || rounds < 60 {
        let mut random = Random(seed.wrapping_mul(1 << 32).wrapping_add(rounds));
        let which = rounds as usize % (FILES.len() + 1);
        let before;
        let (size, failed) = if let Some(name) = FILES.get(which) {
            let dir = folders[random.below(folders.len())].path();
            let file = dir.join(name);
            let whole = std::fs::read(&file).unwrap();
            let damaged = damage(&whole, &mut random);
            // A new file, not the old one shortened: an earlier map may still be seen.
            std::fs::remove_file(&file).unwrap();
            std::fs::write(&file, &damaged).unwrap();
            let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len() as usize);
            let size: usize = all.sum();
            before = USED.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            let failed = read_folder(dir).is_err();
            let peak = PEAK.load(Ordering::Relaxed);
            std::fs::write(&file, &whole).unwrap();
            PEAK.store(peak, Ordering::Relaxed);
            (size, failed)
        } else {
            let damaged = damage(&gguf_bytes, &mut random);
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, &damaged).unwrap();
            before = USED.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            (damaged.len(), import().is_err())
        };
        let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        assert!(
            used <= ALWAYS + FACTOR * size,
            "QERL_FUZZ_SEED={seed}, round {rounds}: reading {size} bytes took {used} bytes of memory"
        );
        rounds += 1;
        refused += u64::from(failed);
    }
    eprintln!("{rounds} damaged files, {refused} refused");
    assert!(refused > rounds / 4, "only {refused} of {rounds} were refused: the damage does not reach the readers");
}
