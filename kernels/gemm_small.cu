// The products for few tokens, a kernel for each format and number of tokens: see gemm_small.cuh.
#include "gemm_small.cuh"

// name, format, tokens / 8, strips a tile, strips a warp, warps along k, k blocks a stage, stages
SMALL_GEMM(gemm_e2m1_8, E2M1, 1, 2, 2, 8, 8, 5)
SMALL_GEMM(gemm_e2m1_16, E2M1, 2, 4, 2, 4, 8, 3)
SMALL_GEMM(gemm_e2m1_32, E2M1, 4, 8, 4, 4, 4, 3)
