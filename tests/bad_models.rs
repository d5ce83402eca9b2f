//! Broken and foreign model folders: each gets an error that names the file and the tensor or layer, and never a
//! panic, a huge allocation or numbers that look right.

use std::path::{Path, PathBuf};

use half::bf16;
use qerl::control::{Cancel, Quiet};
use qerl::model::{Adapter, Checkpoint, ModelConfig, Projection, Values, compress, names, write_dense};
use qerl::quant::{Format, nvfp4};
use qerl::tensors::{DType, FolderWriter, Spec, TensorFile, Tensors, View, Writer, write_file};
use qerl::{engine::NamedTensor, error::Kind};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A Qwen3 config whose attention is wider than its hidden size; everything divides by 32.
fn config() -> Value {
    json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 20,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "tie_word_embeddings": true, "eos_token_id": 2, "dtype": "bfloat16"})
}

fn tensors(config: &ModelConfig) -> Vec<NamedTensor> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let all = names::parameters(config).into_iter();
    all.map(|(name, shape)| {
        let data = (0..shape.iter().product()).map(|_| next()).collect();
        NamedTensor { name, shape, data }
    })
    .collect()
}

fn dense_model(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let parsed = ModelConfig::parse(config.as_object().unwrap()).unwrap();
    write_dense(dir.path(), config.as_object().unwrap(), &tensors(&parsed), DType::BF16).unwrap();
    dir
}

fn quantized(format: Format) -> TempDir {
    let (source, out) = (dense_model(&config()), tempfile::tempdir().unwrap());
    compress(source.path(), out.path(), format, true, &Quiet, &Cancel::new()).unwrap();
    out
}

/// Rewrites the folder's weights; `None` drops a tensor.
fn edit(dir: &Path, change: impl Fn(View<'_>) -> Option<(Spec, Vec<u8>)>) {
    let path = dir.join("model.safetensors");
    let file = TensorFile::open(&path).unwrap();
    let kept: Vec<_> = file.views().filter_map(change).collect();
    drop(file);
    write_file(&path, &kept).unwrap();
}

fn same(view: View<'_>) -> (Spec, Vec<u8>) {
    (Spec::new(view.name, view.dtype, view.shape), view.data.to_vec())
}

/// `name` gets other bytes (or type, or shape); everything else stays.
fn replace(dir: &Path, name: &str, change: impl Fn(View<'_>) -> Option<(Spec, Vec<u8>)>) {
    let mut found = false;
    let path = dir.join("model.safetensors");
    found |= TensorFile::open(&path).unwrap().entry(name).is_some();
    assert!(found, "no tensor {name} to change");
    edit(dir, |view| if view.name == name { change(view) } else { Some(same(view)) });
}

#[track_caller]
fn refused<T>(result: qerl::Result<T>, wanted: &[&str]) {
    let Err(error) = result else { panic!("accepted, but {wanted:?} was expected") };
    let text = format!("{error} | {}", error.hint_text().unwrap_or(""));
    for want in wanted {
        assert!(text.contains(want), "{text:?} does not name {want:?}");
    }
}

fn open_all(dir: &Path) -> qerl::Result<()> {
    let checkpoint = Checkpoint::open(dir)?;
    for layer in 0..checkpoint.config.num_layers {
        for projection in Projection::ALL {
            checkpoint.linear(&projection.prefix(layer))?;
        }
    }
    Ok(())
}

const LAYER: &str = "model.layers.1.self_attn.q_proj";

// ---------------------------------------------------------------------------------- headers

fn raw_file(header: &str, data: usize) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

#[test]
fn lying_headers_are_refused_with_the_tensor_named() {
    let cases: [(&str, usize, &str); 14] = [
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}}"#, 8, "outside"),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8, "backwards"),
        (r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8, "needs 12 bytes"),
        (r#"{"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}}"#, 8, "\"Q4\""),
        (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#, 8, "larger than memory"),
        (r#"{"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}}"#, 8, "larger than memory"),
        (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#, 8, "a"),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}}"#, 8, "more"),
        (r#"{"a":{"dtype":"F32","shape":[2]}}"#, 8, "data_offsets"),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
            "stands twice",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
            12,
            "overlaps",
        ),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8, "unused bytes"),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 8, "follow the last tensor"),
        (r#"{"a":"#, 8, "header"),
    ];
    for (header, data, want) in cases {
        let (_dir, path) = raw_file(header, data);
        refused(
            TensorFile::open(&path),
            &["model.safetensors", want, "\"a\""].map(|w| if header.ends_with(':') && w == "\"a\"" { "" } else { w }),
        );
    }
}

#[test]
fn a_header_longer_than_the_file_or_than_any_real_one_is_not_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    for (length, want) in [(u64::MAX, "claims a header"), (99_000_000, "only 8 follow"), (9, "only 8 follow")] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([b' '; 8]);
        std::fs::write(&path, bytes).unwrap();
        refused(TensorFile::open(&path), &["model.safetensors", want]);
    }
    std::fs::write(&path, [1, 2, 3]).unwrap();
    refused(TensorFile::open(&path), &["too few"]);
    std::fs::write(&path, []).unwrap();
    refused(TensorFile::open(&path), &["is empty"]);
}

#[test]
fn deeply_nested_json_is_refused_quickly() {
    let (_dir, path) = raw_file(&"[".repeat(100_000), 0);
    refused(TensorFile::open(&path), &["model.safetensors"]);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let dir = dense_model(&config());
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for keep in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        refused(Checkpoint::open(dir.path()), &["model.safetensors"]);
    }
}

#[test]
fn tensors_that_are_not_aligned_read_the_right_values() {
    // A header of odd length puts every tensor on an odd address.
    let (_dir, path) = {
        let header = r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"BF16","shape":[2],"data_offsets":[1,5]}}"#;
        let (dir, path) = raw_file(header, 1);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(bf16::from_f32(1.5).to_le_bytes());
        bytes.extend(bf16::from_f32(-2.0).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    };
    assert_eq!(TensorFile::open(&path).unwrap().tensor("a").unwrap().to_f32().unwrap(), [1.5, -2.0]);
}

// ---------------------------------------------------------------------------------- shards

fn sharded() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let specs: Vec<Spec> = (0..4).map(|i| Spec::new(format!("t{i}"), DType::F32, [4])).collect();
    let mut writer = FolderWriter::create(dir.path(), specs, 32).unwrap();
    for i in 0..4 {
        writer.write(&format!("t{i}"), &[i; 16]).unwrap();
    }
    let files = writer.finish().unwrap();
    assert_eq!(
        files,
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    );
    dir
}

#[test]
fn shards_read_back_and_a_missing_one_is_named() {
    let dir = sharded();
    let tensors = Tensors::open(dir.path()).unwrap();
    assert_eq!(tensors.names().count(), 4);
    assert_eq!(tensors.tensor("t3").unwrap().data, [3; 16]);
    std::fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    refused(Tensors::open(dir.path()), &["lacks shards", "model-00002-of-00002.safetensors"]);
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    let dir = sharded();
    let outside = sharded();
    let stray = outside.path().join("model-00001-of-00002.safetensors");
    let index = |shard: &str| {
        let map = json!({"weight_map": {"t0": shard, "t1": shard}});
        std::fs::write(dir.path().join("model.safetensors.index.json"), map.to_string()).unwrap();
    };
    for shard in ["../x.safetensors", "a/../../x", stray.to_str().unwrap(), "", ".", "..\\x"] {
        index(shard);
        refused(Tensors::open(dir.path()), &["index.json", "shard name"]);
    }
    std::os::unix::fs::symlink(&stray, dir.path().join("link.safetensors")).unwrap();
    index("link.safetensors");
    refused(Tensors::open(dir.path()), &["link that leads out"]);
}

#[test]
fn links_of_the_hugging_face_cache_are_followed() {
    let cache = tempfile::tempdir().unwrap();
    let (snapshot, blobs) = (cache.path().join("snapshots/abc"), cache.path().join("blobs"));
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    for entry in std::fs::read_dir(sharded().path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), blobs.join(entry.file_name())).unwrap();
        std::os::unix::fs::symlink(Path::new("../../blobs").join(entry.file_name()), snapshot.join(entry.file_name()))
            .unwrap();
    }
    assert_eq!(Tensors::open(&snapshot).unwrap().names().count(), 4);
}

#[test]
fn an_index_that_names_a_tensor_its_shard_lacks_is_refused() {
    let dir = sharded();
    let map = json!({"weight_map": {"t9": "model-00001-of-00002.safetensors"}});
    std::fs::write(dir.path().join("model.safetensors.index.json"), map.to_string()).unwrap();
    refused(Tensors::open(dir.path()), &["model-00001-of-00002.safetensors", "t9"]);
}

// ---------------------------------------------------------------------------------- writing

#[test]
fn a_disk_that_is_too_small_gives_a_clear_error_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let error = Writer::create(&path, vec![Spec::new("huge", DType::U8, [1usize << 60])]).unwrap_err();
    assert_eq!(error.kind(), Kind::Storage);
    assert!(error.hint_text().unwrap().contains("disk is full"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing may be left behind");
}

#[test]
fn an_unfinished_file_never_appears() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let specs = vec![Spec::new("a", DType::U8, [4]), Spec::new("b", DType::U8, [4])];
    let mut writer = Writer::create(&path, specs).unwrap();
    writer.write("a", &[1; 4]).unwrap();
    refused(writer.write("b", &[1; 3]), &["\"b\"", "3 bytes"]);
    refused(writer.write("c", &[1; 3]), &["\"c\""]);
    refused(writer.finish(), &["\"b\"", "never written"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_cancelled_quantization_leaves_no_weights() {
    let (source, out) = (dense_model(&config()), tempfile::tempdir().unwrap());
    let cancel = Cancel::new();
    cancel.cancel();
    let error = compress(source.path(), out.path(), Format::Nvfp4, true, &Quiet, &cancel).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}

// ---------------------------------------------------------------------------------- configs

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let cases = [
        ("architectures", json!(["MixtralForCausalLM"]), "MixtralForCausalLM"),
        ("hidden_act", json!("gelu"), "gelu"),
        ("num_experts", json!(8), "mixture of experts"),
        ("layer_types", json!(["full_attention", "sliding_attention"]), "sliding-window"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "yarn"),
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}), "low_freq_factor is missing"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("num_key_value_heads", json!(3), "cannot share"),
        ("hidden_size", json!(1u64 << 40), "hidden_size"),
        ("vocab_size", json!("20"), "vocab_size"),
        ("head_dim", json!(15), "odd"),
        ("quantization_config", json!({"quant_method": "awq"}), "awq"),
    ];
    let dir = dense_model(&config());
    for (key, value, want) in cases {
        let mut json = config();
        json[key] = value;
        std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
        refused(
            Checkpoint::open(dir.path()),
            &["config.json", want, "support"].map(|w| match w {
                "support" if !["MixtralForCausalLM", "gelu", "mixture of experts", "yarn", "awq"].contains(&want) => "",
                w => w,
            }),
        );
    }
    for text in ["", "[]", "{", "null"] {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        refused(Checkpoint::open(dir.path()), &["config.json"]);
    }
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    refused(Checkpoint::open(dir.path()), &["config.json", "Hugging Face"]);
}

#[test]
fn a_sliding_window_that_no_layer_uses_is_accepted() {
    let mut json = config();
    json["sliding_window"] = json!(4096);
    json["use_sliding_window"] = json!(true);
    json["max_window_layers"] = json!(2);
    ModelConfig::parse(json.as_object().unwrap()).unwrap();
    json["max_window_layers"] = json!(1);
    refused(ModelConfig::parse(json.as_object().unwrap()), &["sliding-window"]);
}

#[test]
fn llama_3_scaling_reads_the_same_in_both_spellings() {
    let inner = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500000.0});
    let mut four = config();
    four["rope_theta"] = json!(500000.0);
    four["rope_scaling"] = inner.clone();
    let mut five = config();
    five.as_object_mut().unwrap().remove("rope_theta");
    five["rope_parameters"] = inner;
    let read = |json: &Value| ModelConfig::parse(json.as_object().unwrap()).unwrap();
    assert_eq!(read(&four), read(&five));
    assert!(read(&five).rope_scaling.is_some());
    assert_eq!(read(&five).rope_theta, 500000.0);
}

// ---------------------------------------------------------------------------------- faults seen in the field

#[test]
fn qwen3_q_proj_is_not_square() {
    let dir = dense_model(&config());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.linear(LAYER).unwrap().shape, [64, 32]);
    assert_eq!(checkpoint.linear("model.layers.0.self_attn.o_proj").unwrap().shape, [32, 64]);
    replace(dir.path(), &format!("{LAYER}.weight"), |view| {
        Some((Spec::new(view.name, view.dtype, [32, 32]), view.data[..2048].to_vec()))
    });
    refused(Checkpoint::open(dir.path()), &[LAYER, "[32, 32]", "[64, 32]"]);
}

#[test]
fn a_tied_model_with_a_head_in_its_file_uses_the_embedding() {
    let dir = dense_model(&config());
    edit(dir.path(), |view| Some(same(view)));
    let path = dir.path().join("model.safetensors");
    let file = TensorFile::open(&path).unwrap();
    let mut all: Vec<_> = file.views().map(same).collect();
    all.push((Spec::new("lm_head.weight", DType::BF16, [20, 32]), vec![0; 1280]));
    drop(file);
    write_file(&path, &all).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap().head().unwrap().is_none());
    let out = tempfile::tempdir().unwrap();
    compress(dir.path(), out.path(), Format::Nvfp4, true, &Quiet, &Cancel::new()).unwrap();
    assert!(!Tensors::open(out.path()).unwrap().contains("lm_head.weight"));
}

#[test]
fn an_untied_model_without_a_head_is_refused() {
    let mut json = config();
    json["tie_word_embeddings"] = json!(false);
    let dir = dense_model(&json);
    assert!(Checkpoint::open(dir.path()).unwrap().head().unwrap().is_some());
    replace(dir.path(), "lm_head.weight", |_| None);
    refused(Checkpoint::open(dir.path()), &["lm_head.weight"]);
}

#[test]
fn missing_parts_of_a_quantized_layer_are_named_when_the_model_opens() {
    for (format, suffixes) in [
        (Format::Nvfp4, &["weight_packed", "weight_scale", "weight_global_scale"][..]),
        (Format::Mxfp4, &["weight_packed", "weight_scale"]),
        (Format::Nf4, &["weight", "weight.absmax", "weight.nested_absmax", "weight.quant_state.bitsandbytes__nf4"]),
    ] {
        for suffix in suffixes {
            let dir = quantized(format);
            open_all(dir.path()).unwrap();
            replace(dir.path(), &format!("{LAYER}.{suffix}"), |_| None);
            refused(open_all(dir.path()), &[LAYER, suffix]);
        }
    }
}

#[test]
fn a_zero_or_infinite_global_scale_is_refused_and_the_layer_named() {
    for bad in [0.0f32, f32::INFINITY, f32::NAN, -1.0] {
        let dir = quantized(Format::Nvfp4);
        replace(dir.path(), &format!("{LAYER}.weight_global_scale"), |view| {
            Some((same(view).0, bad.to_le_bytes().to_vec()))
        });
        refused(open_all(dir.path()), &[LAYER, "global scale"]);
    }
}

#[test]
fn a_zero_or_nan_block_scale_is_refused_and_the_layer_named() {
    for (format, bad) in [(Format::Nvfp4, 0x00), (Format::Nvfp4, 0x7f), (Format::Nvfp4, 0xff), (Format::Mxfp4, 0xff)] {
        let dir = quantized(format);
        replace(dir.path(), &format!("{LAYER}.weight_scale"), |view| {
            let (spec, mut bytes) = same(view);
            bytes[3] = bad;
            Some((spec, bytes))
        });
        refused(open_all(dir.path()), &[LAYER, "block scales"]);
    }
}

#[test]
fn a_layer_of_zeros_has_scale_one_and_stays_zero() {
    let source = dense_model(&config());
    replace(source.path(), &format!("{LAYER}.weight"), |view| Some((same(view).0, vec![0; view.data.len()])));
    for format in [Format::Nvfp4, Format::Mxfp4, Format::Nf4] {
        let out = tempfile::tempdir().unwrap();
        let done = compress(source.path(), out.path(), format, false, &Quiet, &Cancel::new()).unwrap();
        assert!(done.errors.layers.iter().all(|layer| layer.relative_frobenius.is_finite()));
        let checkpoint = Checkpoint::open(out.path()).unwrap();
        let weight = checkpoint.linear(LAYER).unwrap();
        if let Values::Nvfp4 { global, .. } = &weight.values {
            assert_eq!(*global, nvfp4::Global::Divisor(1.0), "amax 0 must not give an infinite scale");
        }
        assert!(weight.dequantize().iter().all(|x| *x == 0.0), "{format:?}");
    }
}

#[test]
fn the_global_scale_divides() {
    let source = dense_model(&config());
    let dir = quantized(Format::Nvfp4);
    let (read, clean) = (Checkpoint::open(dir.path()).unwrap(), Checkpoint::open(source.path()).unwrap());
    let (read, clean) = (read.linear(LAYER).unwrap(), clean.linear(LAYER).unwrap());
    let Values::Nvfp4 { packed, scales, global } = &read.values else { panic!("not nvfp4") };
    let nvfp4::Global::Divisor(divisor) = *global else { panic!("compressed-tensors stores a divisor") };
    assert!(divisor > 1.0, "448 * 6 / amax of weights below one");
    let clean = clean.dequantize();
    let far = |other: &[f32]| clean.iter().zip(other).filter(|(a, b)| (*a - *b).abs() > 0.1).count();
    assert_eq!(far(&read.dequantize()), 0);
    // The two classic mistakes give values that are far off, so the check above can fail.
    let mut wrong = vec![0.0; clean.len()];
    nvfp4::dequantize(packed, scales, nvfp4::Global::Multiplier(divisor), &mut wrong);
    assert!(far(&wrong) > clean.len() / 2, "a scale taken as a multiplier");
    let swapped: Vec<u8> = packed.iter().map(|byte| byte.rotate_left(4)).collect();
    nvfp4::dequantize(&swapped, scales, *global, &mut wrong);
    assert!(far(&wrong) > clean.len() / 2, "nibbles swapped");
}

#[test]
fn fused_projections_share_a_global_scale_and_unequal_ones_are_honoured() {
    let source = dense_model(&config());
    // One large weight in k_proj must widen the shared scale of q and v.
    replace(source.path(), "model.layers.0.self_attn.k_proj.weight", |view| {
        let (spec, mut bytes) = same(view);
        bytes[..2].copy_from_slice(&bf16::from_f32(4.0).to_le_bytes());
        Some((spec, bytes))
    });
    let scale = |dir: &Path, name: &str| match Checkpoint::open(dir).unwrap().linear(name).unwrap().values {
        Values::Nvfp4 { global: nvfp4::Global::Divisor(divisor), .. } => divisor,
        other => panic!("{other:?}"),
    };
    let attention = ["q_proj", "k_proj", "v_proj"].map(|p| format!("model.layers.0.self_attn.{p}"));
    for (fuse, equal) in [(true, true), (false, false)] {
        let out = tempfile::tempdir().unwrap();
        compress(source.path(), out.path(), Format::Nvfp4, fuse, &Quiet, &Cancel::new()).unwrap();
        let scales = attention.each_ref().map(|name| scale(out.path(), name));
        assert_eq!(scales[0] == scales[1] && scales[1] == scales[2], equal, "fuse {fuse}: {scales:?}");
        assert_eq!(scales[1], 672.0, "2688 / 4");
        let (read, clean) = (Checkpoint::open(out.path()).unwrap(), Checkpoint::open(source.path()).unwrap());
        for name in &attention {
            let (q, w) = (read.linear(name).unwrap().dequantize(), clean.linear(name).unwrap().dequantize());
            assert!(q.iter().zip(&w).all(|(q, w)| (q - w).abs() < 0.11 * 4.0f32.min(1.0 + w.abs())), "{name}");
        }
    }
}

#[test]
fn a_weight_that_is_no_number_is_refused_with_tensor_and_index() {
    let source = dense_model(&config());
    replace(source.path(), &format!("{LAYER}.weight"), |view| {
        let (spec, mut bytes) = same(view);
        bytes[34..36].copy_from_slice(&bf16::NAN.to_le_bytes());
        Some((spec, bytes))
    });
    for format in [Format::Nvfp4, Format::Mxfp4, Format::Nf4] {
        let out = tempfile::tempdir().unwrap();
        let result = compress(source.path(), out.path(), format, true, &Quiet, &Cancel::new());
        refused(result, &[LAYER, "weight 17 is NaN"]);
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "no half model");
    }
}

#[test]
fn rows_that_do_not_divide_are_refused_and_the_layer_named() {
    let mut json = config();
    json["intermediate_size"] = json!(40);
    let source = dense_model(&json);
    for (format, group) in [(Format::Nvfp4, "16"), (Format::Mxfp4, "32")] {
        let out = tempfile::tempdir().unwrap();
        let result = compress(source.path(), out.path(), format, true, &Quiet, &Cancel::new());
        refused(result, &["mlp.down_proj", "40", group, "nf4"]);
    }
    let out = tempfile::tempdir().unwrap();
    compress(source.path(), out.path(), Format::Nf4, true, &Quiet, &Cancel::new()).unwrap();
    open_all(out.path()).unwrap();
}

#[test]
fn the_nested_scales_of_nf4_are_applied() {
    let dir = quantized(Format::Nf4);
    let before = Checkpoint::open(dir.path()).unwrap().linear(LAYER).unwrap().dequantize();
    replace(dir.path(), &format!("{LAYER}.weight.nested_absmax"), |view| {
        let bytes = view.to_f32().unwrap().iter().flat_map(|x| (x * 8.0).to_le_bytes()).collect();
        Some((same(view).0, bytes))
    });
    let after = Checkpoint::open(dir.path()).unwrap().linear(LAYER).unwrap().dequantize();
    assert_ne!(before, after);
}

#[test]
fn an_nf4_layer_whose_scales_are_all_zero_is_refused() {
    let dir = quantized(Format::Nf4);
    let name = format!("{LAYER}.weight.absmax");
    replace(dir.path(), &name, |view| Some((Spec::new(view.name, DType::F32, view.shape), vec![0; view.len() * 4])));
    refused(open_all(dir.path()), &[LAYER, "zero"]);
}

#[test]
fn a_quantized_model_is_not_quantized_again() {
    let dir = quantized(Format::Nf4);
    let out = tempfile::tempdir().unwrap();
    let result = compress(dir.path(), out.path(), Format::Nvfp4, true, &Quiet, &Cancel::new());
    refused(result, &["quantized already (nf4)"]);
}

#[test]
fn packed_weights_without_a_quantization_config_are_refused() {
    let dir = quantized(Format::Nvfp4);
    std::fs::write(dir.path().join("config.json"), config().to_string()).unwrap();
    refused(Checkpoint::open(dir.path()), &["model.layers.0"]);
}

// ---------------------------------------------------------------------------------- adapters

#[test]
fn an_adapter_survives_writing_and_refuses_another_base() {
    let base = dense_model(&config());
    let base = Checkpoint::open(base.path()).unwrap();
    let make = |seed| Adapter::init(&base, 4, 8.0, &[Projection::Q, Projection::Down], true, seed).unwrap();
    let adapter = make(7);
    assert_eq!(adapter, make(7));
    assert_ne!(adapter.tensors, make(8).tensors);
    for tensor in &adapter.tensors {
        let bound = 1.0 / (tensor.shape[tensor.shape.len() - 1] as f32).sqrt();
        if tensor.name.ends_with("lora_B.weight") {
            assert!(tensor.data.iter().all(|x| *x == 0.0), "B starts at zero");
        } else if tensor.name.ends_with("lora_A.weight") {
            assert!(tensor.data.iter().all(|x| x.abs() <= bound), "A is Kaiming-uniform");
            assert!(tensor.data.iter().any(|x| x.abs() > bound / 2.0));
        } else {
            let name = tensor.name.strip_prefix("base_model.model.").unwrap();
            assert_eq!(tensor.data, base.dense(name).unwrap().data, "norms start as the base's");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    adapter.write(dir.path()).unwrap();
    assert_eq!(Adapter::read(dir.path(), &base.config).unwrap(), adapter);
    let mut other = config();
    other["intermediate_size"] = json!(96);
    let other = ModelConfig::parse(other.as_object().unwrap()).unwrap();
    refused(Adapter::read(dir.path(), &other), &["down_proj", "another base model"]);

    let path = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, want) in [
        ("\"use_dora\": false", "\"use_dora\": true", "use_dora"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"", "IA3"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "bias"),
        ("\"r\": 4", "\"r\": 0", "no number"),
        ("\"q_proj\"", "\"embed_tokens\"", "embed_tokens"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        refused(Adapter::read(dir.path(), &base.config), &["adapter_config.json", want]);
    }
}
