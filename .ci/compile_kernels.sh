#!/usr/bin/env bash
# Compiles every CUDA kernel for every chip, without a GPU: NVRTC comes from NVIDIA's wheel, the compiler's driver is our
# own binary. Usage: .ci/compile_kernels.sh PATH_TO_QERL
set -euo pipefail
qerl=${1:?path of the qerl binary}
if [ -z "${QERL_CUDA_LIB:-}" ] && ! "$qerl" doctor --json | grep -q '"nvrtc": "'; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python3 -m pip install --quiet --no-deps --target "$folder" 'nvidia-cuda-nvrtc==13.*'
    QERL_CUDA_LIB=$(dirname "$(find "$folder" -name 'libnvrtc.so.1[0-9]' | head -n 1)")
    export QERL_CUDA_LIB
fi
"$qerl" doctor --compile-kernels all
