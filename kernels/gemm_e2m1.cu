// Products of few tokens with e2m1 weights: see gemm_small.cuh. src/engine/cuda/choose.rs holds the same numbers.
#include "gemm_small.cuh"

// name, format, tokens / 8, strips a tile, strips a warp, warps along k, k blocks a stage, stages
SMALL_GEMM(gemm_e2m1_8, E2M1, 1, 4, 2, 8, 16, 3)
SMALL_GEMM(gemm_e2m1_16, E2M1, 2, 4, 2, 4, 8, 4)
SMALL_GEMM(gemm_e2m1_32, E2M1, 4, 8, 2, 2, 4, 4)
SMALL_GEMM(gemm_e2m1_64, E2M1, 8, 8, 2, 2, 4, 3)
