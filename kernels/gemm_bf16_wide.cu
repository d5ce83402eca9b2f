// Products of many tokens with bf16 weights on Hopper: see gemm_wide.cuh. The Rust side (choose.rs) holds the same numbers.
#include "gemm_wide.cuh"

// name, format, tokens a tile, stages
WIDE_GEMM(gemm_bf16_wide64, BF16, 64, 5)
WIDE_GEMM(gemm_bf16_wide128, BF16, 128, 4)
