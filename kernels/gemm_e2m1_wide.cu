// Products of many tokens with e2m1 weights on Hopper: see gemm_wide.cuh. The Rust side (choose.rs) holds the same numbers.
#include "gemm_wide.cuh"

// name, format, tokens a tile, stages
WIDE_GEMM(gemm_e2m1_wide64, E2M1, 64, 8)
WIDE_GEMM(gemm_e2m1_wide128, E2M1, 128, 7)
