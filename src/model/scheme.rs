//! How a model's weights are quantized, from its quantization_config alone: tensor names prove nothing.

use std::path::Path;

use serde_json::{Map, Value};

use crate::quant::Format;
use crate::{Error, Result};

/// Who laid the tensors out, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `P.weight` in a float type.
    Dense,
    /// compressed-tensors `nvfp4-pack-quantized`.
    Nvfp4,
    /// compressed-tensors `mxfp4-pack-quantized`.
    Mxfp4,
    /// ModelOpt's NVFP4.
    ModelOpt,
    /// bitsandbytes NF4, with or without double quantization.
    Nf4,
}

impl Layout {
    pub fn format(self) -> Format {
        match self {
            Self::Dense => Format::Bf16,
            Self::Nvfp4 | Self::ModelOpt => Format::Nvfp4,
            Self::Mxfp4 => Format::Mxfp4,
            Self::Nf4 => Format::Nf4,
        }
    }
}

/// A layout and the modules that it leaves alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub layout: Layout,
    ignored: Vec<String>,
}

const SUPPORTED: &str = "supported are compressed-tensors nvfp4-pack-quantized and mxfp4-pack-quantized, ModelOpt NVFP4, \
                         bitsandbytes nf4, and unquantized weights";

impl Scheme {
    /// From config.json's object; `dir` may hold ModelOpt's hf_quant_config.json beside it.
    pub fn read(config: &Map<String, Value>, dir: &Path) -> Result<Self> {
        let modelopt = modelopt_file(dir)?;
        let quantization = match config.get("quantization_config") {
            None | Some(Value::Null) => match modelopt {
                Some(file) => return Self::modelopt(&file, None),
                None => return Ok(Self { layout: Layout::Dense, ignored: Vec::new() }),
            },
            Some(Value::Object(quantization)) => quantization,
            Some(_) => return Err(Error::input("quantization_config is not an object")),
        };
        match text(quantization, "quant_method") {
            Some("compressed-tensors") => Self::compressed_tensors(quantization),
            Some("modelopt") => Self::modelopt(quantization, modelopt.as_ref()),
            Some("bitsandbytes") => Self::bitsandbytes(quantization),
            Some(other) => Err(foreign(format!("quant_method {other:?} is not supported"))),
            None => Err(foreign("quantization_config has no quant_method".to_owned())),
        }
    }

    /// Whether `prefix` (`model.layers.0.mlp.up_proj`) may stand unquantized.
    pub fn may_be_dense(&self, prefix: &str) -> bool {
        self.layout == Layout::Dense
            || self.ignored.iter().any(|name| match name.strip_prefix("re:") {
                // Regular expressions and globs are not evaluated here: the file decides for those.
                Some(_) => true,
                None if name.contains('*') => true,
                None => {
                    prefix == name || prefix.ends_with(&format!(".{name}")) || prefix.starts_with(&format!("{name}."))
                }
            })
    }

    fn compressed_tensors(quantization: &Map<String, Value>) -> Result<Self> {
        let groups = quantization.get("config_groups").and_then(Value::as_object);
        let Some(groups) = groups.filter(|groups| !groups.is_empty()) else {
            return Err(foreign("quantization_config has no config_groups".to_owned()));
        };
        if groups.len() > 1 {
            let names: Vec<&str> = groups.keys().map(String::as_str).collect();
            return Err(foreign(format!("several quantization groups ({}) are not supported", names.join(", "))));
        }
        let Some(group) = groups.values().next().and_then(Value::as_object) else {
            return Err(foreign("the quantization group is not an object".to_owned()));
        };
        let format = text(group, "format").or_else(|| text(quantization, "format"));
        let (layout, size) = match format {
            Some("nvfp4-pack-quantized") => (Layout::Nvfp4, 16),
            Some("mxfp4-pack-quantized") => (Layout::Mxfp4, 32),
            other => return Err(foreign(format!("format {:?} is not supported", other.unwrap_or("(none)")))),
        };
        let weights = group.get("weights").and_then(Value::as_object);
        let Some(weights) = weights else {
            return Err(foreign("the quantization group says nothing of weights".to_owned()));
        };
        let known = [("num_bits", Value::from(4)), ("type", Value::from("float")), ("group_size", Value::from(size))];
        for (key, want) in known {
            match weights.get(key) {
                None | Some(Value::Null) => {}
                Some(have) if *have == want => {}
                Some(have) => return Err(foreign(format!("weights.{key} {have} is not supported (only {want})"))),
            }
        }
        if weights.get("symmetric").and_then(Value::as_bool) == Some(false) {
            return Err(foreign("weights with zero points (symmetric: false) are not supported".to_owned()));
        }
        if weights.get("actorder").is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false))) {
            return Err(foreign("weights in activation order (actorder) are not supported".to_owned()));
        }
        let targets = strings(group.get("targets"));
        if !targets.iter().any(|target| target == "Linear") {
            return Err(foreign(format!("targets {targets:?} are not supported (only [\"Linear\"])")));
        }
        if text(quantization, "quantization_status").is_some_and(|status| status != "compressed") {
            return Err(foreign("the weights are not compressed (quantization_status)".to_owned()));
        }
        Ok(Self { layout, ignored: strings(quantization.get("ignore")) })
    }

    /// `own` is quantization_config or the file's `quantization`; `file` adds its exclude_modules.
    fn modelopt(own: &Map<String, Value>, file: Option<&Map<String, Value>>) -> Result<Self> {
        match text(own, "quant_algo").or_else(|| file.and_then(|file| text(file, "quant_algo"))) {
            Some("NVFP4") => {}
            other => {
                return Err(foreign(format!("ModelOpt's {} is not supported", other.unwrap_or("(no quant_algo)"))));
            }
        }
        let mut ignored = strings(own.get("ignore"));
        ignored.extend(strings(own.get("exclude_modules")));
        ignored.extend(file.map(|file| strings(file.get("exclude_modules"))).unwrap_or_default());
        Ok(Self { layout: Layout::ModelOpt, ignored })
    }

    fn bitsandbytes(quantization: &Map<String, Value>) -> Result<Self> {
        let eight =
            ["load_in_8bit", "_load_in_8bit"].iter().any(|key| quantization.get(*key) == Some(&Value::from(true)));
        if eight {
            return Err(foreign("8-bit weights of bitsandbytes are not supported".to_owned()));
        }
        match text(quantization, "bnb_4bit_quant_type") {
            Some("nf4") => {}
            other => return Err(foreign(format!("bitsandbytes' {:?} is not supported", other.unwrap_or("fp4")))),
        }
        let mut ignored = strings(quantization.get("llm_int8_skip_modules"));
        if ignored.is_empty() {
            ignored.push("lm_head".to_owned());
        }
        Ok(Self { layout: Layout::Nf4, ignored })
    }
}

fn foreign(message: String) -> Error {
    Error::input(message).hint(SUPPORTED)
}

fn text<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    map.get(key).and_then(Value::as_str)
}

/// The strings of a list; anything else counts as none.
fn strings(value: Option<&Value>) -> Vec<String> {
    let list = value.and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// The `quantization` object of hf_quant_config.json, where there is such a file.
fn modelopt_file(dir: &Path) -> Result<Option<Map<String, Value>>> {
    let path = dir.join("hf_quant_config.json");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("read", &path, e)),
    };
    let mut json: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::input(format!("{} is not valid JSON", path.display())).caused_by(e))?;
    match json.get_mut("quantization").map(Value::take) {
        Some(Value::Object(quantization)) => Ok(Some(quantization)),
        _ => Err(Error::input(format!("{} has no object \"quantization\"", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(quantization: Value) -> Result<Scheme> {
        let config = serde_json::json!({"quantization_config": quantization});
        Scheme::read(config.as_object().unwrap(), Path::new("/nonexistent"))
    }

    fn nvfp4(weights: Value) -> Value {
        serde_json::json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
    }

    #[test]
    fn keys_that_are_not_known_are_accepted() {
        let mut json =
            nvfp4(serde_json::json!({"num_bits": 4, "group_size": 16, "block_structure": null, "zp_dtype": "new"}));
        json["transform_config"] = serde_json::json!({"later": 1});
        let scheme = scheme(json).unwrap();
        assert_eq!(scheme.layout, Layout::Nvfp4);
        assert!(scheme.may_be_dense("lm_head") && !scheme.may_be_dense("model.layers.0.mlp.up_proj"));
    }

    #[test]
    fn several_groups_and_foreign_schemes_are_refused_by_name() {
        let mut two = nvfp4(serde_json::json!({}));
        two["config_groups"]["group_1"] = serde_json::json!({});
        let cases = [
            (two, "several quantization groups (group_0, group_1)"),
            (nvfp4(serde_json::json!({"group_size": 32})), "weights.group_size 32"),
            (serde_json::json!({"quant_method": "gptq"}), "quant_method \"gptq\""),
            (serde_json::json!({"quant_method": "modelopt", "quant_algo": "FP8"}), "ModelOpt's FP8"),
            (serde_json::json!({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "fp4"}), "\"fp4\""),
            (serde_json::json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), "8-bit"),
            (serde_json::json!("nvfp4"), "not an object"),
        ];
        for (json, want) in cases {
            let message = scheme(json).unwrap_err().to_string();
            assert!(message.contains(want), "{message:?} lacks {want:?}");
        }
    }
}
