/* The rotated fold of fold.py for one parameter on a CPU, with its squared norm from the same pass.

   The work is done in blocks of 128 columns. A block that the gradient fills only in part, or whose numbers are not
   float32, is first widened into a buffer of zeros, so that the same branchless loops serve every case.

   Python finds these functions by name: a changed signature needs a changed name. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef EACH_CPU
#define EACH_CPU
#endif

/* Inlined by force: only what is inlined into a clone is compiled for that clone's instructions. */
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16, BLOCK = 8 * LANES, LINE = 64, AHEAD = 2048 };

typedef struct {
    int32_t rotation, offset, sign;
} row_t;

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE float widen_f32(float x) { return x; }

INLINE float widen_bf16(uint16_t x) { return float_of((uint32_t)x << 16); }

INLINE float widen_f16(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = (uint32_t)(x & 0x7FFF) << 13;
    uint32_t finite = magnitude + (112u << 23), infinite = magnitude + (224u << 23);
    /* A product with 2^112 would lose subnormals where torch was told to flush them. */
    uint32_t subnormal = bits_of(float_of(magnitude + (113u << 23)) - float_of(113u << 23));
    uint32_t wide = magnitude < (1u << 23) ? subnormal : magnitude < (31u << 23) ? finite : infinite;
    return float_of(wide | sign);
}

INLINE void fold_block(const float *restrict x, const uint32_t *restrict words, uint32_t sign, float *restrict target) {
    for (int group = 0; group < BLOCK; group += LANES) {
        uint32_t word = words[group / LANES];
/* Unrolled, GCC would vectorise over groups instead of lanes, which is four times slower. */
#pragma GCC unroll 1
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t flip = ((word << (31 - lane)) ^ sign) & 0x80000000u;
            target[group + lane] += float_of(bits_of(x[group + lane]) ^ flip);
        }
    }
}

/* Eight squares to a float32 sum, the rest in float64: long float32 sums of equal numbers drift by 1e-6 and more. */
INLINE void square_block(const float *restrict x, double *restrict total) {
    for (int lane = 0; lane < LANES; lane++) {
        float sum = 0;
        for (int group = 0; group < BLOCK; group += LANES) sum += x[group + lane] * x[group + lane];
        total[lane] += sum;
    }
}

INLINE double sum_of(const double *total) {
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += total[lane];
    return sum;
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* `load` gives the numbers of one block as float32, zeros where the gradient does not reach.
   `fold` fetches ahead into the second-level cache: without it, gradients beyond the caches take 1.6 times as long. */
#define DEFINE(suffix, number)                                                                                         \
    INLINE const float *load_##suffix(const number *x, int64_t begin, int64_t end, float *buffer) {                    \
        int whole = end - begin == BLOCK;                                                                              \
        if (whole && sizeof *x == sizeof *buffer) return (const float *)x;                                             \
        if (whole)                                                                                                     \
            for (int i = 0; i < BLOCK; i++) buffer[i] = widen_##suffix(x[i]);                                          \
        else {                                                                                                         \
            memset(buffer, 0, BLOCK * sizeof *buffer);                                                                 \
            for (int64_t i = begin; i < end; i++) buffer[i] = widen_##suffix(*x++);                                    \
        }                                                                                                              \
        return buffer;                                                                                                 \
    }                                                                                                                  \
                                                                                                                       \
    EACH_CPU double unisono_fold_##suffix(const number *x, int64_t elements, int64_t start, int64_t length,            \
                                          const row_t *row, const uint32_t *words, float *accumulator) {               \
        float buffer[BLOCK];                                                                                           \
        double total[LANES] = {0};                                                                                     \
        row += start / length;                                                                                         \
        for (int64_t column = start % length; elements > 0; column = 0, row++) {                                       \
            int64_t end = least(length, column + elements);                                                            \
            elements -= end - column;                                                                                  \
            while (column < end) {                                                                                     \
                int64_t block = column - column % BLOCK, stop = least(block + BLOCK, end);                             \
                const float *wide = load_##suffix(x, column - block, stop - block, buffer);                            \
                for (int i = 0; i < BLOCK; i += LINE / (int)sizeof *x) __builtin_prefetch(x + AHEAD + i, 0, 2);        \
                fold_block(wide, words + (row->offset + block) / LANES, (uint32_t)row->sign,                           \
                           accumulator + row->rotation + block);                                                       \
                square_block(wide, total);                                                                             \
                x += stop - column;                                                                                    \
                column = stop;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        return sum_of(total);                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    EACH_CPU double unisono_square_##suffix(const number *x, int64_t elements) {                                       \
        float buffer[BLOCK];                                                                                           \
        double total[LANES] = {0};                                                                                     \
        for (int64_t at = 0; at < elements; at += BLOCK)                                                               \
            square_block(load_##suffix(x + at, 0, least(BLOCK, elements - at), buffer), total);                        \
        return sum_of(total);                                                                                          \
    }

DEFINE(f32, float)
DEFINE(bf16, uint16_t)
DEFINE(f16, uint16_t)

/* The weighted sum of words of fingerprints.py: of word * column factor * row factor, in integers modulo 2^64.

   A factor comes as lower + 2^32 * upper, both with sign: vectors have a product of 32-bit integers with 64 bits, for
   the lower half, and one with 32 bits, which is all that is left of the upper one, but none of 64-bit integers. */

enum { STRETCH = 256, ROW_BYTES = 4 * 65536 };

/* Tensors of bytes may begin anywhere. */
typedef int32_t word_t __attribute__((aligned(1), may_alias));

INLINE uint64_t stretch_sum(const word_t *restrict word, int64_t count, const int32_t *restrict lower,
                            const int32_t *restrict upper) {
    uint64_t low = 0;
    uint32_t high = 0;
    for (int64_t i = 0; i < count; i++) {
        low += (uint64_t)((int64_t)word[i] * lower[i]);
        high += (uint32_t)word[i] * (uint32_t)upper[i];
    }
    return low + ((uint64_t)high << 32);
}

/* Fetches ahead as `fold` does, and for the same reason. */
EACH_CPU static uint64_t row_sum(const word_t *word, int64_t count, const int32_t *lower, const int32_t *upper) {
    uint64_t sum = 0;
    int64_t at = 0;
    for (; at + STRETCH <= count; at += STRETCH) {
        for (int i = 0; i < STRETCH; i += LINE / (int)sizeof *word) __builtin_prefetch(word + at + AHEAD + i, 0, 2);
        sum += stretch_sum(word + at, STRETCH, lower + at, upper + at);
    }
    return sum + stretch_sum(word + at, count - at, lower + at, upper + at);
}

/* The bytes after the last whole word are read as one, with zeros behind them. */
int64_t unisono_fingerprint(const char *bytes, int64_t count, const int32_t *lower, const int32_t *upper,
                            const int64_t *row) {
    uint64_t total = 0;
    for (int64_t at = 0; at < count; at += ROW_BYTES, row++) {
        int64_t words = least(ROW_BYTES, count - at) / 4, rest = least(ROW_BYTES, count - at) % 4;
        uint64_t sum = row_sum((const word_t *)(bytes + at), words, lower, upper);
        if (rest) {
            word_t last = 0;
            memcpy(&last, bytes + at + 4 * words, (size_t)rest);
            sum += row_sum(&last, 1, lower + words, upper + words);
        }
        total += sum * (uint64_t)*row;
    }
    return (int64_t)total;
}
