// AdamW over the flat arena of trained values, in pieces (start, length; bit 0: weight decay applies, bit 1: the tensor
// is large enough for 8-bit moments).
#include "act.cuh"

typedef long long i64;

struct Piece {
    i64 start;
    int length, decays;
};

// sums[piece] = sum of squares in f64, in a fixed order. A block of 256 threads per piece.
extern "C" __global__ void square_sums(double *sums, const float *gradients, const Piece *pieces) {
    __shared__ double part[256];
    Piece piece = pieces[blockIdx.x];
    double sum = 0.;
    for (int i = threadIdx.x; i < piece.length; i += 256) {
        double g = gradients[piece.start + i];
        sum += g * g;
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step; step >>= 1) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

// One step; gradients become zero. size = lr / (1 - b1^t), root = sqrt(1 - b2^t), keep = 1 - lr * decay.
extern "C" __global__ void adamw(float *values, float *gradients, float *m, float *v, const Piece *pieces, float clip,
                                 float b1, float b2, float size, float root, float eps, float keep) {
    Piece piece = pieces[blockIdx.x];
    float kept = piece.decays & 1 ? keep : 1.f;
    for (int i = threadIdx.x; i < piece.length; i += blockDim.x) {
        i64 at = piece.start + i;
        float x = gradients[at] * clip;
        float first = b1 * m[at] + (1.f - b1) * x, second = b2 * v[at] + (1.f - b2) * x * x;
        m[at] = first, v[at] = second;
        values[at] = values[at] * kept - size * first / (sqrtf(second) / root + eps);
        gradients[at] = 0.f;
    }
}

// Rounds a moment of every coded piece to 8-bit codes, as src/engine/adamw8.rs defines them: blocks of 256 values share
// their largest magnitude; `map` are the 256 codes' values, ascending. A block of 256 threads per piece.
extern "C" __global__ void round_moments(float *moment, const float *map, int second, const Piece *pieces) {
    __shared__ float values[256];
    Piece piece = pieces[blockIdx.x];
    if (!(piece.decays & 2)) return;
    values[threadIdx.x] = map[threadIdx.x];
    for (int from = 0; from < piece.length; from += 256) {
        int i = from + threadIdx.x;
        i64 at = piece.start + i;
        float value = i < piece.length ? moment[at] : 0.f;
        float scale = block_max(fabsf(value));
        if (scale == 0.f || i >= piece.length) continue;
        float x = __fdiv_rn(value, scale);
        int above = 0;
        for (int step = 128; step; step >>= 1)
            if (values[above + step - 1] < x) above += step;
        above = min(above + (values[above] < x), 255);
        int below = max(above - 1, 0), code = values[above] - x < x - values[below] ? above : below;
        if (!second && x < 0.f && values[code] >= 0.f) code--;
        if (second && x > 0.f && values[code] == 0.f) code++;
        moment[at] = values[code] * scale;
    }
}
