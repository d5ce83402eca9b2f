//! A model folder -> the same model with its projections in a 4-bit format, tensor by tensor: memory stays at the
//! largest tensor plus its packed form.

use std::borrow::Cow;
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::names::{self, Projection};
use super::{Checkpoint, Layout, Values, Weight, bnb, copy_companions, read_json, write_config};
use crate::control::{Cancel, Progress};
use crate::quant::nvfp4::Global;
use crate::quant::{Format, Source, mxfp4, nf4, nvfp4};
use crate::tensors::{DType, FolderWriter, Spec};
use crate::{Error, Result};

/// What rounding did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Errors {
    pub format: Format,
    /// |W - Q(W)| / |W| (Frobenius) over all quantized weights together.
    pub relative_frobenius: f64,
    /// The same for each layer's projection, in the order of the model.
    pub layers: Vec<LayerError>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerError {
    pub layer: String,
    pub relative_frobenius: f64,
}

/// The outcome of [`compress`].
#[derive(Clone, Debug, PartialEq)]
pub struct Compressed {
    /// Every file written, relative to the output folder.
    pub files: Vec<String>,
    pub errors: Errors,
    /// Tensor bytes of the source and of the result.
    pub bytes_before: u64,
    pub bytes_after: u64,
}

/// How much is dequantized at a time to measure errors; a multiple of every format's group.
const CHUNK: usize = 1 << 14;

/// Quantizes the projections of the model in `source` and writes a complete folder into `out` (which exists):
/// weights, config.json, tokenizer files and `errors.json`. Embeddings, norms, biases and head stay as they are.
/// `fuse`: q, k, v and gate, up share NVFP4's global scale.
pub fn compress(
    source: &Path,
    out: &Path,
    format: Format,
    fuse: bool,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Compressed> {
    if format == Format::Bf16 {
        return Err(Error::usage("bf16 makes no copy: the source is the result").hint("name nvfp4, mxfp4 or nf4"));
    }
    let model = Checkpoint::open(source)?;
    if model.layout() != Layout::Dense {
        let have = model.layout().format().name();
        return Err(Error::input(format!("{} is quantized already ({have})", source.display()))
            .hint("name the unquantized model"));
    }
    if !fuse {
        progress.say(match format {
            Format::Nvfp4 => {
                "warning: fuse is off, so q, k, v and gate, up have global scales of their own: engines that fuse them \
                 (vLLM) will compute wrong results from this model"
            }
            _ => "note: fuse has no effect on a format without global scales",
        });
    }
    let mut job = Job { model: &model, format, fuse, progress, cancel, done: 0, errors: Vec::new() };
    let specs = job.specs()?;
    let bytes_after = specs.iter().map(Spec::bytes).sum();
    let mut writer = FolderWriter::create(out, specs, FolderWriter::MAX_SHARD)?;
    progress.total(job.weights(), "weights");
    job.copy_rest(&mut writer)?;
    for layer in 0..model.config.num_layers {
        for group in Projection::FUSED {
            cancel.check()?;
            job.quantize_group(layer, group, &mut writer)?;
        }
    }
    let errors = job.finish();
    let mut files = writer.finish()?;
    let (_, mut config) = read_json(source)?;
    let dtype = model.tensors().tensor(names::EMBEDDING)?.dtype;
    config.insert("quantization_config".to_owned(), quantization_config(format, dtype));
    write_config(out, &config)?;
    files.push("config.json".to_owned());
    files.extend(copy_companions(source, out)?);
    let path = out.join("errors.json");
    let text = serde_json::to_string_pretty(&errors).map_err(|e| Error::failed("cannot write errors").caused_by(e))?;
    std::fs::write(&path, text + "\n").map_err(|e| Error::io("write", &path, e))?;
    files.push("errors.json".to_owned());
    Ok(Compressed { files, errors, bytes_before: model.tensors().bytes(), bytes_after })
}

struct Job<'a> {
    model: &'a Checkpoint,
    format: Format,
    fuse: bool,
    progress: &'a dyn Progress,
    cancel: &'a Cancel,
    /// Weights quantized so far.
    done: u64,
    /// Layer, squared error, squared norm.
    errors: Vec<(String, f64, f64)>,
}

impl Job<'_> {
    /// Number of weights to quantize.
    fn weights(&self) -> u64 {
        let config = &self.model.config;
        let one: usize = Projection::ALL.iter().map(|p| p.shape(config).iter().product::<usize>()).sum();
        (one * config.num_layers) as u64
    }

    /// Every tensor of the result, in the order of the model.
    fn specs(&self) -> Result<Vec<Spec>> {
        let mut specs = Vec::new();
        for (name, shape) in names::parameters(&self.model.config) {
            let view = self.model.tensors().tensor(&name)?;
            let prefix = name.strip_suffix(".weight").filter(|prefix| Projection::parse(prefix).is_some());
            let (Some(prefix), &[rows, cols]) = (prefix, shape.as_slice()) else {
                specs.push(Spec::new(name, view.dtype, shape));
                continue;
            };
            let groups = |group: usize| {
                if cols.is_multiple_of(group) {
                    return Ok(cols / group);
                }
                Err(Error::input(format!("layer {prefix}: its {cols} inputs are no multiple of {group}"))
                    .hint("nf4 takes any shape"))
            };
            let packed = Spec::new(format!("{prefix}.weight_packed"), DType::U8, [rows, cols / 2]);
            let scale = format!("{prefix}.weight_scale");
            match self.format {
                Format::Bf16 => specs.push(Spec::new(name, view.dtype, shape)),
                Format::Nvfp4 => {
                    specs.push(Spec::new(format!("{prefix}.weight_global_scale"), DType::F32, [1]));
                    specs.push(Spec::new(scale, DType::F8E4M3, [rows, groups(nvfp4::GROUP)?]));
                    specs.push(packed);
                }
                Format::Mxfp4 => {
                    specs.push(Spec::new(scale, DType::U8, [rows, groups(mxfp4::GROUP)?]));
                    specs.push(packed);
                }
                Format::Nf4 => {
                    // The length of bitsandbytes' JSON depends on the digits of the mean scale.
                    self.cancel.check()?;
                    let weight = self.model.linear(prefix)?;
                    amax(prefix, &weight)?;
                    let offset = nf4::nest(&nf4::absmax(floats(prefix, &weight)?)).offset;
                    let json = bnb::state_json([rows, cols], view.dtype, offset);
                    specs.extend(bnb::specs(prefix, [rows, cols], json.len()));
                }
            }
        }
        Ok(specs)
    }

    /// Embedding, norms, biases, head: byte for byte.
    fn copy_rest(&self, writer: &mut FolderWriter) -> Result<()> {
        for (name, _) in names::parameters(&self.model.config) {
            let projection = name.strip_suffix(".weight").is_some_and(|prefix| Projection::parse(prefix).is_some());
            if !projection {
                self.cancel.check()?;
                writer.write(&name, self.model.tensors().tensor(&name)?.data)?;
            }
        }
        Ok(())
    }

    fn quantize_group(&mut self, layer: usize, group: &[Projection], writer: &mut FolderWriter) -> Result<()> {
        let mut weights = Vec::new();
        let mut joint = 0.0f32;
        for projection in group {
            let prefix = projection.prefix(layer);
            let weight = self.model.linear(&prefix)?;
            let amax = amax(&prefix, &weight)?;
            joint = joint.max(amax);
            weights.push((prefix, weight, amax));
        }
        for (prefix, weight, amax) in &weights {
            self.cancel.check()?;
            self.quantize(prefix, weight, if self.fuse { joint } else { *amax }, writer)?;
        }
        Ok(())
    }

    fn quantize(&mut self, prefix: &str, weight: &Weight<'_>, amax: f32, writer: &mut FolderWriter) -> Result<()> {
        let source = floats(prefix, weight)?;
        let (shape, cols) = (weight.shape, weight.shape[1]);
        let named = |e: Error| e.within(format!("layer {prefix}"));
        let values = match self.format {
            Format::Bf16 => return Err(Error::failed("bf16 is not quantized")),
            Format::Nvfp4 => {
                let scale = nvfp4::global_scale(amax, source);
                if scale.widened {
                    self.progress.say(&format!(
                        "note: layer {prefix}: its global scale does not fit f16 and was computed in f32 (llm-compressor \
                         would fall back to 1)"
                    ));
                }
                let done = nvfp4::quantize(source, cols, scale.divisor).map_err(named)?;
                writer.write(&format!("{prefix}.weight_global_scale"), &scale.divisor.to_le_bytes())?;
                writer.write(&format!("{prefix}.weight_scale"), &done.scales)?;
                writer.write(&format!("{prefix}.weight_packed"), &done.packed)?;
                let global = Global::Divisor(scale.divisor);
                Values::Nvfp4 { packed: Cow::Owned(done.packed), scales: Cow::Owned(done.scales), global }
            }
            Format::Mxfp4 => {
                let done = mxfp4::quantize(source, cols).map_err(named)?;
                writer.write(&format!("{prefix}.weight_scale"), &done.scales)?;
                writer.write(&format!("{prefix}.weight_packed"), &done.packed)?;
                Values::Mxfp4 { packed: Cow::Owned(done.packed), scales: Cow::Owned(done.scales) }
            }
            Format::Nf4 => {
                let done = nf4::quantize(source);
                let nested = nf4::nest(&done.absmax);
                let json = bnb::state_json(shape, dtype(source), nested.offset);
                let specs = bnb::specs(prefix, shape, json.len());
                let absmax = nf4::unnest(&nested.codes, &nf4::NESTED_LEVELS, &nested.absmax, nested.offset);
                for (spec, bytes) in specs.iter().zip(bnb::bytes(done.packed.clone(), &nested, json)) {
                    writer.write(&spec.name, &bytes)?;
                }
                Values::Nf4 { codes: Cow::Owned(done.packed), absmax: Cow::Owned(absmax) }
            }
        };
        let (error, norm) = squared_error(source, &Weight { shape, values });
        self.errors.push((prefix.to_owned(), error, norm));
        self.done += weight.len() as u64;
        self.progress.at(self.done, prefix);
        Ok(())
    }

    fn finish(self) -> Errors {
        let relative = |error: f64, norm: f64| if norm > 0.0 { (error / norm).sqrt() } else { 0.0 };
        let (error, norm) = self.errors.iter().fold((0.0, 0.0), |(e, n), (_, error, norm)| (e + error, n + norm));
        let layers = self.errors.into_iter();
        Errors {
            format: self.format,
            relative_frobenius: relative(error, norm),
            layers: layers
                .map(|(layer, error, norm)| LayerError { layer, relative_frobenius: relative(error, norm) })
                .collect(),
        }
    }
}

/// The largest magnitude; weights that are not finite are refused.
fn amax(prefix: &str, weight: &Weight<'_>) -> Result<f32> {
    floats(prefix, weight)?.amax().map_err(|e| e.within(format!("tensor {prefix}.weight")))
}

fn floats<'a>(prefix: &str, weight: &'a Weight<'_>) -> Result<Source<'a>> {
    weight.source().ok_or_else(|| Error::input(format!("layer {prefix} is quantized already")))
}

fn dtype(source: Source<'_>) -> DType {
    match source {
        Source::F32(_) => DType::F32,
        Source::Bf16(_) => DType::BF16,
        Source::F16(_) => DType::F16,
    }
}

/// Sums of (w - q)^2 and w^2 in f64, chunk by chunk in a fixed order: the same on any number of threads.
fn squared_error(source: Source<'_>, quantized: &Weight<'_>) -> (f64, f64) {
    let len = source.len();
    let chunk = |index: usize| {
        let (start, end) = (index * CHUNK, (index * CHUNK + CHUNK).min(len));
        let (mut clean, mut rounded) = (vec![0.0; end - start], vec![0.0; end - start]);
        source.slice(start..end).widen(&mut clean);
        quantized.dequantize_from(start, &mut rounded);
        clean.iter().zip(&rounded).fold((0.0, 0.0), |(error, norm), (w, q)| {
            let (w, q) = (f64::from(*w), f64::from(*q));
            (error + (w - q) * (w - q), norm + w * w)
        })
    };
    let parts: Vec<(f64, f64)> = (0..len.div_ceil(CHUNK)).into_par_iter().map(chunk).collect();
    parts.iter().fold((0.0, 0.0), |(error, norm), (e, n)| (error + e, norm + n))
}

/// The text that compressed-tensors 0.10 to 0.19 and transformers' bitsandbytes reader accept.
fn quantization_config(format: Format, dtype: DType) -> Value {
    let compressed = |name: &str, weights: Value| {
        json!({
            "quant_method": "compressed-tensors",
            "format": name,
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "kv_cache_scheme": null,
            "global_compression_ratio": null,
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "input_activations": null,
                "output_activations": null,
                "weights": weights,
            }},
        })
    };
    match format {
        Format::Bf16 => Value::Null,
        Format::Nvfp4 => compressed(
            "nvfp4-pack-quantized",
            json!({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group", "group_size": 16,
                "dynamic": false, "observer": "minmax", "observer_kwargs": {}, "actorder": null}),
        ),
        Format::Mxfp4 => compressed(
            "mxfp4-pack-quantized",
            json!({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "group", "group_size": 32,
                "scale_dtype": "torch.uint8", "dynamic": false, "observer": "minmax", "observer_kwargs": {},
                "actorder": null}),
        ),
        Format::Nf4 => json!({
            "quant_method": "bitsandbytes",
            "load_in_4bit": true,
            "load_in_8bit": false,
            "_load_in_4bit": true,
            "_load_in_8bit": false,
            "bnb_4bit_compute_dtype": match dtype { DType::F16 => "float16", DType::F32 => "float32", _ => "bfloat16" },
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": true,
            "llm_int8_enable_fp32_cpu_offload": false,
            "llm_int8_has_fp16_weight": false,
            "llm_int8_skip_modules": ["lm_head"],
            "llm_int8_threshold": 6.0,
        }),
    }
}
