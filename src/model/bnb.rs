//! bitsandbytes' serialised NF4: `P.weight` beside `.absmax`, `.quant_map`, `.nested_*` and a JSON of the rest.

use std::borrow::Cow;

use serde::Deserialize;

use super::checkpoint::unusable;
use super::weight::Values;
use crate::quant::nf4;
use crate::tensors::{DType, Spec, Tensors};
use crate::{Error, Result};

/// The tensor that holds the JSON.
const STATE: &str = "quant_state.bitsandbytes__nf4";

/// What the JSON says.
#[derive(Debug, Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    #[serde(default)]
    nested_blocksize: Option<usize>,
    #[serde(default)]
    nested_offset: Option<f64>,
}

/// Reads `prefix.weight` and its companions; `shape` is what the architecture asks for.
pub fn read<'a>(tensors: &'a Tensors, prefix: &str, shape: [usize; 2]) -> Result<Values<'a>> {
    let part = |suffix: &str| {
        tensors.find(&format!("{prefix}.weight.{suffix}")).ok_or_else(|| {
            Error::missing(format!("it has no weight.{suffix}"))
                .hint("the checkpoint is incomplete, or was not saved by bitsandbytes 0.41 or newer")
        })
    };
    let state = part(STATE)?;
    let bytes = state.values::<u8>()?;
    let state: State =
        serde_json::from_slice(&bytes).map_err(|e| state.wrong("is not bitsandbytes' JSON").caused_by(e))?;
    if state.quant_type != "nf4" || state.blocksize != nf4::BLOCK {
        let (kind, size) = (state.quant_type, state.blocksize);
        return Err(Error::input(format!("{kind} in blocks of {size} is not supported"))
            .hint("supported is nf4 in blocks of 64"));
    }
    if state.shape != shape {
        return Err(Error::input(format!("it has shape {:?}, but config.json asks for {shape:?}", state.shape)));
    }
    let count = shape[0] * shape[1];
    let blocks = count.div_ceil(nf4::BLOCK);
    let codes = tensors.tensor(&format!("{prefix}.weight"))?.values::<u8>()?;
    let map = part("quant_map")?.shaped(&[16])?.values::<f32>()?;
    if map.iter().zip(&nf4::LEVELS).any(|(a, b)| a.is_nan() || (a - b).abs() > 1e-6) {
        return Err(Error::input("its quant_map holds other levels than nf4's"));
    }
    let absmax = part("absmax")?.shaped(&[blocks])?;
    let absmax: Cow<'a, [f32]> = if absmax.dtype == DType::U8 {
        let nested = part("nested_absmax")?.shaped(&[blocks.div_ceil(nf4::NESTED_BLOCK)])?.values::<f32>()?;
        let levels = part("nested_quant_map")?.shaped(&[256])?.values::<f32>()?;
        let mut map = [0.0; 256];
        map.copy_from_slice(&levels);
        let offset = state.nested_offset.ok_or_else(|| Error::input("its quant_state has no nested_offset"))?;
        if state.nested_blocksize != Some(nf4::NESTED_BLOCK) {
            return Err(Error::input(format!("nested blocks of {:?} are not supported", state.nested_blocksize))
                .hint("supported are nested blocks of 256"));
        }
        Cow::Owned(nf4::unnest(&absmax.values::<u8>()?, &map, &nested, offset as f32))
    } else {
        absmax.values::<f32>()?
    };
    if let Some((index, bad)) = absmax.iter().enumerate().find(|(_, x)| !x.is_finite()) {
        return Err(unusable(format!("the scale of its block {index} is {bad}")));
    }
    // 0x77 is a pair of zeros: anything else under scales of zero was lost on the way.
    if absmax.iter().all(|x| *x == 0.0) && codes.iter().any(|pair| *pair != 0x77) {
        return Err(unusable("all of its scales are zero".to_owned()));
    }
    Ok(Values::Nf4 { codes, absmax })
}

/// The JSON of a layer as Python's json.dumps writes it.
pub fn state_json(shape: [usize; 2], dtype: DType, offset: f32) -> Vec<u8> {
    let dtype = match dtype {
        DType::F16 => "float16",
        DType::F32 => "float32",
        _ => "bfloat16",
    };
    let (block, nested_block, [rows, cols]) = (nf4::BLOCK, nf4::NESTED_BLOCK, shape);
    let offset = python_float(f64::from(offset));
    format!(
        "{{\"quant_type\": \"nf4\", \"blocksize\": {block}, \"dtype\": \"{dtype}\", \"shape\": [{rows}, {cols}], \
         \"nested_blocksize\": {nested_block}, \"nested_dtype\": \"float32\", \"nested_offset\": {offset}}}"
    )
    .into_bytes()
}

/// Names, types and shapes of a layer's tensors under double quantization; `json` is the length of its JSON.
pub fn specs(prefix: &str, shape: [usize; 2], json: usize) -> Vec<Spec> {
    let blocks = (shape[0] * shape[1]).div_ceil(nf4::BLOCK);
    let name = |suffix: &str| format!("{prefix}.weight{suffix}");
    vec![
        Spec::new(name(""), DType::U8, [(shape[0] * shape[1]).div_ceil(2), 1]),
        Spec::new(name(".absmax"), DType::U8, [blocks]),
        Spec::new(name(".nested_absmax"), DType::F32, [blocks.div_ceil(nf4::NESTED_BLOCK)]),
        Spec::new(name(".nested_quant_map"), DType::F32, [256]),
        Spec::new(name(".quant_map"), DType::F32, [16]),
        Spec::new(name(&format!(".{STATE}")), DType::U8, [json]),
    ]
}

/// The bytes of [`specs`], in its order.
pub fn bytes(packed: Vec<u8>, nested: &nf4::Nested, json: Vec<u8>) -> [Vec<u8>; 6] {
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let codes = nested.codes.clone();
    [packed, codes, floats(&nested.absmax), floats(&*nf4::NESTED_LEVELS), floats(&nf4::LEVELS), json]
}

/// The shortest digits that read back as `x`, laid out as Python's repr does: an exponent of at least two digits
/// below 1e-4 and from 1e16 on.
fn python_float(x: f64) -> String {
    let text = format!("{x:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.parse::<i32>() {
        Ok(-4..16) => format!("{x:?}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        // From Python 3: [repr(x) for x in ...].
        let cases = [
            (0.05106353759765625, "0.05106353759765625"),
            (1.0, "1.0"),
            (0.0, "0.0"),
            (0.0001, "0.0001"),
            (1.25e-5, "1.25e-05"),
            (1e16, "1e+16"),
            (123456789.5, "123456789.5"),
        ];
        for (x, text) in cases {
            assert_eq!(python_float(x), text);
        }
    }
}
