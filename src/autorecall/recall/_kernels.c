/* The inner loops of recall and of patch filters, on batches so small that the overhead of a tensor operation outweighs
 * its arithmetic.
 *
 * Each function does the same as a few lines of torch, which are its oracle in the tests and its fallback without a
 * compiler: batch-norm with a weight per image (weighted_norm.py), the gradient of the recall objective in closed form
 * (objective.py), and what comes before and after the matrix products of patch filters (networks/patches.py). Included
 * twice, for float and double. Iterations over channels, or over the places of a row, are independent, so the compiler
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

/* No element depends on what the loop did to another. */
#if defined(__GNUC__) && !defined(__clang__)
#define IVDEP _Pragma("GCC ivdep")
#else
#define IVDEP
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

/* Raised with every change of a signature, so that a library built from other sources is not called. */
int64_t kernels_version(void) { return 6; }

/* Loaded with ctypes, which lets other threads run meanwhile; the module itself is empty. */
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }

#else

/* Batch-norm with a weight per image, on arrays ordered by image, pixel and channel. 20 channels are no multiple of a
 * vector's 8 values, so as many pixels are taken together as fill whole vectors: `wide` values, with `wide / channels`
 * copies of each number of a channel. Arrays may be the same one: each element is read before it is written. */
static inline int64_t NAMED(width, REAL)(int64_t pixels, int64_t channels) {
    int64_t together = channels % 8 == 0 ? 1 : channels % 4 == 0 ? 2 : channels % 2 == 0 ? 4 : 8;
    return pixels % together == 0 ? together * channels : channels;
}

static inline void NAMED(repeat, REAL)(REAL *wide_row, const REAL *row, int64_t wide, int64_t channels) {
    for (int64_t w = 0; w < wide; w += channels)
        for (int64_t c = 0; c < channels; c++) wide_row[w + c] = row[c];
}

static inline void NAMED(fold, REAL)(REAL *row, const REAL *wide_row, int64_t wide, int64_t channels) {
    for (int64_t c = 0; c < channels; c++) row[c] = wide_row[c];
    for (int64_t w = channels; w < wide; w += channels)
        for (int64_t c = 0; c < channels; c++) row[c] += wide_row[w + c];
}

/* y = batch-norm of x, plus `add` if there is one, and without what is below 0 if `relu` says so (NaN stays NaN).
 *
 * `work` receives 5 rows of `channels` for the way back: mean, variance, 1/sqrt(variance + eps), that times weight, and
 * bias; behind them are 2 * images + 32 rows of scratch. Running statistics may be NULL; a negative momentum means a
 * cumulative average. `values` counts all copies. */
WIDEST void NAMED(norm_forward, REAL)(const REAL *x, REAL *y, const REAL *shares, const REAL *weight, const REAL *bias,
                                      REAL *work, REAL *running_mean, REAL *running_variance, int64_t *batches,
                                      const REAL *add, int64_t images, int64_t pixels, int64_t channels, int64_t relu,
                                      double eps, double momentum, double values) {
    REAL *mean = work, *variance = work + channels, *inverse = work + 2 * channels, *scale = work + 3 * channels;
    REAL *shift = work + 4 * channels, *means = work + 5 * channels, *spreads = means + images * channels;
    int64_t wide = NAMED(width, REAL)(pixels, channels), rows = pixels * channels / wide;
    REAL *restrict wide_mean = spreads + images * channels, *restrict wide_scale = wide_mean + 8 * channels;
    REAL *restrict wide_shift = wide_scale + 8 * channels, *restrict sum = wide_shift + 8 * channels;
    for (int64_t k = 0; k < images; k++) {
        /* The second look at an image finds it in the cache, and sums over one image are accurate. */
        const REAL *image = x + k * pixels * channels;
        for (int64_t w = 0; w < wide; w++) sum[w] = 0;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t w = 0; w < wide; w++) sum[w] += image[i * wide + w];
        NAMED(fold, REAL)(means + k * channels, sum, wide, channels);
        for (int64_t c = 0; c < channels; c++) means[k * channels + c] /= pixels;
        NAMED(repeat, REAL)(wide_mean, means + k * channels, wide, channels);
        for (int64_t w = 0; w < wide; w++) sum[w] = 0;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t w = 0; w < wide; w++) {
                REAL d = image[i * wide + w] - wide_mean[w];
                sum[w] += d * d;
            }
        NAMED(fold, REAL)(spreads + k * channels, sum, wide, channels);
    }
    for (int64_t c = 0; c < channels; c++) mean[c] = variance[c] = 0;
    for (int64_t k = 0; k < images; k++)
        for (int64_t c = 0; c < channels; c++) mean[c] += shares[k] * means[k * channels + c];
    for (int64_t k = 0; k < images; k++)
        for (int64_t c = 0; c < channels; c++) {
            REAL apart = means[k * channels + c] - mean[c];
            variance[c] += shares[k] * (spreads[k * channels + c] / pixels + apart * apart);
        }
    for (int64_t c = 0; c < channels; c++) {
        inverse[c] = 1 / SQRT(variance[c] + (REAL)eps);
        scale[c] = weight ? inverse[c] * weight[c] : inverse[c];
        shift[c] = bias ? bias[c] : 0;
    }
    NAMED(repeat, REAL)(wide_mean, mean, wide, channels);
    NAMED(repeat, REAL)(wide_scale, scale, wide, channels);
    NAMED(repeat, REAL)(wide_shift, shift, wide, channels);
#define APPLY(result)                                                                      \
    for (int64_t i = 0; i < images * rows * wide; i += wide) {                             \
        const REAL *from = x + i, *with = add ? add + i : from;                            \
        REAL *to = y + i;                                                                  \
        IVDEP for (int64_t w = 0; w < wide; w++) {                                         \
            REAL v = (from[w] - wide_mean[w]) * wide_scale[w] + wide_shift[w];             \
            to[w] = result;                                                                \
        }                                                                                  \
        (void)with;                                                                        \
    }
    if (add && relu) APPLY(v + with[w] < 0 ? 0 : v + with[w])
    else if (add) APPLY(v + with[w])
    else if (relu) APPLY(v < 0 ? 0 : v)
    else APPLY(v)
#undef APPLY
    if (running_mean) {
        *batches += 1;
        REAL rate = momentum < 0 ? 1.0 / *batches : momentum, unbiased = values / (values - 1);
        for (int64_t c = 0; c < channels; c++) {
            running_mean[c] += rate * (mean[c] - running_mean[c]);
            running_variance[c] += rate * (unbiased * variance[c] - running_variance[c]);
        }
    }
}

/* The way back: gx from g at y, whose second part g2 may be NULL. With `relu`, no gradient passes where y is not above 0;
 * if y is NULL it is calculated again from x. With g2 or y, g becomes the gradient behind the ReLU, which is also that
 * of `add`. `at_statistics`, if not NULL, is a further gradient, of mean and variance (not unbiased). `work` is as norm_forward left it; `sums` receives the gradients of weight and bias, and has 41 more rows. */
WIDEST void NAMED(norm_backward, REAL)(REAL *g, const REAL *x, REAL *gx, const REAL *shares, const REAL *work,
                                       REAL *sums, const REAL *g2, const REAL *y, const REAL *at_statistics,
                                       int64_t images, int64_t pixels, int64_t channels, int64_t relu) {
    const REAL *mean = work, *inverse = work + 2 * channels, *scale = work + 3 * channels, *shift = work + 4 * channels;
    REAL *sum_gd = sums, *sum_g = sums + channels;
    int64_t wide = NAMED(width, REAL)(pixels, channels), rows = pixels * channels / wide;
    REAL *restrict slope = sums + 2 * channels, *restrict offset = slope + 8 * channels;
    REAL *restrict wide_mean = offset + 8 * channels, *restrict wide_scale = wide_mean + 8 * channels;
    REAL *restrict limits = wide_scale + 8 * channels, *folded = limits + 8 * channels;
    NAMED(repeat, REAL)(wide_mean, mean, wide, channels);
    NAMED(repeat, REAL)(wide_scale, scale, wide, channels);
    for (int64_t c = 0; c < channels; c++) sum_gd[c] = sum_g[c] = 0;
    /* y > 0 without adding the bias to every value. */
    for (int64_t w = 0; w < wide; w++) limits[w] = -shift[w % channels];
#define SUMS(whole, gradient)                                                               \
    for (int64_t k = 0; k < images; k++) {                                                  \
        /* One image at a time, to keep long sums accurate. */                              \
        for (int64_t w = 0; w < wide; w++) slope[w] = offset[w] = 0;                        \
        for (int64_t i = k * rows * wide; i < (k + 1) * rows * wide; i += wide) {           \
            const REAL *at_x = x + i, *also = g2 ? g2 + i : at_x, *after = y ? y + i : at_x; \
            REAL *at_g = g + i;                                                             \
            IVDEP for (int64_t w = 0; w < wide; w++) {                                      \
                REAL d = at_x[w] - wide_mean[w], all = whole, v = gradient;                 \
                (void)also, (void)after;                                                    \
                offset[w] += v;                                                             \
                slope[w] += v * d;                                                          \
            }                                                                               \
        }                                                                                   \
        NAMED(fold, REAL)(folded, offset, wide, channels);                                  \
        for (int64_t c = 0; c < channels; c++) sum_g[c] += folded[c];                       \
        NAMED(fold, REAL)(folded, slope, wide, channels);                                   \
        for (int64_t c = 0; c < channels; c++) sum_gd[c] += folded[c];                      \
    }
    int again = relu && !y && !g2; /* cheaper than to write g and to read it again */
    if (again) SUMS(at_g[w], d * wide_scale[w] > limits[w] ? all : 0)
    else if (relu && y && g2) SUMS(at_g[w] + also[w], (at_g[w] = after[w] > 0 ? all : 0))
    else if (relu && y) SUMS(at_g[w], (at_g[w] = after[w] > 0 ? all : 0))
    else if (relu) SUMS(at_g[w] + also[w], (at_g[w] = d * wide_scale[w] > limits[w] ? all : 0))
    else if (g2) SUMS(at_g[w] + also[w], (at_g[w] = all))
    else SUMS(at_g[w], all)
#undef SUMS
    for (int64_t k = 0; k < images; k++) {
        REAL alpha = shares[k] / pixels;
        for (int64_t w = 0; w < wide; w++) {
            int64_t c = w % channels;
            slope[w] = -alpha * scale[c] * inverse[c] * inverse[c] * sum_gd[c];
            offset[w] = -alpha * scale[c] * sum_g[c];
            if (at_statistics) {
                offset[w] += alpha * at_statistics[c];
                slope[w] += 2 * alpha * at_statistics[channels + c];
            }
        }
        for (int64_t i = k * rows * wide; i < (k + 1) * rows * wide; i += wide) {
            const REAL *at_x = x + i, *at_g = g + i;
            REAL *to = gx + i;
            if (again) {
                IVDEP for (int64_t w = 0; w < wide; w++) {
                    REAL d = at_x[w] - wide_mean[w];
                    REAL passed = d * wide_scale[w] > limits[w] ? at_g[w] : 0;
                    to[w] = wide_scale[w] * passed + slope[w] * d + offset[w];
                }
            } else {
                IVDEP for (int64_t w = 0; w < wide; w++)
                    to[w] = wide_scale[w] * at_g[w] + slope[w] * (at_x[w] - wide_mean[w]) + offset[w];
            }
        }
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

/* The patches of an image (channels, height, width), each less its mean and over its deviation: one row per value of a
 * patch, one column per place. With `halves`, a value and the one that a mirror swaps it with become their sum, in `even`,
 * and their difference, in `odd`; one in the middle, which has no other, is times √2. `work` has 2 rows of places. */
WIDEST void NAMED(patches, REAL)(const REAL *image, REAL *even, REAL *odd, REAL *work, int64_t channels, int64_t height,
                                 int64_t width, int64_t size, int64_t halves, double contrast) {
    int64_t rows = height - size + 1, columns = width - size + 1, places = rows * columns, values = channels * size * size;
    int64_t half = halves ? size / 2 : 0, kept = size - half;
    REAL *restrict mean = work, *restrict scale = work + columns, middle = halves ? SQRT((REAL)2) : 1;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) mean[j] = scale[j] = 0;
#define EACH_VALUE(sum)                                                                       \
    for (int64_t line = 0; line < channels * size; line++) {                                  \
        const REAL *row = image + (line / size * height + i + line % size) * width;           \
        for (int64_t b = 0; b < size; b++)                                                    \
            for (int64_t j = 0; j < columns; j++) sum;                                        \
    }
        EACH_VALUE(mean[j] += row[b + j])
        for (int64_t j = 0; j < columns; j++) mean[j] /= values;
        EACH_VALUE(scale[j] += (row[b + j] - mean[j]) * (row[b + j] - mean[j]))
#undef EACH_VALUE
        for (int64_t j = 0; j < columns; j++)
            scale[j] = 1 / SQRT(scale[j] / (values > 1 ? values - 1 : 1) + (REAL)contrast);
        for (int64_t line = 0; line < channels * size; line++) {
            const REAL *row = image + (line / size * height + i + line % size) * width;
            REAL *restrict sums = even + line * kept * places + i * columns;
            REAL *restrict differences = half ? odd + line * half * places + i * columns : NULL;
            for (int64_t b = 0; b < half; b++)
                for (int64_t j = 0; j < columns; j++) {
                    REAL one = (row[b + j] - mean[j]) * scale[j], other = (row[size - 1 - b + j] - mean[j]) * scale[j];
                    sums[b * places + j] = one + other;
                    differences[b * places + j] = one - other;
                }
            for (int64_t b = half; b < kept; b++)
                for (int64_t j = 0; j < columns; j++)
                    sums[b * places + j] = middle * ((row[b + j] - mean[j]) * scale[j]);
        }
    }
}

/* How far responses go beyond a limit, up and down, added to what is there. NaN stays NaN. */
static inline void NAMED(add_beyond, REAL)(REAL *restrict up, REAL *restrict down, const REAL *restrict same,
                                           const REAL *restrict other, REAL sign, REAL offset, REAL limit,
                                           int64_t columns) {
#define ADD(response)                                    \
    for (int64_t j = 0; j < columns; j++) {              \
        REAL v = response, w = -v;                       \
        up[j] += v < limit ? 0 : v - limit;              \
        down[j] += w < limit ? 0 : w - limit;            \
    }
    if (other) ADD(same[j] + offset + sign * other[j])
    else ADD(same[j] + offset)
#undef ADD
}

/* Features from responses of filters at the places of an image: how far they go beyond the threshold, up and down, as
 * the root of its mean over each cell of a grid. With `odd`, responses are the sum of both, and those of the mirror image,
 * at mirrored places, their difference. Features of what is down are `apart` from those of what is up. `work` has 4 rows of
 * places, and of 64 at least. */
WIDEST void NAMED(patch_features, REAL)(const REAL *even, const REAL *odd, const REAL *offsets, REAL *features, REAL *work,
                                        int64_t filters, int64_t rows, int64_t columns, int64_t cells_down,
                                        int64_t cells_across, int64_t apart, double threshold, double quiet) {
    int64_t lanes = cells_across > 1 ? columns : 64; /* one cell across does not ask in which column a place is */
    REAL *restrict up = work, *restrict down = work + lanes, limit = threshold;
    REAL *restrict mirrored_up = work + 2 * lanes, *restrict mirrored_down = work + 3 * lanes;
    for (int64_t f = 0; f < filters; f++) {
        REAL offset = offsets[f];
        for (int64_t a = 0; a < cells_down; a++) {
            int64_t first = a * rows / cells_down, last = ((a + 1) * rows + cells_down - 1) / cells_down;
            for (int64_t j = 0; j < lanes; j++) up[j] = down[j] = mirrored_up[j] = mirrored_down[j] = 0;
            for (int64_t i = first * columns; i < last * columns; i += lanes) {
                int64_t many = i + lanes < last * columns ? lanes : last * columns - i, at = f * rows * columns + i;
                const REAL *same = even + at, *other = odd ? odd + at : NULL;
                NAMED(add_beyond, REAL)(up, down, same, other, 1, offset, limit, many);
                if (odd) NAMED(add_beyond, REAL)(mirrored_up, mirrored_down, same, other, -1, offset, limit, many);
            }
            for (int64_t j = 0; j < lanes; j++) {
                up[j] += mirrored_up[lanes - 1 - j];
                down[j] += mirrored_down[lanes - 1 - j];
            }
            for (int64_t b = 0; b < cells_across; b++) {
                int64_t left = b * lanes / cells_across, right = ((b + 1) * lanes + cells_across - 1) / cells_across;
                int64_t wide = cells_across > 1 ? right - left : columns;
                REAL sum_up = 0, sum_down = 0, count = (odd ? 2 : 1) * (last - first) * wide;
                for (int64_t j = left; j < right; j++) {
                    sum_up += up[j];
                    sum_down += down[j];
                }
                REAL *cell = features + (f * cells_down + a) * cells_across + b;
                cell[0] = SQRT(sum_up / count + (REAL)quiet);
                cell[apart] = SQRT(sum_down / count + (REAL)quiet);
            }
        }
    }
}

#endif
