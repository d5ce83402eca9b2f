// AdamW over the flat arena of trained values, in pieces (start, length, whether weight decay applies).
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
    float kept = piece.decays ? keep : 1.f;
    for (int i = threadIdx.x; i < piece.length; i += blockDim.x) {
        i64 at = piece.start + i;
        float x = gradients[at] * clip;
        float first = b1 * m[at] + (1.f - b1) * x, second = b2 * v[at] + (1.f - b2) * x * x;
        m[at] = first, v[at] = second;
        values[at] = values[at] * kept - size * first / (sqrtf(second) / root + eps);
        gradients[at] = 0.f;
    }
}
