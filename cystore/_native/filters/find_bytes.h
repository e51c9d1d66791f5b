/* Finds a text in bytes. The C library's `memmem` makes a table for each call, which costs more than the search of a
 * short record. Here 16 places are compared at once with two rare bytes of the text (SSE2, which each x86-64 CPU has).
 * Where these bytes are often in their places and the others are not, `memmem` takes over: it is linear.
 */
#ifndef CYSTORE_FIND_BYTES_H
#define CYSTORE_FIND_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { FIND_WASTE_BYTES = 4096 }; /* compared in vain, beyond the bytes that were passed */

/* How often a byte is in records, roughly: their heads are full of zeros. */
static inline int find_frequency(uint8_t byte) {
    switch (byte) {
    case 0:
        return 3;
    case ' ': case '"': case ',': case '0': case '1': case '_': case 'a': case 'e': case 'i': case 'n': case 'o':
    case 'r': case 's': case 't':
        return 2;
    default:
        return 1;
    }
}

static inline const uint8_t *find_bytes(const uint8_t *within, size_t length, const uint8_t *text, size_t text_length) {
    const uint8_t *at = within;
    const uint8_t *end = within + length;
    size_t waste = 0, i, low = 0, high = 0;
    if (text_length == 0 || length < text_length)
        return text_length == 0 ? within : NULL;
    for (i = 1; i < text_length && i < 64; i++) {
        int frequency = find_frequency(text[i]), least = find_frequency(text[low]);
        if (frequency < least)
            low = high = i;
        else if (frequency == least)
            high = i;
    }
    const __m128i first = _mm_set1_epi8((char)text[low]);
    const __m128i second = _mm_set1_epi8((char)text[high]);
    /* The loads end at at[text_length + 14] at most. */
    for (; (size_t)(end - at) >= text_length + 15; at += 16) {
        __m128i begins = _mm_cmpeq_epi8(first, _mm_loadu_si128((const __m128i *)(at + low)));
        __m128i ends = _mm_cmpeq_epi8(second, _mm_loadu_si128((const __m128i *)(at + high)));
        unsigned int places = (unsigned int)_mm_movemask_epi8(_mm_and_si128(begins, ends));
        while (places != 0) {
            const uint8_t *place = at + __builtin_ctz(places);
            if (memcmp(place, text, text_length) == 0)
                return place;
            waste += text_length;
            places &= places - 1;
        }
        if (waste > (size_t)(at - within) + FIND_WASTE_BYTES)
            break;
    }
    return (const uint8_t *)memmem(at, (size_t)(end - at), text, text_length);
}

#else

static inline const uint8_t *find_bytes(const uint8_t *within, size_t length, const uint8_t *text, size_t text_length) {
    return (const uint8_t *)memmem(within, length, text, text_length);
}

#endif
#endif
