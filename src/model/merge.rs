//! A model and its adapter as one model folder: everything merged into BF16, or only the trained norms put into the
//! base as it is. Tensor by tensor: memory stays at the largest tensor.

use std::path::Path;

use half::bf16;
use rayon::prelude::*;

use super::adapter::peft_key;
use super::dense::plain_config;
use super::names::{self, Norm, Projection};
use super::{Adapter, Checkpoint, copy_companions, read_json, write_config};
use crate::control::{Cancel, Progress};
use crate::tensors::{DType, FolderWriter, Spec, View};
use crate::{Error, Result};

/// Writes W + scale * B A (computed in f32, rounded once to BF16) for every projection, the adapter's norms where it
/// trained them, and all else of the model in `source` rounded to BF16, into the folder `out` (which exists). Without
/// an adapter the model is only dequantized. Gives the files' names.
pub fn merge(
    source: &Path,
    adapter: Option<&Adapter>,
    out: &Path,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Vec<String>> {
    let model = Checkpoint::open(source)?;
    let parameters = names::parameters(&model.config);
    let specs = parameters.iter().map(|(name, shape)| Spec::new(name.clone(), DType::BF16, shape.clone())).collect();
    let mut writer = FolderWriter::create(out, specs, FolderWriter::MAX_SHARD)?;
    progress.total(parameters.len() as u64, "tensors");
    for (index, (name, _)) in parameters.iter().enumerate() {
        cancel.check()?;
        let prefix = name.strip_suffix(".weight").filter(|prefix| Projection::parse(prefix).is_some());
        let trained = adapter.and_then(|adapter| adapter.tensor(&peft_key(name)));
        let values = match (prefix, trained) {
            (Some(prefix), _) => {
                let mut values = model.linear(prefix)?.dequantize();
                if let Some(adapter) = adapter {
                    add_lora(&mut values, adapter, prefix);
                }
                values
            }
            (None, Some(norm)) => norm.data.clone(),
            (None, None) => model.dense(name)?.data,
        };
        if let Some(bad) = values.par_iter().find_first(|x| !bf16::from_f32(**x).is_finite()) {
            return Err(Error::input(format!("tensor {name:?} would hold {bad}, which is no finite bf16 number"))
                .hint("the model or its adapter is broken: choose an earlier checkpoint"));
        }
        let bytes: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        writer.write(name, &bytes)?;
        progress.at(index as u64 + 1, name);
    }
    let mut files = writer.finish()?;
    let (_, json) = read_json(source)?;
    write_config(out, &plain_config(&json, "bfloat16"))?;
    files.push("config.json".to_owned());
    files.extend(copy_companions(source, out)?);
    Ok(files)
}

/// W += scale * B A, where the adapter sits on this projection. `weight` is `[outputs, inputs]`.
fn add_lora(weight: &mut [f32], adapter: &Adapter, prefix: &str) {
    let key = peft_key(prefix);
    let a = adapter.tensor(&format!("{key}.lora_A.weight"));
    let b = adapter.tensor(&format!("{key}.lora_B.weight"));
    let (Some(a), Some(b)) = (a, b) else { return };
    let (rank, inputs) = (a.shape[0], a.shape[1]);
    let scale = adapter.scale() as f32;
    weight.par_chunks_mut(inputs).zip(b.data.par_chunks(rank)).for_each(|(row, b)| {
        let mut delta = vec![0.0f32; inputs];
        for (b, a) in b.iter().zip(a.data.chunks(inputs)) {
            delta.iter_mut().zip(a).for_each(|(delta, a)| *delta += b * a);
        }
        row.iter_mut().zip(&delta).for_each(|(w, delta)| *w += scale * delta);
    });
}

/// Writes the model in `source` byte for byte into the folder `out` (which exists), with the adapter's trained block
/// norms in the place of its own, rounded to the type that they are stored in: for servers that apply plain LoRA only.
/// Gives the files' names.
pub fn with_norms(
    source: &Path,
    adapter: &Adapter,
    out: &Path,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Vec<String>> {
    let model = Checkpoint::open(source)?;
    let tensors = model.tensors();
    let views = || tensors.names().filter_map(|name| tensors.find(name));
    let specs: Vec<Spec> = views().map(|view| Spec::new(view.name, view.dtype, view.shape)).collect();
    progress.total(specs.len() as u64, "tensors");
    let mut writer = FolderWriter::create(out, specs, FolderWriter::MAX_SHARD)?;
    for (index, view) in views().enumerate() {
        cancel.check()?;
        match adapter.tensor(&peft_key(view.name)) {
            Some(norm) => writer.write(view.name, &stored_as(&view, &norm.data)?)?,
            None => writer.write(view.name, view.data)?,
        }
        progress.at(index as u64 + 1, view.name);
    }
    let mut files = writer.finish()?;
    let (_, json) = read_json(source)?;
    write_config(out, &json)?;
    files.push("config.json".to_owned());
    files.extend(copy_companions(source, out)?);
    const MODELOPT: &str = "hf_quant_config.json";
    let scheme = source.join(MODELOPT);
    if scheme.is_file() {
        let bytes = std::fs::read(&scheme).map_err(|e| Error::io("read", &scheme, e))?;
        let target = out.join(MODELOPT);
        std::fs::write(&target, bytes).map_err(|e| Error::io("write", &target, e))?;
        files.push(MODELOPT.to_owned());
    }
    Ok(files)
}

fn stored_as(view: &View<'_>, values: &[f32]) -> Result<Vec<u8>> {
    match view.dtype {
        DType::F32 => Ok(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        DType::BF16 => Ok(values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()),
        DType::F16 => {
            let bytes = values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
            match values.iter().find(|x| !half::f16::from_f32(**x).is_finite()) {
                None => Ok(bytes),
                Some(bad) => Err(Error::input(format!("{:?}: {bad} does not fit the base's f16", view.name))),
            }
        }
        other => Err(view.wrong(format!("is {}, but a float type is needed here", other.name()))),
    }
}

impl Adapter {
    /// The LoRA alone, without trained norms.
    pub fn without_norms(&self) -> Self {
        let mut plain = self.clone();
        plain.norms = false;
        plain
            .tensors
            .retain(|tensor| !Norm::BLOCK.iter().any(|n| tensor.name.ends_with(&format!(".{}.weight", n.name()))));
        plain
    }
}
