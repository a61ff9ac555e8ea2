/* The rotated fold of fold.py for one parameter on a CPU, with its squared norm from the same pass.

   The work is done in blocks of 256 columns. A block that the gradient fills only in part is first widened into a
   buffer of zeros, so that the same branchless loops serve every case. A block is done in plain C, or where the CPU has
   it with AVX-512, whose masks apply 16 signs at once.

   Python finds these functions by name: a changed signature needs a changed name. */

#include <stdint.h>
#include <string.h>

/* PLAIN is for tests: what runs where there is no AVX-512. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#ifndef PLAIN
#define AVX512 __attribute__((target("avx512f")))
#endif
#endif
#endif
#ifndef EACH_CPU
#define EACH_CPU
#endif

/* Inlined by force: only what is inlined into a clone is compiled for that clone's instructions. */
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16, BLOCK = 16 * LANES, LINE = 64 };

/* How many bytes ahead memory is asked for, into the second-level cache. Twice, because that is faster than once: it
   seems that requests which come too fast are dropped. Into the first-level cache it would take twice as long. */
enum { EARLY = 12288, AGAIN = 4096 };

#define FETCH(pointer, bytes) __builtin_prefetch((const void *)((uintptr_t)(pointer) + (uintptr_t)(bytes)), 0, 2)

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

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Eight squares to a float32 sum, the rest in float64: long float32 sums of equal numbers drift by 1e-6 and more. */
INLINE void square_plain(const float *restrict x, double *restrict total) {
    for (int lane = 0; lane < LANES; lane++) {
        float sum = 0;
        for (int group = 0; group < 8 * LANES; group += LANES) sum += x[group + lane] * x[group + lane];
        total[lane] += sum;
    }
}

INLINE void fold_plain(const float *restrict x, const uint32_t *restrict words, uint32_t flip, float *restrict target) {
    for (int group = 0; group < BLOCK; group += LANES) {
        uint32_t word = words[group / LANES] ^ flip;
/* Unrolled, GCC would vectorise over groups instead of lanes, which is four times slower. */
#pragma GCC unroll 1
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t sign = (word << (31 - lane)) & 0x80000000u;
            target[group + lane] += float_of(bits_of(x[group + lane]) ^ sign);
        }
    }
}

/* What is done with a block: its squares, and its sum with signs unless there is no `target`. */
#define BLOCK_IN_C(suffix, number)                                                                                     \
    INLINE void block_##suffix##_plain(const number *x, const uint32_t *words, uint32_t flip, float *target,           \
                                       double *total) {                                                                \
        float buffer[BLOCK];                                                                                           \
        const float *wide = sizeof *x == sizeof *buffer ? (const float *)x : buffer;                                   \
        for (int i = 0; wide == buffer && i < BLOCK; i++) buffer[i] = widen_##suffix(x[i]);                            \
        for (int i = 0; target && i < BLOCK * (int)sizeof *x; i += LINE) FETCH(x, EARLY + i);                          \
        if (target) fold_plain(wide, words, flip, target);                                                             \
        for (int i = 0; i < BLOCK; i += 8 * LANES) square_plain(wide + i, total);                                      \
    }

#ifdef AVX512
#include "avx512.h"
#endif

INLINE double sum_of(const double *total) {
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += total[lane];
    return sum;
}

#include "parts.h"

/* `kind` is how a block is done. */
#define PASSES(suffix, number, kind, cpu)                                                                              \
    cpu static double fold_##suffix##_##kind(const number *x, int64_t elements, int64_t start, int64_t length,         \
                                             const row_t *row, const uint32_t *words, float *accumulator) {            \
        float buffer[BLOCK];                                                                                           \
        double total[LANES] = {0};                                                                                     \
        row += start / length;                                                                                         \
        for (int64_t column = start % length; elements > 0; column = 0, row++) {                                       \
            int64_t end = least(length, column + elements);                                                            \
            uint32_t flip = row->sign < 0 ? 0xFFFF : 0;                                                                \
            elements -= end - column;                                                                                  \
            while (column < end) {                                                                                     \
                int64_t block = column - column % BLOCK, stop = least(block + BLOCK, end);                             \
                const uint32_t *word = words + (row->offset + block) / LANES;                                          \
                float *target = accumulator + row->rotation + block;                                                   \
                if (stop - column == BLOCK)                                                                            \
                    block_##suffix##_##kind(x, word, flip, target, total);                                             \
                else                                                                                                   \
                    block_f32_##kind(padded_##suffix(x, column - block, stop - block, buffer), word, flip, target,     \
                                     total);                                                                           \
                x += stop - column;                                                                                    \
                column = stop;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        return sum_of(total);                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    cpu static double square_##suffix##_##kind(const number *x, int64_t elements) {                                    \
        float buffer[BLOCK];                                                                                           \
        double total[LANES] = {0};                                                                                     \
        int64_t at = 0;                                                                                                \
        for (; at + BLOCK <= elements; at += BLOCK) block_##suffix##_##kind(x + at, 0, 0, 0, total);                   \
        if (at < elements) block_f32_##kind(padded_##suffix(x + at, 0, elements - at, buffer), 0, 0, 0, total);        \
        return sum_of(total);                                                                                          \
    }

#ifdef AVX512
#define EITHER(suffix, number)                                                                                         \
    BLOCK_IN_AVX512(suffix, number) PASSES(suffix, number, plain, EACH_CPU) PASSES(suffix, number, avx512, AVX512)
#define CHOSEN(pass) (__builtin_cpu_supports("avx512f") ? pass##_avx512 : pass##_plain)
#else
#define EITHER(suffix, number) PASSES(suffix, number, plain, EACH_CPU)
#define CHOSEN(pass) pass##_plain
#endif

/* `padded` gives the numbers of a block that is not full, zeros where the gradient does not reach. */
#define DEFINE(suffix, number)                                                                                         \
    INLINE const float *padded_##suffix(const number *x, int64_t begin, int64_t end, float *buffer) {                  \
        memset(buffer, 0, BLOCK * sizeof *buffer);                                                                     \
        for (int64_t i = begin; i < end; i++) buffer[i] = widen_##suffix(*x++);                                        \
        return buffer;                                                                                                 \
    }                                                                                                                  \
                                                                                                                       \
    BLOCK_IN_C(suffix, number)                                                                                         \
    EITHER(suffix, number)                                                                                             \
                                                                                                                       \
    static void *fold_part_##suffix(void *part) {                                                                      \
        part_t *p = part;                                                                                              \
        const number *x = (const number *)p->x;                                                                        \
        p->square = CHOSEN(fold_##suffix)(x, p->elements, p->start, p->length, p->row, p->words, p->accumulator);      \
        return 0;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static void *square_part_##suffix(void *part) {                                                                    \
        part_t *p = part;                                                                                              \
        p->square = CHOSEN(square_##suffix)((const number *)p->x, p->elements);                                        \
        return 0;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    double unisono_fold_in_parts_##suffix(const number *x, int64_t elements, int64_t start, int64_t length,            \
                                          const row_t *row, const uint32_t *words, float *accumulator,                 \
                                          int64_t parts) {                                                             \
        part_t whole = {(const char *)x, elements, start, length, row, words, accumulator, 0};                         \
        return in_parts(fold_part_##suffix, whole, sizeof *x, parts);                                                  \
    }                                                                                                                  \
                                                                                                                       \
    double unisono_square_in_parts_##suffix(const number *x, int64_t elements, int64_t parts) {                        \
        part_t whole = {(const char *)x, elements, 0, BLOCK, 0, 0, 0, 0};                                              \
        return in_parts(square_part_##suffix, whole, sizeof *x, parts);                                                \
    }

DEFINE(f32, float)
DEFINE(bf16, uint16_t)
DEFINE(f16, uint16_t)

/* The weighted sum of words of fingerprint/exact.py: of word * column factor * row factor, in integers modulo 2^64.

   A factor comes as lower + 2^32 * upper, both with sign: vectors have a product of 32-bit integers with 64 bits, for
   the lower half, and one with 32 bits, which is all that is left of the upper one, but none of 64-bit integers. */

enum { STRETCH = 256, AHEAD = 2048, ROW_BYTES = 4 * 65536 };

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
