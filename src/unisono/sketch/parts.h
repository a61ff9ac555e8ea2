/* A pass over many numbers in parts, each on a thread of its own.

   A thread lives only for its part, which takes far longer than to start one: so there is nothing that a forked
   process would miss or that would have to be ended, and nobody waits for Python's lock. */

#include <pthread.h>
#include <stdlib.h>

enum { MOST_PARTS = 4 };

typedef struct {
    const char *x;
    int64_t elements, start, length;
    const row_t *row;
    const uint32_t *words;
    float *accumulator;
    double square;
} part_t;

/* Where a part begins: with a row if the whole does. */
INLINE int64_t cut(const part_t *whole, int64_t index, int64_t parts) {
    int64_t rows = (whole->elements + whole->length - 1) / whole->length;
    return least(rows * index / parts * whole->length, whole->elements);
}

INLINE part_t part_of(part_t whole, int64_t size, int64_t index, int64_t parts) {
    int64_t begin = cut(&whole, index, parts), end = cut(&whole, index + 1, parts);
    whole.x += size * begin;
    whole.start += begin;
    whole.elements = end - begin;
    return whole;
}

/* Adds up in one order whichever thread ends first. A part that cannot have a thread is done by the caller. */
static double in_parts(void *(*pass)(void *), part_t whole, size_t size, int64_t parts) {
    part_t part[MOST_PARTS];
    pthread_t thread[MOST_PARTS];
    int started[MOST_PARTS] = {0};
    float *sums = 0;
    int64_t width = 2 * whole.length;
    parts = least(parts, MOST_PARTS);
    if (parts > 1 && whole.accumulator) sums = calloc((size_t)((parts - 1) * width), sizeof *sums);
    for (int64_t i = 0; i < parts; i++) {
        part[i] = part_of(whole, (int64_t)size, i, parts);
        if (i == 0 || (whole.accumulator && !sums)) continue;
        if (sums) part[i].accumulator = sums + (i - 1) * width;
        started[i] = pthread_create(thread + i, 0, pass, part + i) == 0;
    }
    double square = 0;
    for (int64_t i = 0; i < parts; i++) {
        if (started[i]) pthread_join(thread[i], 0);
        else pass(part + i);
        square += part[i].square;
        for (int64_t j = 0; i > 0 && sums && j < width; j++) whole.accumulator[j] += part[i].accumulator[j];
    }
    free(sums);
    return square;
}
