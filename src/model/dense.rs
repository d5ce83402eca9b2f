//! Saving an unquantized model as a Hugging Face folder.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use serde_json::{Map, Value};

use super::{ModelConfig, names};
use crate::engine::NamedTensor;
use crate::tensors::{DType, FolderWriter, Spec};
use crate::{Error, Result};

/// Writes config.json and the weights in `dtype` (BF16, rounded to nearest even, or F32). `tensors` must hold every
/// parameter of the architecture under its Hugging Face name; a tied head is left out. Gives the files' names.
pub fn write_dense(
    dir: &Path,
    config_json: &Map<String, Value>,
    tensors: &[NamedTensor],
    dtype: DType,
) -> Result<Vec<String>> {
    let torch_dtype = match dtype {
        DType::BF16 => "bfloat16",
        DType::F32 => "float32",
        other => return Err(Error::failed(format!("a model is written as BF16 or F32, not {}", other.name()))),
    };
    let config = ModelConfig::parse(config_json)?;
    let by_name: BTreeMap<&str, &NamedTensor> = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let mut chosen = Vec::new();
    for (name, shape) in names::parameters(&config) {
        let tensor = by_name.get(name.as_str()).ok_or_else(|| Error::failed(format!("no tensor {name:?} to write")))?;
        if tensor.shape != shape || tensor.data.len() != shape.iter().product::<usize>() {
            return Err(Error::failed(format!("tensor {name:?} has shape {:?}, not {shape:?}", tensor.shape)));
        }
        chosen.push(*tensor);
    }
    let specs = chosen.iter().map(|t| Spec::new(t.name.clone(), dtype, t.shape.clone())).collect();
    let mut writer = FolderWriter::create(dir, specs, FolderWriter::MAX_SHARD)?;
    for tensor in chosen {
        let bytes: Vec<u8> = match dtype {
            DType::BF16 => tensor.data.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            _ => tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        writer.write(&tensor.name, &bytes)?;
    }
    let mut files = writer.finish()?;
    write_config(dir, &plain_config(config_json, torch_dtype))?;
    files.push("config.json".to_owned());
    Ok(files)
}

/// The config of the same model unquantized, in `torch_dtype`.
pub(super) fn plain_config(config_json: &Map<String, Value>, torch_dtype: &str) -> Map<String, Value> {
    let mut json = config_json.clone();
    json.remove("quantization_config");
    let key = if json.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    json.insert(key.to_owned(), Value::from(torch_dtype));
    json
}

/// config.json with its keys in order.
pub fn write_config(dir: &Path, json: &Map<String, Value>) -> Result<()> {
    let path = dir.join("config.json");
    let text = format!("{:#}\n", Value::Object(json.clone()));
    std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
}
