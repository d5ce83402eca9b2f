// Products of many tokens with nf4 weights on Hopper: see gemm_wide.cuh. The Rust side (choose.rs) holds the same numbers.
#include "gemm_wide.cuh"

// name, format, tokens a tile, stages
WIDE_GEMM(gemm_nf4_wide64, NF4, 64, 8)
WIDE_GEMM(gemm_nf4_wide128, NF4, 128, 7)
