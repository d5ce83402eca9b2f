//! Export of a Hugging Face folder as one GGUF file, as llama.cpp's converter lays it out.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value};

use super::{gguf_name, tokenizer};
use crate::control::{Cancel, Progress};
use crate::model::names::{self, Projection};
use crate::model::{Architecture, Checkpoint, ModelConfig, RopeScaling, eos_ids, read_json};
use crate::{Error, Result};

/// How matrices are stored; vectors (norms, biases) are always F32, as llama.cpp wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Bf16,
    /// Blocks of 32: an f16 step and 32 signed bytes.
    Q8_0,
}

/// Where tensors begin, from the start of the data; the format's default.
const ALIGNMENT: usize = 32;
const BLOCK: usize = 32;

/// ggml's numbers of the types.
const F32: u32 = 0;
const Q8_0: u32 = 8;
const BF16: u32 = 30;

/// Writes the model in the folder `source` with its tokenizer and chat template into the new file `out`. Memory stays
/// at the largest tensor.
///
/// # Errors
/// When the model is not one that GGUF describes, or its tokenizer is not byte-level BPE of a kind llama.cpp names.
pub fn export(source: &Path, out: &Path, storage: Storage, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
    let model = Checkpoint::open(source)?;
    let config = &model.config;
    let mut header = Header::default();
    settings(&mut header, config, storage)?;
    tokenizer_settings(&mut header, source, config)?;
    let parameters = names::parameters(config);
    let mut infos = Vec::new();
    let mut offset = 0u64;
    for (name, shape) in &parameters {
        let theirs = gguf_name(name).ok_or_else(|| Error::failed(format!("{name:?} has no name in GGUF")))?;
        let kind = kind(shape, storage);
        infos.extend(text(&theirs));
        infos.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| infos.extend((*dim as u64).to_le_bytes()));
        infos.extend(kind.to_le_bytes());
        infos.extend(offset.to_le_bytes());
        let count = shape.iter().product::<usize>();
        let bytes = match kind {
            F32 => count * 4,
            BF16 => count * 2,
            _ => count / BLOCK * (BLOCK + 2),
        };
        offset += bytes.next_multiple_of(ALIGNMENT) as u64;
    }
    let io = |e| Error::io("write", out, e);
    let mut file = BufWriter::new(File::create_new(out).map_err(io)?);
    let mut start = b"GGUF".to_vec();
    start.extend(3u32.to_le_bytes());
    start.extend((parameters.len() as u64).to_le_bytes());
    start.extend(header.count.to_le_bytes());
    start.extend(header.bytes);
    start.extend(infos);
    start.resize(start.len().next_multiple_of(ALIGNMENT), 0);
    file.write_all(&start).map_err(io)?;
    progress.total(parameters.len() as u64, "tensors");
    for (index, (name, shape)) in parameters.iter().enumerate() {
        cancel.check()?;
        let mut bytes = encode(&values(&model, name)?, kind(shape, storage)).map_err(|e| e.within(name))?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        file.write_all(&bytes).map_err(io)?;
        progress.at(index as u64 + 1, name);
    }
    let file = file.into_inner().map_err(|e| io(e.into_error()))?;
    file.sync_all().map_err(io)
}

/// In f32, with Llama's q and k in llama.cpp's order of rows.
fn values(model: &Checkpoint, name: &str) -> Result<Vec<f32>> {
    let (stem, part) = name.rsplit_once('.').unwrap_or((name, ""));
    let projection = Projection::parse(stem).map(|(projection, _)| projection);
    let values = match projection {
        Some(_) if part == "weight" => model.linear(stem)?.dequantize(),
        _ => model.dense(name)?.data,
    };
    let config = &model.config;
    Ok(match projection {
        _ if config.architecture != Architecture::Llama => values,
        Some(Projection::Q) => join_pairs(&values, config.num_heads, config.head_dim),
        Some(Projection::K) => join_pairs(&values, config.num_kv_heads, config.head_dim),
        _ => values,
    })
}

/// The inverse of [`super::split_pairs`].
fn join_pairs(values: &[f32], heads: usize, head_dim: usize) -> Vec<f32> {
    let width = values.len() / (heads * head_dim);
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for row in 0..head_dim {
            let from = (head * head_dim + row % 2 * (head_dim / 2) + row / 2) * width;
            out.extend_from_slice(&values[from..from + width]);
        }
    }
    out
}

fn kind(shape: &[usize], storage: Storage) -> u32 {
    match (shape, storage) {
        ([_, cols], Storage::Q8_0) if cols.is_multiple_of(BLOCK) => Q8_0,
        ([_, _], _) => BF16,
        _ => F32,
    }
}

fn encode(values: &[f32], kind: u32) -> Result<Vec<u8>> {
    if let Some(bad) = values.iter().position(|x| !x.is_finite()) {
        return Err(Error::input(format!("weight {bad} is {}", values[bad])));
    }
    Ok(match kind {
        F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => {
            let mut bytes = Vec::with_capacity(values.len() / BLOCK * (BLOCK + 2));
            for block in values.chunks_exact(BLOCK) {
                // ggml's quantize_row_q8_0_ref: the step is stored in f16, but values are divided by the f32 one.
                let step = block.iter().fold(0.0f32, |amax, x| amax.max(x.abs())) / 127.0;
                let stored = f16::from_f32(step);
                if !stored.is_finite() {
                    return Err(Error::input("its values are too large for q8_0").hint("write bf16"));
                }
                let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
                bytes.extend(stored.to_le_bytes());
                bytes.extend(block.iter().map(|x| ((x * inverse).round() as i8) as u8));
            }
            bytes
        }
    })
}

fn text(value: &str) -> Vec<u8> {
    [(value.len() as u64).to_le_bytes().as_slice(), value.as_bytes()].concat()
}

/// Settings with GGUF's number of each value's type before it.
#[derive(Default)]
struct Header {
    bytes: Vec<u8>,
    count: u64,
}

impl Header {
    fn set(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.bytes.extend(text(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
        self.count += 1;
    }

    fn number(&mut self, key: &str, value: usize) -> Result<()> {
        let value = u32::try_from(value).map_err(|_| Error::input(format!("{key}: {value} does not fit u32")))?;
        self.set(key, 4, &value.to_le_bytes());
        Ok(())
    }

    fn float(&mut self, key: &str, value: f64) {
        self.set(key, 6, &(value as f32).to_le_bytes());
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.set(key, 7, &[u8::from(value)]);
    }

    fn text(&mut self, key: &str, value: &str) {
        self.set(key, 8, &text(value));
    }

    /// `items` one after the other, each of the type numbered `kind`.
    fn list(&mut self, key: &str, kind: u32, count: usize, items: &[u8]) {
        self.set(key, 9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), items].concat());
    }
}

fn settings(header: &mut Header, config: &ModelConfig, storage: Storage) -> Result<()> {
    let name = config.architecture.model_type();
    header.text("general.architecture", name);
    // llama.cpp's numbers of whole files' types.
    let (file_type, quantized) = match storage {
        Storage::Bf16 => (32, false),
        Storage::Q8_0 => (7, true),
    };
    header.number("general.file_type", file_type)?;
    if quantized {
        header.number("general.quantization_version", 2)?;
    }
    for (key, value) in [
        ("block_count", config.num_layers),
        ("context_length", config.max_position),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
        ("vocab_size", config.vocab_size),
    ] {
        header.number(&format!("{name}.{key}"), value)?;
    }
    header.float(&format!("{name}.attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    header.float(&format!("{name}.rope.freq_base"), config.rope_theta);
    match config.rope_scaling {
        None => Ok(()),
        Some(RopeScaling::Linear { factor }) => {
            header.text(&format!("{name}.rope.scaling.type"), "linear");
            header.float(&format!("{name}.rope.scaling.factor"), factor);
            Ok(())
        }
        Some(RopeScaling::Llama3 { .. }) => Err(Error::input("rope scaling of type llama3 is not written as GGUF")
            .hint("export --to bf16, and convert that folder with llama.cpp's convert_hf_to_gguf.py")),
    }
}

fn json_file(path: &Path) -> Result<Option<Map<String, Value>>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| Error::input(format!("{} is not a JSON object", path.display())).caused_by(e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", path, e)),
    }
}

fn tokenizer_settings(header: &mut Header, source: &Path, config: &ModelConfig) -> Result<()> {
    let path = source.join("tokenizer.json");
    let tokenizer = json_file(&path)?.ok_or_else(|| {
        Error::missing(format!("{} has no tokenizer.json", source.display())).hint("a GGUF file carries its tokenizer")
    })?;
    let parts = tokenizer::parts(&tokenizer, config.vocab_size).map_err(|e| e.within(path.display()))?;
    header.text("tokenizer.ggml.model", "gpt2");
    header.text("tokenizer.ggml.pre", parts.pre);
    let join = |texts: &[String]| texts.iter().flat_map(|item| text(item)).collect::<Vec<u8>>();
    header.list("tokenizer.ggml.tokens", 8, parts.tokens.len(), &join(&parts.tokens));
    let types: Vec<u8> = parts.types.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    header.list("tokenizer.ggml.token_type", 5, parts.types.len(), &types);
    header.list("tokenizer.ggml.merges", 8, parts.merges.len(), &join(&parts.merges));
    let (_, json) = read_json(source)?;
    let settings = json_file(&source.join("tokenizer_config.json"))?.unwrap_or_default();
    let role = |role: &str| {
        let named = json.get(&format!("{role}_token_id")).and_then(Value::as_u64);
        let token = settings.get(&format!("{role}_token"));
        let token = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        let listed = token.and_then(|token| parts.tokens.iter().position(|t| t == token)).map(|id| id as u64);
        listed.or(named).and_then(|id| usize::try_from(id).ok()).filter(|id| *id < config.vocab_size)
    };
    let eos = eos_ids(source)?.first().map(|id| *id as usize).filter(|id| *id < config.vocab_size);
    for (key, id) in [("bos", role("bos")), ("eos", eos), ("padding", role("pad")), ("unknown", role("unk"))] {
        if let Some(id) = id {
            header.number(&format!("tokenizer.ggml.{key}_token_id"), id)?;
        }
    }
    header.flag("tokenizer.ggml.add_bos_token", settings.get("add_bos_token") == Some(&Value::Bool(true)));
    let path = source.join("chat_template.jinja");
    let template = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            settings.get("chat_template").and_then(Value::as_str).map(str::to_owned)
        }
        Err(e) => return Err(Error::io("read", &path, e)),
    };
    if let Some(template) = template {
        header.text("tokenizer.chat_template", &template);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_pairs_undoes_splitting_them() {
        let values: Vec<f32> = (0..2 * 8 * 3).map(|i| i as f32).collect();
        let joined = join_pairs(&values, 2, 8);
        // Row 1 of the file is the first of the second half.
        assert_eq!(joined[3..6], values[12..15]);
        assert_eq!(super::super::split_pairs(&joined, 2, 8), values);
    }

    #[test]
    fn q8_0_keeps_the_largest_value_and_rounds_the_rest() {
        let mut block = vec![0.0f32; 32];
        (block[0], block[1], block[2]) = (-127.0, 2.4, 2.5);
        let bytes = encode(&block, Q8_0).unwrap();
        assert_eq!(bytes[..2], f16::from_f32(1.0).to_le_bytes());
        assert_eq!(bytes[2..6], [(-127i8) as u8, 2, 3, 0]);
        assert_eq!(encode(&[0.0; 32], Q8_0).unwrap(), [0; 34]);
        assert!(encode(&[f32::NAN], F32).is_err());
    }
}
