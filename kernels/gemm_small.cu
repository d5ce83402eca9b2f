// The products for few tokens, a kernel for each format and number of tokens: see gemm_small.cuh.
#include "gemm_small.cuh"

// name, format, tokens / 8, strips a warp, warps along k, k blocks a stage, stages
SMALL_GEMM(gemm_e2m1_8, E2M1, 1, 1, 1, 4, 5)
SMALL_GEMM(gemm_e2m1_16, E2M1, 2, 2, 2, 4, 4)
SMALL_GEMM(gemm_e2m1_32, E2M1, 4, 4, 4, 4, 3)
SMALL_GEMM(gemm_nf4_8, NF4, 1, 1, 1, 4, 5)
SMALL_GEMM(gemm_nf4_16, NF4, 2, 2, 2, 4, 4)
SMALL_GEMM(gemm_nf4_32, NF4, 4, 4, 4, 4, 3)
SMALL_GEMM(gemm_bf16_8, BF16, 1, 1, 1, 2, 4)
SMALL_GEMM(gemm_bf16_16, BF16, 2, 2, 2, 2, 3)
SMALL_GEMM(gemm_bf16_32, BF16, 4, 4, 4, 4, 2)
