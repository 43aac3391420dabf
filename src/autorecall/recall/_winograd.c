/* Convolutions of 3 x 3 with a border of one, by minimal filtering (Winograd; Lavin and Gray, 2016).
 *
 * A tile of 4 x 4 outputs depends on 6 x 6 inputs. With three fixed matrices, Y = A' [(G w G') * (B' X B)] A needs 36
 * products for each pair of channels, where the sums as they stand need 144. So each tile is transformed, the 36 numbers
 * of all tiles are multiplied with those of the weights, one matrix product over channels for each, and transformed back.
 * In single precision, results are within 3e-5 of the largest; direct sums are more accurate.
 *
 * Arrays are ordered by image, pixel and channel. Included twice, for float and double. Vectors are written out, as the
 * whole gain depends on sums staying in registers: this needs GCC or Clang.
 */
#ifndef REAL

#include <stdint.h>
#include <string.h>

/* As in _kernels.c: one binary for every x86 processor. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define HAS_WIDE __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
#elif defined(__AVX2__) && defined(__FMA__)
#define WIDEST
#define HAS_WIDE 1
#else
#define WIDEST
#define HAS_WIDE 0
#endif
#define INLINE static inline __attribute__((always_inline))
#define JOIN(name, type) name##_##type
#define NAMED(name, type) JOIN(name, type)

/* Whether this processor has the vectors that make it worth while; on others it has not been measured. */
int64_t winograd_pays(void) { return HAS_WIDE; }

/* Columns of a product are taken two or three vectors at a time, for as many sums as there are registers. */
INLINE int64_t panel(int64_t vectors_left) { return vectors_left == 1 ? 1 : vectors_left % 2 ? 3 : 2; }

#define REAL float
#include "_winograd.c"
#undef REAL

#define REAL double
#include "_winograd.c"

#else

typedef REAL NAMED(vec, REAL) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
#define VEC NAMED(vec, REAL)
#define AT(pointer) (*(VEC *)(pointer))
#define LANES ((int64_t)(32 / sizeof(REAL)))

/* G times three numbers, B' times six, A' times six. */
#define WEIGHTS(to, a, b, c)             \
    to(0, a / 4)                         \
    to(1, -(a + b + c) / 6)              \
    to(2, -(a - b + c) / 6)              \
    to(3, a / 24 + b / 12 + c / 6)       \
    to(4, a / 24 - b / 12 + c / 6)       \
    to(5, c)
#define INPUTS(to, a, b, c, d, e, f)     \
    to(0, 4 * a - 5 * c + e)             \
    to(1, (e - 4 * c) + (d - 4 * b))     \
    to(2, (e - 4 * c) - (d - 4 * b))     \
    to(3, (e - c) + 2 * (d - b))         \
    to(4, (e - c) - 2 * (d - b))         \
    to(5, 4 * b - 5 * d + f)
#define OUTPUTS(to, a, b, c, d, e, f)    \
    to(0, a + (b + c) + (d + e))         \
    to(1, (b - c) + 2 * (d - e))         \
    to(2, (b + c) + 4 * (d + e))         \
    to(3, (b - c) + 8 * (d - e) + f)

/* Weights, as 9 matrices of `deep` rows and `wide` columns, to 36, each cut into panels of columns. What fills up the last
 * vector is left as it is: zero, as the caller made it. */
WIDEST void NAMED(winograd_weights, REAL)(const REAL *weights, REAL *transformed, int64_t deep, int64_t wide) {
    int64_t vectors = (wide + LANES - 1) / LANES, apart = deep * vectors * LANES, matrix = deep * wide;
    for (int64_t v = 0, width; v < vectors; v += width) {
        width = panel(vectors - v);
        int64_t first = v * LANES, columns = width * LANES < wide - first ? width * LANES : wide - first;
        for (int64_t k = 0; k < deep; k++) {
            REAL half[18][3 * 8];
            const REAL *from = weights + k * wide + first;
            REAL *into = transformed + first * deep + k * width * LANES;
            for (int64_t j = 0; j < 3; j++)
                for (int64_t n = 0; n < columns; n++) {
                    REAL a = from[j * matrix + n], b = from[(3 + j) * matrix + n], c = from[(6 + j) * matrix + n];
#define TO(row, value) half[3 * row + j][n] = value;
                    WEIGHTS(TO, a, b, c)
#undef TO
                }
            for (int64_t i = 0; i < 6; i++)
                for (int64_t n = 0; n < columns; n++) {
                    REAL a = half[3 * i][n], b = half[3 * i + 1][n], c = half[3 * i + 2][n];
#define TO(column, value) into[(6 * i + column) * apart + n] = value;
                    WEIGHTS(TO, a, b, c)
#undef TO
                }
        }
    }
}

/* LANES channels of a tile, from 36 pixels to 36 matrices. */
INLINE void NAMED(into, REAL)(const REAL *const *pixels, int64_t channel, REAL *to, int64_t apart) {
    VEC half[36];
    for (int j = 0; j < 6; j++) {
#define PIXEL(row) AT(pixels[6 * row + j] + channel)
        VEC a = PIXEL(0), b = PIXEL(1), c = PIXEL(2), d = PIXEL(3), e = PIXEL(4), f = PIXEL(5);
#define TO(row, value) half[6 * row + j] = value;
        INPUTS(TO, a, b, c, d, e, f)
#undef TO
#undef PIXEL
    }
    for (int i = 0; i < 6; i++) {
        const VEC *h = half + 6 * i;
#define TO(column, value) AT(to + (6 * i + column) * apart + channel) = value;
        INPUTS(TO, h[0], h[1], h[2], h[3], h[4], h[5])
#undef TO
    }
}

/* And back, to 16 pixels. */
INLINE void NAMED(out_of, REAL)(const REAL *from, int64_t apart, int64_t channel, const REAL *bias, REAL *const *pixels) {
    VEC half[24], offset = bias ? AT(bias + channel) : (VEC){0};
    for (int j = 0; j < 6; j++) {
#define MATRIX(row) AT(from + (6 * row + j) * apart + channel)
        VEC a = MATRIX(0), b = MATRIX(1), c = MATRIX(2), d = MATRIX(3), e = MATRIX(4), f = MATRIX(5);
#define TO(row, value) half[6 * row + j] = value;
        OUTPUTS(TO, a, b, c, d, e, f)
#undef TO
#undef MATRIX
    }
    for (int i = 0; i < 4; i++) {
        const VEC *h = half + 6 * i;
#define TO(column, value) AT(pixels[4 * i + column] + channel) = (value) + offset;
        OUTPUTS(TO, h[0], h[1], h[2], h[3], h[4], h[5])
#undef TO
    }
}

/* Some rows of a product, from `t` on, with one panel. */
#define ROWS_TIMES(rows, width)                                                                     \
    {                                                                                               \
        VEC sum[rows][width];                                                                       \
        for (int r = 0; r < rows; r++)                                                              \
            for (int w = 0; w < width; w++) sum[r][w] = (VEC){0};                                   \
        for (int64_t k = 0; k < deep; k++)                                                          \
            for (int r = 0; r < rows; r++)                                                          \
                for (int w = 0; w < width; w++)                                                     \
                    sum[r][w] += left[(t + r) * deep + k] * AT(right + (k * width + w) * LANES);    \
        for (int r = 0; r < rows; r++)                                                              \
            for (int w = 0; w < width; w++) AT(product + (t + r) * apart + w * LANES) = sum[r][w];  \
        t += rows;                                                                                  \
    }

INLINE void NAMED(times, REAL)(const REAL *restrict left, const REAL *restrict right, REAL *restrict product,
                               int64_t tiles, int64_t deep, int64_t apart, int64_t width) {
    int64_t t = 0;
    if (width == 3) {
        while (t + 4 <= tiles) ROWS_TIMES(4, 3)
        while (t < tiles) ROWS_TIMES(1, 3)
    } else if (width == 2) {
        while (t + 6 <= tiles) ROWS_TIMES(6, 2)
        while (t + 4 <= tiles) ROWS_TIMES(4, 2)
        while (t < tiles) ROWS_TIMES(1, 2)
    } else {
        while (t + 6 <= tiles) ROWS_TIMES(6, 1)
        while (t < tiles) ROWS_TIMES(1, 1)
    }
}

/* y from x and transformed weights; `bias` may be NULL. Both numbers of channels fill a vector at least: the last vector
 * begins earlier if it has to, and does some channels twice. `work` has deep + wide + 36 * block * (deep + what wide
 * becomes in whole vectors) numbers; `block` tiles at a time stay in the cache. */
WIDEST void NAMED(winograd, REAL)(const REAL *x, const REAL *transformed, const REAL *bias, REAL *y, REAL *work,
                                  int64_t images, int64_t height, int64_t width, int64_t deep, int64_t wide,
                                  int64_t block) {
    int64_t vectors = (wide + LANES - 1) / LANES, padded = vectors * LANES;
    int64_t down = (height + 3) / 4, across = (width + 3) / 4, tiles = images * down * across;
    REAL *border = work, *beyond = border + deep, *left = beyond + wide, *product = left + 36 * block * deep;
    memset(border, 0, deep * sizeof(REAL));
    for (int64_t first = 0; first < tiles; first += block) {
        int64_t many = tiles - first < block ? tiles - first : block;
        for (int64_t t = 0; t < many; t++) {
            int64_t image = (first + t) / (down * across), top = (first + t) / across % down * 4 - 1;
            int64_t side = (first + t) % across * 4 - 1;
            const REAL *pixels[36];
            for (int64_t i = 0; i < 6; i++)
                for (int64_t j = 0; j < 6; j++) {
                    int64_t r = top + i, s = side + j;
                    int inside = r >= 0 && s >= 0 && r < height && s < width;
                    pixels[6 * i + j] = inside ? x + ((image * height + r) * width + s) * deep : border;
                }
            for (int64_t c = 0; c < deep; c += LANES)
                NAMED(into, REAL)(pixels, c + LANES <= deep ? c : deep - LANES, left + t * deep, many * deep);
        }
        for (int64_t p = 0; p < 36; p++)
            for (int64_t v = 0, w; v < vectors; v += w) {
                w = panel(vectors - v);
                const REAL *right = transformed + (p * padded + v * LANES) * deep;
                REAL *to = product + p * many * padded + v * LANES;
                NAMED(times, REAL)(left + p * many * deep, right, to, many, deep, padded, w);
            }
        for (int64_t t = 0; t < many; t++) {
            int64_t image = (first + t) / (down * across), top = (first + t) / across % down * 4;
            int64_t side = (first + t) % across * 4;
            REAL *pixels[16];
            for (int64_t i = 0; i < 4; i++)
                for (int64_t j = 0; j < 4; j++) {
                    int64_t r = top + i, s = side + j;
                    pixels[4 * i + j] = r < height && s < width ? y + ((image * height + r) * width + s) * wide : beyond;
                }
            for (int64_t c = 0; c < wide; c += LANES) {
                int64_t channel = c + LANES <= wide ? c : wide - LANES;
                NAMED(out_of, REAL)(product + t * padded, many * padded, channel, bias, pixels);
            }
        }
    }
}

#undef VEC
#undef AT
#undef LANES
#undef WEIGHTS
#undef INPUTS
#undef OUTPUTS
#undef ROWS_TIMES

#endif
