//! Which kernels are loaded.

/// Every kernel, by the unit that holds it.
pub(super) const KERNELS: &[(&str, &[&str])] = &[
    (
        "rows.cu",
        &[
            "embed",
            "row_norm",
            "add_norm",
            "head_norm",
            "norm_backward",
            "head_norm_backward",
            "norm_weight_sums",
            "head_norm_weight_sums",
            "column_sums",
            "add_partial",
            "rope",
            "silu_mul",
            "silu_mul_backward",
            "add_act",
            "add_bias",
            "to_act",
            "add_floats",
            "gather",
            "scatter",
            "embedding_backward",
        ],
    ),
    ("gemm.cu", &["gemm_aaa", "gemm_aaf", "gemm_afa", "gemm_aff", "gemm_faa", "gemm_faf", "gemm_ffa", "gemm_fff"]),
    ("attention.cu", &["attention_forward"]),
    ("attention_backward.cu", &["attention_delta", "attention_backward_q", "attention_backward_kv"]),
    ("head.cu", &["score", "score_backward"]),
    ("sample.cu", &["sample"]),
    ("decode.cu", &["cache_write", "turn_and_cache", "decode_advance", "copy_pages", "decode_attention"]),
    ("dequantize.cu", &["dequantize_nvfp4", "dequantize_mxfp4", "dequantize_nf4"]),
    ("optimizer.cu", &["square_sums", "adamw", "round_moments"]),
    ("fill.cu", &["fill_bits", "fill_bytes", "fill_act", "fill_floats"]),
];

/// Those for bf16 and matrix units.
pub(super) const MATRIX_KERNELS: &[(&str, &[&str])] = &[
    ("gemm_e2m1.cu", &["gemm_e2m1_8", "gemm_e2m1_16", "gemm_e2m1_32", "gemm_e2m1_64"]),
    ("gemm_nf4.cu", &["gemm_nf4_8", "gemm_nf4_16"]),
    ("lora.cu", &["product_inputs", "lora_up"]),
    ("shuffle.cu", &["shuffle_nvfp4", "shuffle_mxfp4", "shuffle_nf4", "unshuffle_e2m1", "unshuffle_nf4"]),
    ("flash_forward.cu", &["flash_forward_64", "flash_forward_128"]),
    (
        "flash_backward.cu",
        &[
            "flash_delta_64",
            "flash_delta_128",
            "flash_backward_q_64",
            "flash_backward_q_128",
            "flash_backward_kv_64",
            "flash_backward_kv_128",
        ],
    ),
    ("flash_decode.cu", &["flash_decode_64", "flash_decode_128", "flash_decode_join_64", "flash_decode_join_128"]),
];

/// Flash decoding's kernels by width of a head.
pub(super) const FLASH: [(usize, &str); 2] = [(64, "flash_decode_64"), (128, "flash_decode_128")];

/// Bytes of shared memory of a block of flash decoding: 4 warps, 4 stages, 16 keys and 16 values of `dim`.
pub fn flash_shared(dim: usize) -> usize {
    4 * 4 * 2 * 16 * dim * 2
}
