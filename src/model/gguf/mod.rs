//! GGUF files of Llama, Qwen2 and Qwen3: import into a Hugging Face folder, and export of one.

mod blocks;
mod file;
mod tokenizer;
mod write;

use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value, json};

pub use blocks::Kind;
pub use file::GgufFile;
pub use write::{Storage, export};

use super::names::{self, Norm, Projection};
use super::{Architecture, ModelConfig, write_config};
use crate::control::{Cancel, Progress};
use crate::tensors::{DType, FolderWriter, Spec};
use crate::{Error, Result};

/// Whether `path` begins like a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
}

/// Writes the model in the GGUF file `path` into the folder `out` (which exists): weights, config.json, tokenizer.
/// Quantized tensors are dequantized and rounded to bf16; F16 and F32 models keep their type. Gives the files' names.
pub fn import(path: &Path, out: &Path, progress: &dyn Progress, cancel: &Cancel) -> Result<Vec<String>> {
    let file = GgufFile::open(path)?;
    let named = |e: Error| e.within(path.display());
    let config_json = config(&file).map_err(named)?;
    let config = ModelConfig::parse(&config_json).map_err(named)?;
    let tokenizer = tokenizer::files(&file).map_err(named)?;
    let dtype = dtype(&file);
    // Checked before the names are listed: the claim alone could ask for gigabytes of them.
    let (layers, have) = (config.num_layers, file.names().count());
    if layers > have.max(1) {
        return Err(named(
            Error::input(format!("{layers} layers have only {have} tensors"))
                .hint("the file is damaged or incomplete: fetch it again"),
        ));
    }
    let parameters = names::parameters(&config);
    let mut known = std::collections::HashSet::new();
    for (name, shape) in &parameters {
        let theirs = gguf_name(name).ok_or_else(|| Error::failed(format!("{name:?} has no name in GGUF")))?;
        let have = file.entry(&theirs).map(|entry| entry.shape.clone());
        let have = have.ok_or_else(|| named(Error::missing(format!("there is no tensor {theirs:?}"))))?;
        if have != *shape {
            return Err(named(Error::input(format!("tensor {theirs:?} has shape {have:?}, not {shape:?}"))));
        }
        known.insert(theirs);
    }
    if let Some(extra) = file.names().find(|name| !known.contains(*name)) {
        return Err(named(
            Error::input(format!("tensor {extra:?} is not one that qerl computes with"))
                .hint("fetch the model as safetensors instead"),
        ));
    }
    let specs = parameters.iter().map(|(name, shape)| Spec::new(name.clone(), dtype, shape.clone())).collect();
    let mut writer = FolderWriter::create(out, specs, FolderWriter::MAX_SHARD)?;
    progress.total(parameters.len() as u64, "tensors");
    for (index, (name, _)) in parameters.iter().enumerate() {
        cancel.check()?;
        let theirs = gguf_name(name).unwrap_or_default();
        let mut values = file.values(&theirs)?;
        if let Some(bad) = values.iter().position(|x| !x.is_finite()) {
            return Err(named(Error::input(format!("tensor {theirs:?}: weight {bad} is {}", values[bad]))));
        }
        if config.architecture == Architecture::Llama {
            let stem = name.trim_end_matches(".weight").trim_end_matches(".bias");
            match Projection::parse(stem) {
                Some((Projection::Q, _)) => values = split_pairs(&values, config.num_heads, config.head_dim),
                Some((Projection::K, _)) => values = split_pairs(&values, config.num_kv_heads, config.head_dim),
                _ => {}
            }
        }
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        };
        writer.write(name, &bytes)?;
        progress.at(index as u64 + 1, name);
    }
    let mut files = writer.finish()?;
    write_config(out, &config_json)?;
    files.push("config.json".to_owned());
    for (name, json) in tokenizer {
        let path = out.join(name);
        std::fs::write(&path, format!("{json:#}\n")).map_err(|e| Error::io("write", &path, e))?;
        files.push(name.to_owned());
    }
    Ok(files)
}

/// llama.cpp interleaves each head's rotary pairs (x0, y0, x1, y1, ...) in Llama's q and k; Hugging Face wants the
/// halves one after the other (x0, x1, ..., y0, y1, ...). Works on weights and biases alike.
fn split_pairs(values: &[f32], heads: usize, head_dim: usize) -> Vec<f32> {
    let width = values.len() / (heads * head_dim);
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for row in 0..head_dim {
            let (side, pair) = (row / (head_dim / 2), row % (head_dim / 2));
            let from = (head * head_dim + 2 * pair + side) * width;
            out.extend_from_slice(&values[from..from + width]);
        }
    }
    out
}

/// Stored types that need no rounding are kept, everything else becomes bf16.
fn dtype(file: &GgufFile) -> DType {
    match file.entry("token_embd.weight").map(|entry| entry.kind) {
        Some(Kind::F32) => DType::F32,
        Some(Kind::F16) => DType::F16,
        _ => DType::BF16,
    }
}

/// llama.cpp's name of a tensor.
fn gguf_name(name: &str) -> Option<String> {
    match name {
        names::EMBEDDING => return Some("token_embd.weight".to_owned()),
        names::FINAL_NORM => return Some("output_norm.weight".to_owned()),
        names::HEAD => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (stem, kind) = name.rsplit_once('.')?;
    if let Some((projection, layer)) = Projection::parse(stem) {
        let part = match projection {
            Projection::Q => "attn_q",
            Projection::K => "attn_k",
            Projection::V => "attn_v",
            Projection::O => "attn_output",
            Projection::Gate => "ffn_gate",
            Projection::Up => "ffn_up",
            Projection::Down => "ffn_down",
        };
        return Some(format!("blk.{layer}.{part}.{kind}"));
    }
    let (layer, norm) = stem.strip_prefix("model.layers.")?.split_once('.')?;
    let part = match norm {
        _ if norm == Norm::Input.name() => "attn_norm",
        _ if norm == Norm::PostAttention.name() => "ffn_norm",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.{kind}"))
}

/// config.json as transformers 4 writes it.
fn config(file: &GgufFile) -> Result<Map<String, Value>> {
    let name = file.text("general.architecture").unwrap_or("(not named)");
    let architecture = match name {
        "llama" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        other => {
            return Err(Error::input(format!("architecture {other} is not imported from GGUF"))
                .hint("imported are llama, qwen2 and qwen3: fetch other models as safetensors"));
        }
    };
    let number = |key: &str| {
        let key = format!("{name}.{key}");
        file.number(&key).ok_or_else(|| Error::input(format!("there is no setting {key:?}")))
    };
    if file.number(&format!("{name}.expert_count")).is_some_and(|count| count > 0) {
        return Err(Error::input("a mixture of experts is not supported").hint("supported are dense decoders"));
    }
    if file.entry("rope_freqs.weight").is_some() {
        return Err(Error::input("its rope scaling (rope_freqs) cannot be turned back into settings")
            .hint("fetch the model as safetensors instead"));
    }
    let float = |key: &str| file.float(&format!("{name}.{key}"));
    let heads = number("attention.head_count")?;
    let hidden = number("embedding_length")?;
    let head_dim = match file.number(&format!("{name}.attention.key_length")) {
        Some(head_dim) => head_dim,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let rotary = file.number(&format!("{name}.rope.dimension_count")).unwrap_or(head_dim);
    if rotary != head_dim {
        return Err(Error::input(format!("rotary embeddings on {rotary} of {head_dim} dimensions are not supported")));
    }
    let scaling = match file.text(&format!("{name}.rope.scaling.type")) {
        None | Some("none") => Value::Null,
        Some("linear") => json!({"rope_type": "linear", "factor": float("rope.scaling.factor").unwrap_or(1.0)}),
        Some(other) => return Err(Error::input(format!("rope scaling {other:?} is not imported"))),
    };
    let tokens = file.array("tokenizer.ggml.tokens").map(<[_]>::len);
    let vocab = tokens.ok_or_else(|| Error::input("there is no setting \"tokenizer.ggml.tokens\""))?;
    let biased = |part: &str| file.entry(&format!("blk.0.{part}.bias")).is_some();
    let torch_dtype = match dtype(file) {
        DType::F32 => "float32",
        DType::F16 => "float16",
        _ => "bfloat16",
    };
    let json = json!({
        "architectures": [architecture.class()],
        "model_type": architecture.model_type(),
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length")?,
        "num_hidden_layers": number("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv").unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": number("context_length")?,
        "rope_theta": float("rope.freq_base").unwrap_or(10_000.0),
        "rope_scaling": scaling,
        "rms_norm_eps": float("attention.layer_norm_rms_epsilon").unwrap_or(1e-6),
        "hidden_act": "silu",
        "attention_bias": biased("attn_q"),
        "mlp_bias": biased("ffn_up"),
        "tie_word_embeddings": file.entry("output.weight").is_none(),
        "use_cache": true,
        "bos_token_id": file.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.number("tokenizer.ggml.padding_token_id"),
        "torch_dtype": torch_dtype,
    });
    match json {
        Value::Object(map) => Ok(map),
        _ => Err(Error::failed("a configuration is an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Quiet;
    use crate::model::{Checkpoint, eos_ids};

    /// A writer of GGUF files for tests.
    #[derive(Default)]
    struct Builder {
        settings: Vec<u8>,
        count: u64,
        infos: Vec<u8>,
        tensors: u64,
        data: Vec<u8>,
    }

    fn text(value: &str) -> Vec<u8> {
        [(value.len() as u64).to_le_bytes().as_slice(), value.as_bytes()].concat()
    }

    impl Builder {
        fn set(&mut self, key: &str, kind: u32, value: &[u8]) {
            self.settings.extend(text(key));
            self.settings.extend(kind.to_le_bytes());
            self.settings.extend(value);
            self.count += 1;
        }

        fn number(&mut self, key: &str, value: u32) {
            self.set(key, 4, &value.to_le_bytes());
        }

        fn texts(&mut self, key: &str, values: &[&str]) {
            let mut bytes = 8u32.to_le_bytes().to_vec();
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| bytes.extend(text(value)));
            self.set(key, 9, &bytes);
        }

        fn tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) {
            self.infos.extend(text(name));
            self.infos.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|dim| self.infos.extend((*dim as u64).to_le_bytes()));
            self.infos.extend(0u32.to_le_bytes());
            self.infos.extend((self.data.len() as u64).to_le_bytes());
            self.data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            self.data.resize(self.data.len().next_multiple_of(32), 0);
            self.tensors += 1;
        }

        fn write(&self, path: &Path) {
            let mut bytes = b"GGUF".to_vec();
            bytes.extend(3u32.to_le_bytes());
            bytes.extend(self.tensors.to_le_bytes());
            bytes.extend(self.count.to_le_bytes());
            bytes.extend(&self.settings);
            bytes.extend(&self.infos);
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(&self.data);
            std::fs::write(path, bytes).unwrap();
        }
    }

    fn small_llama() -> Builder {
        small("llama")
    }

    fn small(architecture: &str) -> Builder {
        let mut file = Builder::default();
        file.set("general.architecture", 8, &text(architecture));
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 8),
            ("feed_forward_length", 16),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ] {
            file.number(&format!("{architecture}.{key}"), value);
        }
        file.set("tokenizer.ggml.model", 8, &text("gpt2"));
        file.set("tokenizer.ggml.pre", 8, &text("smollm"));
        file.texts("tokenizer.ggml.tokens", &["<end>", "a", "b", "ab"]);
        file.texts("tokenizer.ggml.merges", &["a b"]);
        let types: Vec<u8> = [3u32, 1, 1, 1].iter().flat_map(|t| t.to_le_bytes()).collect();
        file.set("tokenizer.ggml.token_type", 9, &[&4u32.to_le_bytes()[..], &4u64.to_le_bytes(), &types].concat());
        file.number("tokenizer.ggml.eos_token_id", 0);
        file
    }

    fn tensors(file: &mut Builder) {
        let ramp = |count: usize| (0..count).map(|i| i as f32).collect::<Vec<_>>();
        for (name, shape) in [
            ("token_embd", vec![4, 8]),
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
            let count = shape.iter().product();
            file.tensor(&format!("{name}.weight"), &shape, &ramp(count));
        }
    }

    #[test]
    fn a_llama_file_becomes_a_folder_with_its_rotary_pairs_split() {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("m.gguf"), dir.path().join("out"));
        std::fs::create_dir(&out).unwrap();
        let mut file = small_llama();
        tensors(&mut file);
        file.write(&path);
        assert!(is_gguf(&path));
        let files = import(&path, &out, &Quiet, &Cancel::new()).unwrap();
        assert!(files.iter().all(|name| out.join(name).is_file()), "{files:?}");
        let model = Checkpoint::open(&out).unwrap();
        assert_eq!((model.config.num_kv_heads, model.config.head_dim), (1, 4));
        assert!(model.config.tie_word_embeddings);
        // Row r of a head of 4 (one value of each row is enough): 0, 2, 1, 3 become 0, 1, 2, 3's places.
        let first = |name: &str| -> Vec<f32> {
            model.linear(name).unwrap().dequantize().chunks(8).map(|row| row[0] / 8.0).collect()
        };
        assert_eq!(first("model.layers.0.self_attn.q_proj"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert_eq!(first("model.layers.0.self_attn.k_proj"), [0.0, 2.0, 1.0, 3.0]);
        assert_eq!(first("model.layers.0.self_attn.v_proj"), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(eos_ids(&out).unwrap(), [0]);
        let tokenizer = tokenizers::Tokenizer::from_file(out.join("tokenizer.json")).unwrap();
        assert_eq!(tokenizer.encode("ab<end>ba", false).unwrap().get_ids(), [3, 0, 2, 1]);
    }

    #[test]
    fn a_qwen3_file_brings_its_head_norms_and_keeps_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("m.gguf"), dir.path().join("out"));
        std::fs::create_dir(&out).unwrap();
        let mut file = small("qwen3");
        file.number("qwen3.attention.key_length", 4);
        tensors(&mut file);
        file.tensor("blk.0.attn_q_norm.weight", &[4], &[1.0, 2.0, 3.0, 4.0]);
        file.tensor("blk.0.attn_k_norm.weight", &[4], &[5.0, 6.0, 7.0, 8.0]);
        file.write(&path);
        import(&path, &out, &Quiet, &Cancel::new()).unwrap();
        let model = Checkpoint::open(&out).unwrap();
        assert!(model.config.qk_norm);
        assert_eq!(model.dense(&Norm::K.weight(0)).unwrap().data, [5.0, 6.0, 7.0, 8.0]);
        let q = model.linear("model.layers.0.self_attn.q_proj").unwrap().dequantize();
        assert_eq!(q, (0..64).map(|i| i as f32).collect::<Vec<_>>());
    }

    #[test]
    fn an_imported_model_exported_and_imported_again_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut file = small_llama();
        tensors(&mut file);
        file.set("tokenizer.chat_template", 8, &text("{{ messages }}"));
        file.write(&at("a.gguf"));
        std::fs::create_dir(at("a")).unwrap();
        std::fs::create_dir(at("b")).unwrap();
        import(&at("a.gguf"), &at("a"), &Quiet, &Cancel::new()).unwrap();
        export(&at("a"), &at("b.gguf"), Storage::Bf16, &Quiet, &Cancel::new()).unwrap();
        import(&at("b.gguf"), &at("b"), &Quiet, &Cancel::new()).unwrap();
        let (a, b) = (Checkpoint::open(&at("a")).unwrap(), Checkpoint::open(&at("b")).unwrap());
        assert_eq!(a.config, b.config);
        for projection in Projection::ALL {
            let weight = |model: &Checkpoint| model.linear(&projection.prefix(0)).unwrap().dequantize();
            assert_eq!(weight(&a), weight(&b), "{}", projection.name());
        }
        let dense = |model: &Checkpoint, name: &str| model.dense(name).unwrap().data;
        for name in [names::EMBEDDING, names::FINAL_NORM] {
            assert_eq!(dense(&a, name), dense(&b, name));
        }
        for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            let read = |folder: &str| std::fs::read_to_string(at(folder).join(name)).unwrap();
            assert_eq!(read("a"), read("b"), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_imported_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let refused = |file: &Builder, want: &str| {
            file.write(&path);
            let message = import(&path, dir.path(), &Quiet, &Cancel::new()).unwrap_err().to_string();
            assert!(message.contains(want), "{message:?} lacks {want:?}");
        };
        refused(&small_llama(), "\"token_embd.weight\"");
        let mut file = small_llama();
        tensors(&mut file);
        file.tensor("rope_freqs.weight", &[2], &[1.0, 8.0]);
        refused(&file, "rope_freqs");
        let mut file = small_llama();
        tensors(&mut file);
        file.tensor("blk.0.attn_sinks.weight", &[8], &[0.0; 8]);
        refused(&file, "attn_sinks");
        let mut file = Builder::default();
        file.set("general.architecture", 8, &text("gemma2"));
        refused(&file, "gemma2");
    }
}
