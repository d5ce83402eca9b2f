// Products of few tokens with nf4 weights: see gemm_small.cuh. src/engine/cuda/choose.rs holds the same numbers.
#include "gemm_small.cuh"

// name, format, tokens / 8, strips a tile, strips a warp, warps along k, k blocks a stage, stages
SMALL_GEMM(gemm_nf4_8, NF4, 1, 8, 2, 2, 4, 4)
SMALL_GEMM(gemm_nf4_16, NF4, 2, 8, 2, 2, 4, 4)
