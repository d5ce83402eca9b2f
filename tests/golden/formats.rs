//! The 4-bit formats against the bytes of llm-compressor, ModelOpt and bitsandbytes. Every list of cases comes from
//! the data: keys of the files and meta.json.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use qerl::control::{Cancel, Quiet};
use qerl::model::{Adapter, Checkpoint, Layout, ModelConfig, Projection, bnb, compress};
use qerl::quant::nvfp4::Global;
use qerl::quant::{Format, Source, codes, nf4, nvfp4};
use qerl::tensors::{DType, TensorFile, Tensors, View};

/// The folder of the goldens, or `None` (said once) where there is none.
fn models() -> Option<PathBuf> {
    let named = std::env::var_os("QERL_GOLDEN_DIR").map(PathBuf::from);
    let root = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden"));
    let dir = if root.join("models").is_dir() { root.join("models") } else { root };
    if dir.join("meta.json").is_file() {
        return Some(dir);
    }
    eprintln!("skipped: no golden data at {} (set QERL_GOLDEN_DIR)", dir.display());
    None
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn names(meta: &serde_json::Value, key: &str) -> Vec<String> {
    let list: Vec<String> = serde_json::from_value(meta[key].clone()).unwrap();
    assert!(!list.is_empty(), "{key} lists no cases");
    list
}

/// `case` of every key `case.suffix`.
fn cases(file: &TensorFile, suffix: &str) -> BTreeSet<String> {
    let found: BTreeSet<String> = file.names().filter_map(|n| n.strip_suffix(suffix)).map(str::to_owned).collect();
    assert!(!found.is_empty(), "no case has {suffix}");
    found
}

fn with_source<R>(view: View<'_>, run: impl FnOnce(Source<'_>) -> R) -> R {
    match view.dtype {
        DType::F32 => run(Source::F32(&view.values::<f32>().unwrap())),
        DType::BF16 => run(Source::Bf16(&view.values::<bf16>().unwrap())),
        DType::F16 => run(Source::F16(&view.values::<f16>().unwrap())),
        other => panic!("{}: {other:?} is no source", view.name),
    }
}

fn scalar(file: &TensorFile, name: &str) -> f32 {
    file.tensor(name).unwrap().to_f32().unwrap()[0]
}

#[track_caller]
fn assert_bits(ours: &[f32], golden: &[f32], what: &str) {
    assert_eq!(ours.len(), golden.len(), "{what}");
    for (index, (a, b)) in ours.iter().zip(golden).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{what}[{index}]: {a:e} for {b:e}");
    }
}

fn sha256(values: &[f32]) -> String {
    use sha2::{Digest as _, Sha256};
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn codes_decode_and_encode_like_the_libraries() {
    let Some(dir) = models() else { return };
    let file = TensorFile::open(&dir.join("codes.safetensors")).unwrap();
    assert_bits(&codes::E2M1, &file.tensor("e2m1_decode").unwrap().to_f32().unwrap(), "e2m1");
    assert_bits(&codes::E4M3, &file.tensor("e4m3_decode").unwrap().to_f32().unwrap(), "e4m3");
    let input = file.tensor("e4m3_encode_in").unwrap().to_f32().unwrap();
    let output = file.tensor("e4m3_encode_out").unwrap();
    for (x, code) in input.iter().zip(output.data) {
        assert_eq!(codes::e4m3_encode(*x), *code, "{x:e}");
    }
}

#[test]
fn nvfp4_bytes_equal_llm_compressors() {
    let Some(dir) = models() else { return };
    let file = TensorFile::open(&dir.join("nvfp4_matrices.safetensors")).unwrap();
    let listed = names(&json(&dir.join("meta.json")), "nvfp4_cases");
    let found = cases(&file, ".input");
    for case in &listed {
        assert!(found.contains(case), "{case} is in meta.json only");
    }
    for case in &found {
        let input = file.tensor(&format!("{case}.input")).unwrap();
        let stored = scalar(&file, &format!("{case}.weight_global_scale"));
        let cols = input.shape[1];
        let (global, quantized) = with_source(input, |source| {
            // A fused case shares the scale of its joint amax; its parts are the cases with the same first word.
            let mut amax = source.amax().unwrap();
            if let Some((group, _)) = case.split_once('.') {
                for part in found.iter().filter(|c| c.split_once('.').is_some_and(|(g, _)| g == group)) {
                    let part = file.tensor(&format!("{part}.input")).unwrap();
                    amax = amax.max(with_source(part, |s| s.amax().unwrap()));
                }
            }
            let global = nvfp4::global_scale(amax, source);
            assert!(!global.widened, "{case}");
            (global.divisor, nvfp4::quantize(source, cols, global.divisor).unwrap())
        });
        assert_eq!(global.to_bits(), stored.to_bits(), "{case}: global scale {global} for {stored}");
        let scales = file.tensor(&format!("{case}.weight_scale")).unwrap();
        assert_eq!(quantized.scales, scales.data, "{case}: scales");
        assert_eq!(quantized.packed, file.tensor(&format!("{case}.weight_packed")).unwrap().data, "{case}: codes");
        let mut values = vec![0.0; input.len()];
        nvfp4::dequantize(&quantized.packed, &quantized.scales, Global::Divisor(global), &mut values);
        assert_bits(&values, &file.tensor(&format!("{case}.dequant_f32")).unwrap().to_f32().unwrap(), case);
    }
}

#[test]
fn modelopt_matrices_dequantize_exactly() {
    let Some(dir) = models() else { return };
    let file = TensorFile::open(&dir.join("modelopt_matrices.safetensors")).unwrap();
    for case in cases(&file, ".weight") {
        let packed = file.tensor(&format!("{case}.weight")).unwrap();
        let scales = file.tensor(&format!("{case}.weight_scale")).unwrap();
        let global = Global::Multiplier(scalar(&file, &format!("{case}.weight_scale_2")));
        let mut values = vec![0.0; packed.len() * 2];
        nvfp4::dequantize(packed.data, scales.data, global, &mut values);
        // ModelOpt drops the sign of a zero: compared as numbers.
        assert_eq!(values, file.tensor(&format!("{case}.dequant_f32")).unwrap().to_f32().unwrap(), "{case}");
    }
}

#[test]
fn nf4_bytes_equal_bitsandbytes() {
    let Some(dir) = models() else { return };
    let file = TensorFile::open(&dir.join("nf4_matrices.safetensors")).unwrap();
    let meta = json(&dir.join("meta.json"));
    let get = |name: String| file.tensor(&name).unwrap();
    assert_bits(&nf4::LEVELS, &get("quant_map".into()).to_f32().unwrap(), "quant_map");
    assert_bits(&*nf4::NESTED_LEVELS, &get("nested_quant_map".into()).to_f32().unwrap(), "nested_quant_map");
    for case in names(&meta, "nf4_cases") {
        let input = get(format!("{case}.input"));
        let quantized = with_source(input, nf4::quantize);
        assert_eq!(quantized.packed, get(format!("{case}.packed")).data, "{case}: codes");
        let absmax = get(format!("{case}.absmax")).to_f32().unwrap();
        assert_bits(&quantized.absmax, &absmax, &format!("{case}.absmax"));

        let mut values = vec![f32::NAN; input.len()];
        nf4::dequantize(&quantized.packed, &absmax, &mut values);
        let sums: Vec<String> = serde_json::from_value(meta["nf4_dequant_f32_sha256"][&case].clone()).unwrap();
        assert_eq!(sha256(&values), sums[0], "{case}: sha256 of the values");

        let nested = nf4::nest(&absmax);
        let offset = scalar(&file, &format!("{case}.dq.nested_offset"));
        let nested_absmax = get(format!("{case}.dq.nested_absmax")).to_f32().unwrap();
        assert_eq!(nested.offset.to_bits(), offset.to_bits(), "{case}: offset {} for {offset}", nested.offset);
        assert_bits(&nested.absmax, &nested_absmax, &format!("{case}.dq.nested_absmax"));
        assert_eq!(nested.codes, get(format!("{case}.dq.absmax_exact")).data, "{case}: nearest nested codes");

        // bitsandbytes' own codes may miss the nearest level close to zero: reading follows the file.
        let theirs = get(format!("{case}.dq.absmax")).data;
        let scales = nf4::unnest(theirs, &nf4::NESTED_LEVELS, &nested_absmax, offset);
        let golden = get(format!("{case}.dq.absmax_dequant")).to_f32().unwrap();
        assert_bits(&scales, &golden, &format!("{case}.dq.absmax_dequant"));
        nf4::dequantize(&quantized.packed, &scales, &mut values);
        assert_eq!(sha256(&values), sums[1], "{case}: sha256 of the values under double quantization");
        let ours = nf4::unnest(&nested.codes, &nf4::NESTED_LEVELS, &nested.absmax, nested.offset);
        for (a, b) in ours.iter().zip(&golden) {
            assert!((a - b).abs() <= 3e-5 * nested.absmax.iter().fold(0.0, |m: f32, x| m.max(*x)), "{case}: {a} {b}");
        }
        if let Some(golden) = file.find(&format!("{case}.dequant_f32")) {
            nf4::dequantize(&quantized.packed, &absmax, &mut values);
            assert_bits(&values, &golden.to_f32().unwrap(), &format!("{case}.dequant_f32"));
        }
    }
}

/// Reads every `tiny_*` folder whose name ends in `suffix`.
fn folders(dir: &Path, suffix: &str) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if let Some(base) = name.strip_suffix(suffix)
            && entry.path().is_dir()
        {
            found.insert(base.to_owned(), entry.path());
        }
    }
    assert!(!found.is_empty(), "no folder ends in {suffix}");
    found
}

#[test]
fn quantizing_a_tiny_model_gives_llm_compressors_file_byte_for_byte() {
    let Some(dir) = models() else { return };
    for (suffix, format) in [("_nvfp4", Format::Nvfp4), ("_mxfp4", Format::Mxfp4)] {
        for (base, golden) in folders(&dir, suffix) {
            let out = tempfile::tempdir().unwrap();
            let done = compress(&dir.join(&base), out.path(), format, true, &Quiet, &Cancel::new()).unwrap();
            assert!(done.errors.relative_frobenius > 0.05 && done.errors.relative_frobenius < 0.2, "{base}");
            let ours = std::fs::read(out.path().join("model.safetensors")).unwrap();
            let theirs = std::fs::read(golden.join("model.safetensors")).unwrap();
            if ours != theirs {
                compare_tensors(out.path(), &golden);
                panic!("{base}{suffix}: the tensors agree, the header does not");
            }
            // Both folders say the same of their format.
            assert_eq!(Checkpoint::open(out.path()).unwrap().layout(), Checkpoint::open(&golden).unwrap().layout());
        }
    }
}

fn compare_tensors(ours: &Path, theirs: &Path) {
    let (ours, theirs) = (Tensors::open(ours).unwrap(), Tensors::open(theirs).unwrap());
    assert_eq!(ours.names().collect::<Vec<_>>(), theirs.names().collect::<Vec<_>>());
    for name in theirs.names() {
        let (a, b) = (ours.tensor(name).unwrap(), theirs.tensor(name).unwrap());
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}");
        assert_eq!(a.data, b.data, "{name}");
    }
}

#[test]
fn every_layer_of_a_quantized_folder_dequantizes_exactly() {
    let Some(dir) = models() else { return };
    for (base, golden) in folders(&dir, "_nvfp4") {
        let checkpoint = Checkpoint::open(&golden).unwrap();
        let sums = json(&golden.join("dequant_f32_sha256.json"));
        let sums = sums.as_object().unwrap();
        assert_eq!(sums.len(), checkpoint.config.num_layers * 7, "{base}");
        for (name, sum) in sums {
            let weight = checkpoint.linear(name.strip_suffix(".weight").unwrap()).unwrap();
            assert_eq!(sha256(&weight.dequantize()), *sum, "{base}: {name}");
        }
    }
    // Values that the *_expected files hold: `nvfp4.dequant.NAME`, `dequant.NAME`.
    let mut compared = 0;
    for (suffix, prefix, file) in [("_nvfp4", "nvfp4.dequant.", "_expected"), ("_mxfp4", "dequant.", "_mxfp4_expected")]
    {
        for (base, golden) in folders(&dir, suffix) {
            let checkpoint = Checkpoint::open(&golden).unwrap();
            let expected = TensorFile::open(&dir.join(format!("{base}{file}.safetensors"))).unwrap();
            for view in expected.views() {
                let Some(layer) = view.name.strip_prefix(prefix).and_then(|n| n.strip_suffix(".weight")) else {
                    continue;
                };
                let ours = checkpoint.linear(layer).unwrap().dequantize();
                // As numbers: compressed-tensors drops the sign of an MXFP4 zero when it unpacks.
                assert_eq!(ours, view.to_f32().unwrap(), "{}", view.name);
                compared += 1;
            }
        }
    }
    assert!(compared > 0, "no values to compare with");
}

#[test]
fn a_modelopt_folder_opens_and_reads_its_scales_as_multipliers() {
    let Some(dir) = models() else { return };
    for (base, golden) in folders(&dir, "_modelopt") {
        let checkpoint = Checkpoint::open(&golden).unwrap();
        assert_eq!(checkpoint.layout(), Layout::ModelOpt);
        let source = Checkpoint::open(&dir.join(&base)).unwrap();
        for layer in 0..checkpoint.config.num_layers {
            for projection in Projection::ALL {
                let prefix = projection.prefix(layer);
                let (read, clean) = (checkpoint.linear(&prefix).unwrap(), source.linear(&prefix).unwrap());
                assert!(relative(&read.dequantize(), &clean.dequantize()) < 0.13, "{base}: {prefix}");
            }
        }
    }
}

#[test]
fn bitsandbytes_serialised_layer_is_written_the_same() {
    let Some(dir) = models() else { return };
    let file = TensorFile::open(&dir.join("nf4_bnb_state_dict.safetensors")).unwrap();
    let meta = json(&dir.join("meta.json"));
    let text = meta["nf4_state_dict_json"].as_str().unwrap();
    let state: serde_json::Value = serde_json::from_str(text).unwrap();
    let shape: [usize; 2] = serde_json::from_value(state["shape"].clone()).unwrap();
    // The same matrix as the case with this shape and these codes.
    let matrices = TensorFile::open(&dir.join("nf4_matrices.safetensors")).unwrap();
    let codes = file.tensor("lin.weight").unwrap().data;
    let case = names(&meta, "nf4_cases");
    let case = case.iter().find(|c| matrices.tensor(&format!("{c}.packed")).unwrap().data == codes).unwrap();
    let input = matrices.tensor(&format!("{case}.input")).unwrap();
    let packed = with_source(input, nf4::quantize);
    let nested = nf4::nest(&packed.absmax);
    let written = bnb::state_json(shape, input.dtype, nested.offset);
    assert_eq!(std::str::from_utf8(&written).unwrap(), text);
    let specs = bnb::specs("lin", shape, written.len());
    assert_eq!(specs.len(), file.names().count());
    for (spec, bytes) in specs.iter().zip(bnb::bytes(packed.packed, &nested, written)) {
        let golden = file.tensor(&spec.name).unwrap();
        assert_eq!((golden.dtype, golden.shape), (spec.dtype, spec.shape.as_slice()), "{}", spec.name);
        assert_eq!(golden.data, bytes, "{}", spec.name);
    }
}

#[test]
fn an_nf4_folder_reads_back_as_what_was_written() {
    let Some(dir) = models() else { return };
    for (base, _) in folders(&dir, "_nvfp4") {
        let out = tempfile::tempdir().unwrap();
        let source = dir.join(&base);
        let done = compress(&source, out.path(), Format::Nf4, true, &Quiet, &Cancel::new()).unwrap();
        let (read, clean) = (Checkpoint::open(out.path()).unwrap(), Checkpoint::open(&source).unwrap());
        assert_eq!(read.layout(), Layout::Nf4);
        for layer in &done.errors.layers {
            let (q, w) = (read.linear(&layer.layer).unwrap(), clean.linear(&layer.layer).unwrap());
            let error = relative(&q.dequantize(), &w.dequantize());
            assert!((error - layer.relative_frobenius).abs() < 1e-9, "{}: {error}", layer.layer);
        }
    }
}

#[test]
fn a_peft_adapter_reads_and_writes_back_the_same_tensors() {
    let Some(dir) = models() else { return };
    for (base, folder) in folders(&dir, "_lora") {
        let config = ModelConfig::read(&dir.join(&base)).unwrap();
        let adapter = Adapter::read(&folder, &config).unwrap();
        let settings = json(&folder.join("adapter_config.json"));
        assert_eq!(adapter.rank as u64, settings["r"].as_u64().unwrap());
        assert_eq!(adapter.scale(), settings["lora_alpha"].as_f64().unwrap() / adapter.rank as f64);
        let out = tempfile::tempdir().unwrap();
        adapter.write(out.path()).unwrap();
        let name = "adapter_model.safetensors";
        assert_eq!(std::fs::read(out.path().join(name)).unwrap(), std::fs::read(folder.join(name)).unwrap(), "{base}");
        assert_eq!(Adapter::read(out.path(), &config).unwrap().tensors, adapter.tensors);
    }
}

/// |a - b| / |b|.
fn relative(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (error / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}
