/* Convolutions of 3 x 3 with a border of one, by minimal filtering (Winograd; Lavin and Gray, 2016).
 *
 * A tile of 4 x 4 outputs depends on 6 x 6 inputs. With three fixed matrices, Y = A' [(G w G') * (B' X B)] A needs 36
 * products for each pair of channels, where the sums as they stand need 144. So each tile is transformed, the 36 numbers
 * of all tiles are multiplied with those of the weights, one matrix product over channels for each, and transformed back.
 * The gradient of the weights is that of this formula: G' [sum over tiles of (B' X B) * (A Y' A')] G for gradients Y' of
 * the outputs, so 36 products again. In single precision, results are within 3e-5 of the largest, and
 * those gradients within 1e-4; direct sums are more accurate.
 *
 * Arrays are ordered by image, pixel and channel. Included for float and double, and again for both with vectors of 64 bytes
 * if the compiler can make functions for processors that have them (AVX-512). Vectors are written out, as the whole gain
 * depends on sums staying in registers: this needs GCC or Clang.
 */
#ifndef REAL

#include <stdint.h>
#include <string.h>

/* As in _kernels.c: one binary for every x86 processor. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define WIDE __attribute__((target_clones("arch=x86-64-v3", "default")))
/* Features, not an architecture, which would take away those that the command line names. */
#define WIDEST __attribute__((target("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))
#define HAS_WIDE __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
#define HAS_WIDEST                                                                                                   \
    __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") && \
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
#elif defined(__AVX2__) && defined(__FMA__)
#define WIDE
#define HAS_WIDE 1
#else
#define WIDE
#define HAS_WIDE 0
#endif
#ifndef HAS_WIDEST
#define HAS_WIDEST 0
#endif
#define INLINE static inline __attribute__((always_inline))
#define JOIN(name, type, bytes) name##_##type##_##bytes
#define NAMED_(name, type, bytes) JOIN(name, type, bytes)
#define NAMED(name) NAMED_(name, REAL, BYTES)

/* Bytes of the widest vectors that this processor has and there are functions for; 0 if it has none that make it worth
 * while, as far as was measured. */
int64_t winograd_bytes(void) { return !(HAS_WIDE) ? 0 : HAS_WIDEST ? 64 : 32; }

/* Transformed weights are read once, in order, and are too many for the near caches; by itself, the processor looks ahead
 * within a page of 4096 bytes only, and layers of many channels would wait for them. */
#define FETCH(pointer) __builtin_prefetch((const char *)(pointer) + 8192, 0, 2)

/* Columns of a product are taken two or three vectors at a time, for as many sums as there are registers. */
INLINE int64_t panel(int64_t vectors_left) { return vectors_left == 1 ? 1 : vectors_left % 2 ? 3 : 2; }

#define BYTES 32
#define FOR_ALL WIDE
#define REAL float
#include "_winograd.c"
#undef REAL
#define REAL double
#include "_winograd.c"
#undef REAL
#undef BYTES
#undef FOR_ALL

#ifdef WIDEST
#define BYTES 64
#define FOR_ALL WIDEST
#define REAL float
#include "_winograd.c"
#undef REAL
#define REAL double
#include "_winograd.c"
#endif

#else

typedef REAL NAMED(vec) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define VEC NAMED(vec)
typedef REAL NAMED(local) __attribute__((vector_size(BYTES))); /* on the stack, where it can be aligned */
#define LOCAL NAMED(local)
#define AT(pointer) (*(VEC *)(pointer))
#define LANES ((int64_t)(BYTES / sizeof(REAL)))

/* Numbers from one of 36 matrices to the next. They are written side by side, so their rows must not be a multiple of a page
 * apart, which would put all of them into one line of the cache. */
#define APART(rows, vectors) (((rows) * (vectors) + 3) * LANES)

/* G times three numbers, B' times six, A' times six; for gradients of weights A times four and G' times six. */
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
#define CHANGES(to, a, b, c, d)               \
    to(0, a)                                  \
    to(1, (a + c) + (b + d))                  \
    to(2, (a + c) - (b + d))                  \
    to(3, (a + 4 * c) + (2 * b + 8 * d))      \
    to(4, (a + 4 * c) - (2 * b + 8 * d))      \
    to(5, d)
#define WEIGHTS_BACK(to, a, b, c, d, e, f)    \
    to(0, a / 4 - (b + c) / 6 + (d + e) / 24) \
    to(1, (c - b) / 6 + (d - e) / 12)         \
    to(2, (d + e - b - c) / 6 + f)

/* Weights to 36 matrices of `deep` rows, each cut into panels of columns; what fills up the last vector is zero. A weight's
 * neighbours are `down` and `across` apart in its kernel, those of the next row and column `row` and `column`. */
FOR_ALL void NAMED(winograd_weights)(const REAL *weights, REAL *transformed, int64_t deep, int64_t wide, int64_t down,
                                          int64_t across, int64_t row, int64_t column, int64_t rotated) {
    int64_t vectors = (wide + LANES - 1) / LANES, apart = APART(deep, vectors);
    if (rotated) weights += 2 * down + 2 * across, down = -down, across = -across;
    for (int64_t v = 0, width; v < vectors; v += width) {
        width = panel(vectors - v);
        int64_t first = v * LANES, columns = width * LANES < wide - first ? width * LANES : wide - first;
        REAL kernel[9][3 * LANES] = {0}, half[18][3 * LANES];
        for (int64_t k = 0; k < deep; k++) {
            const REAL *from = weights + k * row + first * column;
            REAL *into = transformed + first * deep + k * width * LANES;
            for (int64_t n = 0; n < columns; n++)
                for (int64_t i = 0; i < 9; i++) kernel[i][n] = from[i / 3 * down + i % 3 * across + n * column];
            for (int64_t n = 0; n < width * LANES; n += LANES) {
                for (int64_t j = 0; j < 3; j++) {
                    VEC a = AT(kernel[j] + n), b = AT(kernel[3 + j] + n), c = AT(kernel[6 + j] + n);
#define TO(row, value) AT(half[3 * row + j] + n) = value;
                    WEIGHTS(TO, a, b, c)
#undef TO
                }
                for (int64_t i = 0; i < 6; i++) {
                    VEC a = AT(half[3 * i] + n), b = AT(half[3 * i + 1] + n), c = AT(half[3 * i + 2] + n);
#define TO(column, value) AT(into + (6 * i + column) * apart + n) = value;
                    WEIGHTS(TO, a, b, c)
#undef TO
                }
            }
        }
    }
}

/* LANES channels of a tile, from 36 pixels to 36 matrices. */
INLINE void NAMED(into)(const REAL *const *pixels, int64_t channel, REAL *to, int64_t apart) {
    LOCAL half[36];
    for (int j = 0; j < 6; j++) {
#define PIXEL(row) AT(pixels[6 * row + j] + channel)
        VEC a = PIXEL(0), b = PIXEL(1), c = PIXEL(2), d = PIXEL(3), e = PIXEL(4), f = PIXEL(5);
#define TO(row, value) half[6 * row + j] = value;
        INPUTS(TO, a, b, c, d, e, f)
#undef TO
#undef PIXEL
    }
    for (int i = 0; i < 6; i++) {
        const LOCAL *h = half + 6 * i;
#define TO(column, value) AT(to + (6 * i + column) * apart + channel) = value;
        INPUTS(TO, h[0], h[1], h[2], h[3], h[4], h[5])
#undef TO
    }
}

/* And back, to 16 pixels. */
INLINE void NAMED(out_of)(const REAL *from, int64_t apart, int64_t channel, const REAL *bias, REAL *const *pixels) {
    LOCAL half[24], offset = bias ? (LOCAL)AT(bias + channel) : (LOCAL){0};
    for (int j = 0; j < 6; j++) {
#define MATRIX(row) AT(from + (6 * row + j) * apart + channel)
        VEC a = MATRIX(0), b = MATRIX(1), c = MATRIX(2), d = MATRIX(3), e = MATRIX(4), f = MATRIX(5);
#define TO(row, value) half[6 * row + j] = value;
        OUTPUTS(TO, a, b, c, d, e, f)
#undef TO
#undef MATRIX
    }
    for (int i = 0; i < 4; i++) {
        const LOCAL *h = half + 6 * i;
#define TO(column, value) AT(pixels[4 * i + column] + channel) = (value) + offset;
        OUTPUTS(TO, h[0], h[1], h[2], h[3], h[4], h[5])
#undef TO
    }
}

/* Gradients of 16 outputs, from pixels to 36 matrices. */
INLINE void NAMED(changes_into)(const REAL *const *pixels, int64_t channel, REAL *to, int64_t apart) {
    LOCAL half[24];
    for (int j = 0; j < 4; j++) {
#define PIXEL(row) AT(pixels[4 * row + j] + channel)
        VEC a = PIXEL(0), b = PIXEL(1), c = PIXEL(2), d = PIXEL(3);
#define TO(row, value) half[4 * row + j] = value;
        CHANGES(TO, a, b, c, d)
#undef TO
#undef PIXEL
    }
    for (int i = 0; i < 6; i++) {
        const LOCAL *h = half + 4 * i;
#define TO(column, value) AT(to + (6 * i + column) * apart + channel) = value;
        CHANGES(TO, h[0], h[1], h[2], h[3])
#undef TO
    }
}

/* Some rows of a product, from `t` on, with one panel, or what they add to it. */
#define ROWS_TIMES(rows, width)                                                                                       \
    {                                                                                                                 \
        VEC sum[rows][width];                                                                                         \
        for (int r = 0; r < rows; r++)                                                                                \
            for (int w = 0; w < width; w++) sum[r][w] = add ? AT(product + (t + r) * apart + w * LANES) : (VEC){0};   \
        for (int64_t k = 0; k < deep; k++) {                                                                          \
            for (int w = 0; w < width; w++) FETCH(right + k * further + w * LANES);                                   \
            for (int r = 0; r < rows; r++)                                                                            \
                for (int w = 0; w < width; w++)                                                                       \
                    sum[r][w] += left[(t + r) * down + k * across] * AT(right + k * further + w * LANES);             \
        }                                                                                                             \
        for (int r = 0; r < rows; r++)                                                                                \
            for (int w = 0; w < width; w++) AT(product + (t + r) * apart + w * LANES) = sum[r][w];                    \
        t += rows;                                                                                                    \
    }

/* `many` rows of `left`, which are `down` apart and whose `deep` numbers are `across` apart, times a panel of `width`
 * vectors, whose rows are `further` apart. */
INLINE void NAMED(times)(const REAL *restrict left, const REAL *restrict right, REAL *restrict product,
                               int64_t many, int64_t deep, int64_t down, int64_t across, int64_t further, int64_t apart,
                               int64_t width, int add) {
    int64_t t = 0;
    if (width == 3) {
#if BYTES == 64 /* which come with twice as many registers */
        while (t + 8 <= many) ROWS_TIMES(8, 3)
#endif
        while (t + 4 <= many) ROWS_TIMES(4, 3)
        while (t < many) ROWS_TIMES(1, 3)
    } else if (width == 2) {
#if BYTES == 64
        while (t + 12 <= many) ROWS_TIMES(12, 2)
        while (t + 10 <= many) ROWS_TIMES(10, 2)
        while (t + 8 <= many) ROWS_TIMES(8, 2)
#endif
        while (t + 6 <= many) ROWS_TIMES(6, 2)
        while (t + 4 <= many) ROWS_TIMES(4, 2)
        while (t < many) ROWS_TIMES(1, 2)
    } else {
        while (t + 6 <= many) ROWS_TIMES(6, 1)
        while (t < many) ROWS_TIMES(1, 1)
    }
}

/* Where the pixels of a tile are, `size` in each direction from (top, side) on; `outside` for those past the border. */
INLINE void NAMED(find)(const REAL **pixels, const REAL *image, int64_t size, int64_t top, int64_t side,
                              int64_t height, int64_t width, int64_t channels, const REAL *outside) {
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < size; j++) {
            int64_t r = top + i, s = side + j;
            int inside = r >= 0 && s >= 0 && r < height && s < width;
            pixels[size * i + j] = inside ? image + (r * width + s) * channels : outside;
        }
}

/* y from x and transformed weights; `bias` may be NULL. Both numbers of channels fill a vector at least: the last vector
 * begins earlier if it has to, and does some channels twice. `work` has deep + wide + 36 * block * (deep + what wide
 * becomes in whole vectors) numbers; `block` tiles at a time stay in the cache. */
FOR_ALL void NAMED(winograd)(const REAL *x, const REAL *transformed, const REAL *bias, REAL *y, REAL *work,
                                  int64_t images, int64_t height, int64_t width, int64_t deep, int64_t wide,
                                  int64_t block) {
    int64_t vectors = (wide + LANES - 1) / LANES, padded = vectors * LANES;
    int64_t down = (height + 3) / 4, across = (width + 3) / 4, tiles = images * down * across;
    REAL *border = work, *beyond = border + deep, *left = beyond + wide, *product = left + 36 * block * deep;
    memset(border, 0, deep * sizeof(REAL));
    for (int64_t first = 0; first < tiles; first += block) {
        int64_t many = tiles - first < block ? tiles - first : block;
        for (int64_t t = 0; t < many; t++) {
            int64_t tile = first + t, top = tile / across % down * 4, side = tile % across * 4;
            const REAL *image = x + tile / (down * across) * height * width * deep, *pixels[36];
            NAMED(find)(pixels, image, 6, top - 1, side - 1, height, width, deep, border);
            for (int64_t c = 0; c < deep; c += LANES)
                NAMED(into)(pixels, c + LANES <= deep ? c : deep - LANES, left + t * deep, many * deep);
        }
        for (int64_t p = 0; p < 36; p++)
            for (int64_t v = 0, w; v < vectors; v += w) {
                w = panel(vectors - v);
                const REAL *right = transformed + p * APART(deep, vectors) + v * LANES * deep;
                REAL *to = product + p * many * padded + v * LANES;
                NAMED(times)(left + p * many * deep, right, to, many, deep, deep, 1, w * LANES, padded, w, 0);
            }
        for (int64_t t = 0; t < many; t++) {
            int64_t tile = first + t, top = tile / across % down * 4, side = tile % across * 4;
            const REAL *image = y + tile / (down * across) * height * width * wide, *pixels[16];
            NAMED(find)(pixels, image, 4, top, side, height, width, wide, beyond);
            for (int64_t c = 0; c < wide; c += LANES) {
                int64_t channel = c + LANES <= wide ? c : wide - LANES;
                NAMED(out_of)(product + t * padded, many * padded, channel, bias, (REAL *const *)pixels);
            }
        }
    }
}

/* The gradient of the weights, as 9 matrices of `deep` rows and `wide` columns, from x and the gradients of y. `work` has
 * deep + wide + 36 * (block * (deep + padded) + APART) numbers, padded being what wide is in whole vectors. */
FOR_ALL void NAMED(winograd_gradient)(const REAL *x, const REAL *y, REAL *gradient, REAL *work, int64_t images,
                                           int64_t height, int64_t width, int64_t deep, int64_t wide, int64_t block) {
    int64_t vectors = (wide + LANES - 1) / LANES, padded = vectors * LANES;
    int64_t down = (height + 3) / 4, across = (width + 3) / 4, tiles = images * down * across;
    int64_t apart = APART(deep, vectors);
    REAL *border = work, *left = border + deep + wide, *right = left + 36 * block * deep;
    REAL *product = right + 36 * block * padded;
    memset(border, 0, (deep + wide) * sizeof(REAL));
    memset(right, 0, 36 * block * padded * sizeof(REAL)); /* for the columns that fill up the last vector */
    for (int64_t first = 0; first < tiles; first += block) {
        int64_t many = tiles - first < block ? tiles - first : block;
        for (int64_t t = 0; t < many; t++) {
            int64_t tile = first + t, top = tile / across % down * 4, side = tile % across * 4;
            int64_t image = tile / (down * across) * height * width;
            const REAL *pixels[36];
            NAMED(find)(pixels, x + image * deep, 6, top - 1, side - 1, height, width, deep, border);
            for (int64_t c = 0; c < deep; c += LANES)
                NAMED(into)(pixels, c + LANES <= deep ? c : deep - LANES, left + t * deep, block * deep);
            NAMED(find)(pixels, y + image * wide, 4, top, side, height, width, wide, border);
            for (int64_t c = 0; c < wide; c += LANES)
                NAMED(changes_into)(pixels, c + LANES <= wide ? c : wide - LANES, right + t * padded, block * padded);
        }
        for (int64_t p = 0; p < 36; p++)
            for (int64_t v = 0, w; v < vectors; v += w) {
                w = panel(vectors - v);
                const REAL *changes = right + p * block * padded + v * LANES;
                REAL *to = product + p * apart + v * LANES;
                NAMED(times)(left + p * block * deep, changes, to, deep, many, 1, deep, padded, padded, w, first > 0);
            }
    }
    for (int64_t k = 0; k < deep; k++)
        for (int64_t c = 0; c < wide; c += LANES) {
            int64_t channel = c + LANES <= wide ? c : wide - LANES;
            const REAL *from = product + k * padded + channel;
            REAL *to = gradient + k * wide + channel;
            LOCAL half[18];
            for (int j = 0; j < 6; j++) {
#define MATRIX(row) AT(from + (6 * row + j) * apart)
                VEC a0 = MATRIX(0), a1 = MATRIX(1), a2 = MATRIX(2), a3 = MATRIX(3), a4 = MATRIX(4), a5 = MATRIX(5);
#define TO(row, value) half[6 * row + j] = value;
                WEIGHTS_BACK(TO, a0, a1, a2, a3, a4, a5)
#undef TO
#undef MATRIX
            }
            for (int i = 0; i < 3; i++) {
                const LOCAL *h = half + 6 * i;
#define TO(column, value) AT(to + (3 * i + column) * deep * wide) = value;
                WEIGHTS_BACK(TO, h[0], h[1], h[2], h[3], h[4], h[5])
#undef TO
            }
        }
}

#undef VEC
#undef LOCAL
#undef AT
#undef LANES
#undef APART
#undef WEIGHTS
#undef INPUTS
#undef OUTPUTS
#undef CHANGES
#undef WEIGHTS_BACK
#undef ROWS_TIMES

#endif
