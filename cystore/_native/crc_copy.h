/* A copy that computes the CRC-32C of what it copies: the waits for memory and those for the CRC instruction are the same time.
 *
 * Three thirds go side by side, for the instruction takes a new word each cycle and gives its result after three. The register of A
 * followed by B is that of A, multiplied by x^(8 |B|) mod P, plus that of B begun with 0. Carry-less multiplication of two reflected
 * 32-bit polynomials gives their product divided by x, and the CRC instruction multiplies by x^32 while it reduces mod P: so the table
 * holds x^(64 k - 33) for thirds of k words. */
#ifndef CYSTORE_CRC_COPY_H
#define CYSTORE_CRC_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define CRC_COPY_WORDS 1024 /* of a third at most */
#define CRC_COPY_THIRDS_FROM 192

static uint32_t crc_copy_powers[CRC_COPY_WORDS];
static int crc_copy_known; /* 0 where the CPU lacks an instruction */

static inline int crc_copy_init(void) {
    const uint32_t polynomial = 0x82F63B78u;
    uint32_t power = 0x80000000u; /* x^0 */
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return 0;
    for (int i = 0; i < 33; i++) power = power & 0x80000000u ? (power ^ polynomial) << 1 | 1 : power << 1;
    for (size_t k = 0; k < CRC_COPY_WORDS; k++) {
        crc_copy_powers[k] = power;
        for (int i = 0; i < 64; i++) power = power >> 1 ^ (power & 1 ? polynomial : 0);
    }
    return crc_copy_known = 1;
}

#define CRC_COPY_PIECE(type, step)            \
    do {                                      \
        type piece;                           \
        memcpy(&piece, from, sizeof piece);   \
        memcpy(to, &piece, sizeof piece);     \
        crc = step(crc, piece);               \
        from += sizeof piece;                 \
        to += sizeof piece;                   \
    } while (0)

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t crc_copy_shift(uint64_t crc, size_t words) {
    __m128i factor = _mm_cvtsi32_si128((int)crc_copy_powers[words]);
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), factor, 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_copy_words(uint32_t begin, uint8_t *to, const uint8_t *from,
                                                                       size_t length) {
    uint64_t crc = begin;
    while (length >= CRC_COPY_THIRDS_FROM) {
        size_t words = length / 24 < CRC_COPY_WORDS ? length / 24 : CRC_COPY_WORDS - 1;
        size_t third = 8 * words;
        uint64_t second = 0, last = 0, word;
        for (const uint8_t *end = from + third; from < end; from += 8, to += 8) {
            memcpy(&word, from, 8);
            memcpy(to, &word, 8);
            crc = _mm_crc32_u64(crc, word);
            memcpy(&word, from + third, 8);
            memcpy(to + third, &word, 8);
            second = _mm_crc32_u64(second, word);
            memcpy(&word, from + 2 * third, 8);
            memcpy(to + 2 * third, &word, 8);
            last = _mm_crc32_u64(last, word);
        }
        crc = crc_copy_shift(crc_copy_shift(crc, words) ^ second, words) ^ last;
        from += 2 * third;
        to += 2 * third;
        length -= 3 * third;
    }
    for (; length >= 8; length -= 8) CRC_COPY_PIECE(uint64_t, _mm_crc32_u64);
    if (length & 4) CRC_COPY_PIECE(uint32_t, (uint32_t)_mm_crc32_u32);
    if (length & 2) CRC_COPY_PIECE(uint16_t, (uint32_t)_mm_crc32_u16);
    if (length & 1) CRC_COPY_PIECE(uint8_t, (uint32_t)_mm_crc32_u8);
    return (uint32_t)crc;
}
#else
static const int crc_copy_known = 0;
static inline int crc_copy_init(void) { return 0; }
static inline uint32_t crc_copy_words(uint32_t begin, uint8_t *to, const uint8_t *from, size_t length) {
    (void)to, (void)from, (void)length;
    return begin;
}
#endif

#endif
