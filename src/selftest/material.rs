//! The model folders that golden values belong to: given ones, or made from them by quantizing.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::control::{Cancel, Quiet};
use crate::model::{Checkpoint, compress, names, read_json, write_dense};
use crate::quant::{Format, nf4};
use crate::tensors::DType;
use crate::{Error, Result};

/// A folder, kept as long as it is needed where it was made here.
pub(super) struct Model {
    pub dir: PathBuf,
    _made: Option<TempDir>,
}

/// The model that keys with `prefix` speak of (`nvfp4`, `nf4`, `nf4_dq`, or nothing: the source itself).
pub(super) fn model(source: &Path, prefix: &str) -> Result<Model> {
    let format = match prefix {
        "" => return Ok(Model { dir: source.to_owned(), _made: None }),
        "nvfp4" => Format::Nvfp4,
        "mxfp4" => Format::Mxfp4,
        "nf4" | "nf4_dq" => Format::Nf4,
        other => return Err(Error::input(format!("the golden file speaks of an unknown format {other:?}"))),
    };
    let made = TempDir::new().map_err(|e| Error::io("create", std::env::temp_dir(), e))?;
    if prefix == "nf4" {
        single(source, made.path())?;
    } else {
        compress(source, made.path(), format, true, &Quiet, &Cancel::default())?;
    }
    Ok(Model { dir: made.path().to_owned(), _made: Some(made) })
}

/// NF4 with plain f32 scales has no folder format of its own here: its exact values are written as f32.
fn single(source: &Path, out: &Path) -> Result<()> {
    let base = Checkpoint::open(source)?;
    let mut tensors = Vec::new();
    for (name, _) in names::parameters(&base.config) {
        let mut tensor = base.dense(&name)?;
        if name.ends_with("_proj.weight") {
            let stored = base.linear(name.trim_end_matches(".weight"))?;
            let values = stored.source().ok_or_else(|| Error::input(format!("{name} is quantized already")))?;
            let packed = nf4::quantize(values);
            nf4::dequantize(&packed.packed, &packed.absmax, &mut tensor.data);
        }
        tensors.push(tensor);
    }
    write_dense(out, &read_json(source)?.1, &tensors, DType::F32)?;
    Ok(())
}
