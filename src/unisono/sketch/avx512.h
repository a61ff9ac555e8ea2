/* A block of fold.c with AVX-512: sixteen numbers at a time, with a word of signs as the mask that flips them.

   Included where a CPU may have it; nothing here runs unless it has. */

#include <immintrin.h>

AVX512 INLINE __m512 load_f32(const float *x) { return _mm512_loadu_ps(x); }

AVX512 INLINE __m512 load_bf16(const uint16_t *x) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

AVX512 INLINE __m512 load_f16(const uint16_t *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }

AVX512 INLINE void fold_avx512(__m512 x, uint32_t word, float *target) {
    __m512i bits = _mm512_castps_si512(x), sign = _mm512_set1_epi32(INT32_MIN);
    bits = _mm512_mask_xor_epi32(bits, (__mmask16)word, bits, sign);
    _mm512_storeu_ps(target, _mm512_add_ps(_mm512_loadu_ps(target), _mm512_castsi512_ps(bits)));
}

AVX512 INLINE void add_avx512(__m512 sum, double *total) {
    __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sum), 1));
    __m512d lower_total = _mm512_add_pd(_mm512_loadu_pd(total), _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
    _mm512_storeu_pd(total, lower_total);
    _mm512_storeu_pd(total + 8, _mm512_add_pd(_mm512_loadu_pd(total + 8), _mm512_cvtps_pd(upper)));
}

#define BLOCK_IN_AVX512(suffix, number)                                                                                \
    AVX512 INLINE void block_##suffix##_avx512(const number *x, const uint32_t *words, uint32_t flip, float *target,   \
                                               double *total) {                                                        \
        __m512 even = _mm512_setzero_ps(), odd = even;                                                                 \
        for (int i = 0; target && i < BLOCK * (int)sizeof *x; i += LINE) FETCH(x, EARLY + i);                          \
        for (int i = 0; i < BLOCK; i += 2 * LANES) {                                                                   \
            __m512 first = load_##suffix(x + i), second = load_##suffix(x + i + LANES);                                \
            even = _mm512_fmadd_ps(first, first, even);                                                                \
            odd = _mm512_fmadd_ps(second, second, odd);                                                                \
            if (!target) continue;                                                                                     \
            for (int j = 0; j < 2 * LANES * (int)sizeof *x; j += LINE) FETCH(x + i, AGAIN + j);                        \
            fold_avx512(first, words[i / LANES] ^ flip, target + i);                                                   \
            fold_avx512(second, words[i / LANES + 1] ^ flip, target + i + LANES);                                      \
        }                                                                                                              \
        add_avx512(_mm512_add_ps(even, odd), total);                                                                   \
    }
