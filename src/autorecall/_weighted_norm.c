/* Batch-norm with a weight for each image, on images whose channels lie side by side: x[image][pixel][channel].
 *
 * The same arithmetic as `WeightedBatchNorm` in distinct.py, which is its oracle, in three passes over x forward and two
 * backward. Included twice, for float and double. Every loop over channels is independent of the others, so that the
 * compiler can make vectors of it without changing the order of any sum.
 */
#ifndef REAL

#include <Python.h>
#include <math.h>
#include <stdint.h>

/* One binary for every x86 processor: the loader picks the widest vectors that there are. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDEST
#endif

#define REAL float
#define FORWARD forward_float
#define BACKWARD backward_float
#define SQRT sqrtf
#include "_weighted_norm.c"
#undef REAL
#undef FORWARD
#undef BACKWARD
#undef SQRT

#define REAL double
#define FORWARD forward_double
#define BACKWARD backward_double
#define SQRT sqrt
#include "_weighted_norm.c"

/* Loaded with ctypes, which lets other threads run meanwhile; the module itself is empty. */
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_weighted_norm", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__weighted_norm(void) { return PyModule_Create(&module); }

#else

/* `work` holds 5 rows of `channels`: mean, variance and 1/sqrt(variance + eps) are left there, the rest is scratch.
 * Running statistics may be NULL; a negative momentum means a cumulative average. `values` counts all copies. */
WIDEST void FORWARD(const REAL *restrict x, REAL *restrict y, const REAL *restrict shares, const REAL *weight,
                    const REAL *bias, REAL *restrict work, REAL *running_mean, REAL *running_variance, int64_t *batches,
                    int64_t images, int64_t pixels, int64_t channels, double eps, double momentum, double values) {
    REAL *restrict mean = work, *restrict variance = work + channels, *restrict inverse = work + 2 * channels;
    REAL *restrict scale = work + 3 * channels, *restrict sum = work + 4 * channels;
    for (int64_t c = 0; c < channels; c++) mean[c] = variance[c] = 0;
    for (int64_t k = 0; k < images; k++) {
        const REAL *image = x + k * pixels * channels, share = shares[k] / pixels;
        for (int64_t c = 0; c < channels; c++) sum[c] = 0;
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = 0; c < channels; c++) sum[c] += image[p * channels + c];
        for (int64_t c = 0; c < channels; c++) mean[c] += share * sum[c];
    }
    for (int64_t k = 0; k < images; k++) {
        const REAL *image = x + k * pixels * channels, share = shares[k] / pixels;
        for (int64_t c = 0; c < channels; c++) sum[c] = 0;
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = 0; c < channels; c++) {
                REAL d = image[p * channels + c] - mean[c];
                sum[c] += d * d;
            }
        for (int64_t c = 0; c < channels; c++) variance[c] += share * sum[c];
    }
    for (int64_t c = 0; c < channels; c++) {
        inverse[c] = 1 / SQRT(variance[c] + (REAL)eps);
        scale[c] = weight ? inverse[c] * weight[c] : inverse[c];
        sum[c] = bias ? bias[c] : 0;
    }
    for (int64_t i = 0; i < images * pixels; i++)
        for (int64_t c = 0; c < channels; c++)
            y[i * channels + c] = (x[i * channels + c] - mean[c]) * scale[c] + sum[c];
    if (running_mean) {
        *batches += 1;
        REAL rate = momentum < 0 ? 1.0 / *batches : momentum, unbiased = values / (values - 1);
        for (int64_t c = 0; c < channels; c++) {
            running_mean[c] += rate * (mean[c] - running_mean[c]);
            running_variance[c] += rate * (unbiased * variance[c] - running_variance[c]);
        }
    }
}

/* `work` as FORWARD left it; `sums` receives the gradients of weight and bias, and has two rows of scratch besides. */
WIDEST void BACKWARD(const REAL *restrict g, const REAL *restrict x, REAL *restrict gx, const REAL *restrict shares,
                     const REAL *restrict work, REAL *restrict sums, int64_t images, int64_t pixels,
                     int64_t channels) {
    const REAL *restrict mean = work, *restrict inverse = work + 2 * channels, *restrict scale = work + 3 * channels;
    REAL *restrict sum_gd = sums, *restrict sum_g = sums + channels;
    REAL *restrict slope = sums + 2 * channels, *restrict offset = sums + 3 * channels;
    for (int64_t c = 0; c < channels; c++) sum_gd[c] = sum_g[c] = 0;
    for (int64_t k = 0; k < images; k++) {
        /* One image at a time, so that long sums stay exact. */
        for (int64_t c = 0; c < channels; c++) slope[c] = offset[c] = 0;
        for (int64_t i = k * pixels; i < (k + 1) * pixels; i++)
            for (int64_t c = 0; c < channels; c++) {
                REAL gradient = g[i * channels + c];
                offset[c] += gradient;
                slope[c] += gradient * (x[i * channels + c] - mean[c]);
            }
        for (int64_t c = 0; c < channels; c++) sum_g[c] += offset[c], sum_gd[c] += slope[c];
    }
    for (int64_t k = 0; k < images; k++) {
        REAL alpha = shares[k] / pixels;
        for (int64_t c = 0; c < channels; c++) {
            slope[c] = -alpha * scale[c] * inverse[c] * inverse[c] * sum_gd[c];
            offset[c] = -alpha * scale[c] * sum_g[c] - slope[c] * mean[c];
        }
        for (int64_t i = k * pixels; i < (k + 1) * pixels; i++)
            for (int64_t c = 0; c < channels; c++)
                gx[i * channels + c] = scale[c] * g[i * channels + c] + slope[c] * x[i * channels + c] + offset[c];
    }
    for (int64_t c = 0; c < channels; c++) sum_gd[c] *= inverse[c];
}

#endif
