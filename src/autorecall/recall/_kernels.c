/* The inner loops of recall, on batches so small that the overhead of a tensor operation outweighs its arithmetic.
 *
 * Each function does the same as a few lines of torch, which are its oracle in the tests and its fallback without a
 * compiler: batch-norm with a weight per image (weighted_norm.py), and the gradient of the recall objective in closed
 * form (objective.py). Included twice, for float and double. Iterations over channels are independent, so the compiler
 * can vectorise them without changing the order of any sum.
 */
#ifndef REAL

#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

/* One binary for every x86 processor: the loader picks the widest vectors available. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDEST
#endif

enum { MIXTURE_FIRST, JENSEN_SHANNON, CROSS_ENTROPY };

#define JOIN(name, type) name##_##type
#define NAMED(name, type) JOIN(name, type)

#define REAL float
#define EXP expf
#define LOG logf
#define LOG1P log1pf
#define SQRT sqrtf
#define TINY FLT_MIN
#include "_kernels.c"
#undef REAL
#undef EXP
#undef LOG
#undef LOG1P
#undef SQRT
#undef TINY

#define REAL double
#define EXP exp
#define LOG log
#define LOG1P log1p
#define SQRT sqrt
#define TINY DBL_MIN
#include "_kernels.c"

/* Loaded with ctypes, which lets other threads run meanwhile; the module itself is empty. */
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }

#else

/* `work` holds 5 rows of `channels`: mean, variance, 1/sqrt(variance + eps) and that times weight; the last is scratch.
 * Running statistics may be NULL; a negative momentum means a cumulative average. `values` counts all copies. */
WIDEST void NAMED(norm_forward, REAL)(const REAL *restrict x, REAL *restrict y, const REAL *restrict shares, const REAL *weight,
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

/* `work` as norm_forward left it; `sums` receives the gradients of weight and bias, and has two rows of scratch. */
WIDEST void NAMED(norm_backward, REAL)(const REAL *restrict g, const REAL *restrict x, REAL *restrict gx, const REAL *restrict shares,
                     const REAL *restrict work, REAL *restrict sums, int64_t images, int64_t pixels,
                     int64_t channels) {
    const REAL *restrict mean = work, *restrict inverse = work + 2 * channels, *restrict scale = work + 3 * channels;
    REAL *restrict sum_gd = sums, *restrict sum_g = sums + channels;
    REAL *restrict slope = sums + 2 * channels, *restrict offset = sums + 3 * channels;
    for (int64_t c = 0; c < channels; c++) sum_gd[c] = sum_g[c] = 0;
    for (int64_t k = 0; k < images; k++) {
        /* One image at a time, to keep long sums accurate. */
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

/* The gradient of the objective at the logits, and its terms. A gradient u with respect to probabilities p becomes
 * p * (u - sum of p * u) with respect to logits.
 *
 * `present` is 1/C at the C classes of the real batch and 0 elsewhere. `terms` receives D, the avoidance of teacher and
 * student, diversity and uncertainty. `work` has 5 rows of `classes`. Returns whether all gradients are finite. */
int64_t NAMED(logit_gradient, REAL)(const REAL *student, const REAL *teacher, const REAL *weights, const REAL *present,
                                    REAL *at_student, REAL *at_teacher, REAL *work, REAL *terms, int64_t images,
                                    int64_t classes, int64_t kind, double divergence, double teacher_avoidance,
                                    double student_avoidance, double diversity, double uncertainty) {
    REAL *mean = work, *by_q = work + classes, *by_p = work + 2 * classes;       /* gradients at probabilities ... */
    REAL *on_s = work + 3 * classes, *on_t = work + 4 * classes, entropy = 0;    /* ... and at logits directly */
    const REAL *logits[2] = {student, teacher};
    REAL *logs[2] = {at_student, at_teacher}; /* log-probabilities, later overwritten by the gradients */
    for (int64_t c = 0; c < classes; c++) mean[c] = 0;
    for (int64_t i = 0; i < 5; i++) terms[i] = 0;
    for (int64_t k = 0; k < images; k++)
        for (int64_t network = 0; network < 2; network++) {
            const REAL *row = logits[network] + k * classes;
            REAL *log_row = logs[network] + k * classes, highest = row[0], sum = 0;
            for (int64_t c = 1; c < classes; c++) highest = row[c] > highest ? row[c] : highest;
            for (int64_t c = 0; c < classes; c++) sum += EXP(row[c] - highest);
            for (int64_t c = 0; c < classes; c++) log_row[c] = row[c] - highest - LOG(sum);
            for (int64_t c = 0; c < classes && network == 1; c++) mean[c] += weights[k] * EXP(log_row[c]);
        }
    for (int64_t c = 0; c < classes; c++) {
        REAL log_mean = LOG(mean[c] > TINY ? mean[c] : TINY);
        entropy -= mean[c] * log_mean;
        mean[c] = -diversity * log_mean; /* gradient of the entropy; the constant -1 cancels within a softmax */
    }
    terms[3] = entropy;
    double all = 0;
    for (int64_t k = 0; k < images; k++) {
        REAL *log_q = at_student + k * classes, *log_p = at_teacher + k * classes, w = weights[k];
        REAL expected_q = 0, expected_p = 0;
        int64_t best = 0;
        for (int64_t c = 0; c < classes; c++) {
            REAL q = EXP(log_q[c]), p = EXP(log_p[c]);
            REAL apart = log_q[c] - log_p[c], larger = apart > 0 ? log_q[c] : log_p[c];
            REAL log_m = larger + LOG1P(EXP(apart > 0 ? -apart : apart)) - LOG((REAL)2), m = (p + q) / 2;
            if (kind == MIXTURE_FIRST) { /* (log m - (log p + log q) / 2 + 1 - m/p) / 2, and p * m/p needs no division */
                REAL common = log_m - (log_p[c] + log_q[c]) / 2;
                terms[0] += w * m * common;
                by_q[c] = by_p[c] = divergence / 2 * common;
                on_s[c] = divergence / 2 * (q - m);
                on_t[c] = divergence / 2 * (p - m);
            } else if (kind == JENSEN_SHANNON) { /* (log p - log m) / 2 */
                terms[0] += w * (p * (log_p[c] - log_m) + q * (log_q[c] - log_m)) / 2;
                by_q[c] = divergence / 2 * (log_q[c] - log_m);
                by_p[c] = divergence / 2 * (log_p[c] - log_m);
                on_s[c] = on_t[c] = 0;
            } else { /* cross-entropy, - p log q */
                terms[0] -= w * p * log_q[c];
                by_q[c] = on_t[c] = 0;
                by_p[c] = -divergence * log_q[c];
                on_s[c] = divergence * (q - p);
            }
            by_p[c] += mean[c];
            /* Gradient of - log p at the present classes: p, minus 1/C at each. */
            on_s[c] -= student_avoidance * present[c];
            on_t[c] -= teacher_avoidance * present[c];
            terms[1] -= w * present[c] * log_p[c];
            terms[2] -= w * present[c] * log_q[c];
            expected_q += q * by_q[c];
            expected_p += p * by_p[c];
            best = log_p[c] > log_p[best] ? c : best;
        }
        terms[4] -= w * log_p[best];
        on_t[best] += uncertainty; /* gradient of log max p: 1 at the maximum, minus p */
        for (int64_t c = 0; c < classes; c++) {
            REAL q = EXP(log_q[c]), p = EXP(log_p[c]);
            log_q[c] = w * (on_s[c] + q * (by_q[c] - expected_q + (REAL)student_avoidance));
            log_p[c] = w * (on_t[c] + p * (by_p[c] - expected_p + (REAL)(teacher_avoidance - uncertainty)));
            all += fabs((double)log_q[c]) + fabs((double)log_p[c]);
        }
    }
    return isfinite(all) != 0;
}

/* One ascent step: y = x + rate * (g1 + g2, plus the gradients of - l2 * L2 and - tv * TV, for one of `counts` copies).
 *
 * Images are addressed by the strides of channel, row and column, the same in all four arrays; an input of any other
 * shape is one row. `terms` receives L2 and TV of x. */
void NAMED(ascent_step, REAL)(const REAL *x, const REAL *g1, const REAL *g2, REAL *y, const REAL *counts, REAL *terms,
                              int64_t images, int64_t channels, int64_t height, int64_t width, int64_t per_image,
                              int64_t per_channel, int64_t per_row, int64_t per_column, double total, double rate,
                              double l2, double tv) {
    double values = (double)channels * height * width;
    REAL down = height > 1 ? 2 / (values - channels * width) : 0, right = width > 1 ? 2 / (values - channels * height) : 0;
    REAL share = 1 / total, variation = 2 * tv * share;
    terms[0] = terms[1] = 0;
    for (int64_t k = 0; k < images; k++) {
        const REAL *image = x + k * per_image;
        REAL squares = 0, vertical = 0, horizontal = 0;
        for (int64_t i = 0; i < channels * height * width; i++) squares += image[i] * image[i];
        REAL norm = SQRT(squares), shrink = squares > 0 ? -l2 * share / values / norm : 0;
        for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < height; i++)
                for (int64_t j = 0; j < width; j++) {
                    int64_t at = c * per_channel + i * per_row + j * per_column;
                    REAL here = image[at], smooth = 0;
                    if (i + 1 < height) {
                        REAL step = image[at + per_row] - here;
                        vertical += step * step;
                        smooth += down * step;
                    }
                    if (i > 0) smooth -= down * (here - image[at - per_row]);
                    if (j + 1 < width) {
                        REAL step = image[at + per_column] - here;
                        horizontal += step * step;
                        smooth += right * step;
                    }
                    if (j > 0) smooth -= right * (here - image[at - per_column]);
                    at += k * per_image;
                    y[at] = here + (REAL)rate * ((g1[at] + g2[at]) / counts[k] + shrink * here + variation * smooth);
                }
        terms[0] += counts[k] * share * norm / values;
        terms[1] += counts[k] * share * (down * vertical + right * horizontal);
    }
}

#endif
