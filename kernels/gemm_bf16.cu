// Products of few tokens with bf16 weights: see gemm_small.cuh. src/engine/cuda/choose.rs holds the same numbers.
#include "gemm_small.cuh"

// name, format, tokens / 8, strips a tile, strips a warp, warps along k, k blocks a stage, stages
SMALL_GEMM(gemm_bf16_16, BF16, 2, 8, 2, 2, 2, 4)
SMALL_GEMM(gemm_bf16_32, BF16, 4, 8, 2, 2, 2, 4)
