// The products for many tokens, a kernel for each format and tile: see gemm_wide.cuh. None but on sm_90a: elsewhere
// gemm_small.cu serves 32 tokens at a time.
#include "gemm_wide.cuh"

// name, format, tokens a tile, stages
WIDE_GEMM(gemm_e2m1_wide32, E2M1, 32, 8)
WIDE_GEMM(gemm_e2m1_wide64, E2M1, 64, 8)
WIDE_GEMM(gemm_e2m1_wide128, E2M1, 128, 7)
WIDE_GEMM(gemm_nf4_wide64, NF4, 64, 8)
WIDE_GEMM(gemm_nf4_wide128, NF4, 128, 7)
WIDE_GEMM(gemm_bf16_wide64, BF16, 64, 5)
WIDE_GEMM(gemm_bf16_wide128, BF16, 128, 4)
