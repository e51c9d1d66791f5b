/* CRC-32C of bytes while they are copied: the CPU cannot load bytes at once that it has just stored, and its waits for
 * memory and for the CRC instruction overlap. Also CRC-32C of short records that are read: the package's kernel would
 * process them word by word.
 *
 * Several pieces are processed side by side: the CRC instruction takes a new word each cycle and gives its result after
 * three. The register of A followed by B is the register of A, multiplied by x^(8 |B|) mod P, plus the register of B
 * begun with 0. Carry-less multiplication of two reflected 32-bit polynomials gives their product times x, and the CRC
 * instruction multiplies by x^32 while it reduces mod P. So the table holds x^(8 n - 33) for n bytes.
 *
 * The register has 32 bits. A 64-bit variable holds it, with 0 in the upper half, as crc32q takes and leaves it.
 *
 * The instructions are inline assembly, because a function that is compiled for one CPU cannot be inlined into code for
 * every CPU: SSE 4.2 and PCLMULQDQ on x86-64; the extensions crc (`crc32c*`) and aes (`pmull`) on ARM64. */
#ifndef CYSTORE_CRC_COPY_H
#define CYSTORE_CRC_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* CYSTORE_CHECKSUM=portable in the environment: uses no special instructions, as on a CPU without them. */
static inline int crc_portable_wanted(void) {
    const char *wanted = getenv("CYSTORE_CHECKSUM");
    return wanted != NULL && strcmp(wanted, "portable") == 0;
}

#define CRC_POWERS 4096 /* bytes that one multiplication steps over */
#define CRC_COPY_THIRDS_FROM 192
#define CRC_READ_THIRDS_FROM 96
#define CRC_READ_MAX 6096 /* then two thirds and a rest of less than 24 bytes are at most CRC_POWERS */

#if defined(__x86_64__)
#include <emmintrin.h>

typedef __m128i crc_wide; /* a product that is not reduced yet */

static inline int crc_cpu_can(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static inline uint64_t crc_step_1(uint64_t crc, uint8_t byte) {
    __asm__("crc32b %1, %k0" : "+r"(crc) : "rm"(byte));
    return crc;
}
static inline uint64_t crc_step_2(uint64_t crc, uint16_t half) {
    __asm__("crc32w %1, %k0" : "+r"(crc) : "rm"(half));
    return crc;
}
static inline uint64_t crc_step_4(uint64_t crc, uint32_t word) {
    __asm__("crc32l %1, %k0" : "+r"(crc) : "rm"(word));
    return crc;
}
static inline uint64_t crc_step_8(uint64_t crc, uint64_t words) {
    __asm__("crc32q %1, %0" : "+r"(crc) : "rm"(words));
    return crc;
}

/* crc * power, not reduced mod P yet. */
static inline crc_wide crc_product(uint64_t crc, uint32_t power) {
    __m128i product = _mm_cvtsi32_si128((int)crc), factor = _mm_cvtsi32_si128((int)power);
    __asm__("pclmulqdq $0, %1, %0" : "+x"(product) : "x"(factor));
    return product;
}
static inline crc_wide crc_sum(crc_wide a, crc_wide b) { return _mm_xor_si128(a, b); }
static inline uint64_t crc_reduced(crc_wide product) { return crc_step_8(0, (uint64_t)_mm_cvtsi128_si64(product)); }
#define CRC_KNOWN_CPU
#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* The assembly names the extensions that it uses, because the compiler may aim at CPUs without them. */
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

typedef uint64_t crc_wide; /* a product of 63 bits that is not reduced yet */

static inline int crc_cpu_can(void) {
    const unsigned long both = HWCAP_CRC32 | HWCAP_PMULL;
    return (getauxval(AT_HWCAP) & both) == both;
}

#define CRC_ARM_STEP(name, type, instruction, operand)                                                 \
    static inline uint64_t name(uint64_t crc, type piece) {                                            \
        uint32_t sum = (uint32_t)crc;                                                                  \
        __asm__(".arch_extension crc\n\t" instruction " %w0, %w0, " operand : "+r"(sum) : "r"(piece)); \
        return sum;                                                                                    \
    }

CRC_ARM_STEP(crc_step_1, uint8_t, "crc32cb", "%w1")
CRC_ARM_STEP(crc_step_2, uint16_t, "crc32ch", "%w1")
CRC_ARM_STEP(crc_step_4, uint32_t, "crc32cw", "%w1")
CRC_ARM_STEP(crc_step_8, uint64_t, "crc32cx", "%1")
#undef CRC_ARM_STEP

/* crc * power, not reduced mod P yet. */
static inline crc_wide crc_product(uint64_t crc, uint32_t power) {
    uint64x2_t product, left = vsetq_lane_u64(crc, vdupq_n_u64(0), 0), right = vsetq_lane_u64(power, vdupq_n_u64(0), 0);
    __asm__(".arch_extension aes\n\tpmull %0.1q, %1.1d, %2.1d" : "=w"(product) : "w"(left), "w"(right));
    return vgetq_lane_u64(product, 0);
}
static inline crc_wide crc_sum(crc_wide a, crc_wide b) { return a ^ b; }
static inline uint64_t crc_reduced(crc_wide product) { return crc_step_8(0, product); }
#define CRC_KNOWN_CPU
#endif

#if defined(CRC_KNOWN_CPU)
static uint32_t crc_powers[CRC_POWERS + 1];
static int crc_copy_known; /* 0: the CPU lacks an instruction, or the environment forbids them */

/* Runs when a library that includes this file is loaded. */
__attribute__((constructor)) static void crc_copy_init(void) {
    const uint32_t polynomial = 0x82F63B78u;
    uint32_t power = 0x80000000u; /* x^0 */
    if (crc_portable_wanted() || !crc_cpu_can()) return;
    for (int i = 0; i < 33; i++) power = power & 0x80000000u ? (power ^ polynomial) << 1 | 1 : power << 1;
    for (size_t n = 0; n <= CRC_POWERS; n++) {
        crc_powers[n] = power;
        for (int i = 0; i < 8; i++) power = power >> 1 ^ (power & 1 ? polynomial : 0);
    }
    crc_copy_known = 1;
}

static inline uint64_t crc_times(uint64_t crc, uint32_t power) { return crc_reduced(crc_product(crc, power)); }

/* The register after `length` more bytes of 0. */
static inline uint64_t crc_shift(uint64_t crc, size_t length) {
    for (; length > CRC_POWERS; length -= CRC_POWERS) crc = crc_times(crc, crc_powers[CRC_POWERS]);
    return crc_times(crc, crc_powers[length]);
}

static inline uint64_t crc_word(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

#define CRC_COPY_PIECE(type, step)               \
    do {                                         \
        type piece;                              \
        memcpy(&piece, from + at, sizeof piece); \
        memcpy(to + at, &piece, sizeof piece);   \
        crc = step(crc, piece);                  \
        at += sizeof piece;                      \
    } while (0)

/* Copies. Returns the register, which was `crc` before these bytes. */
static inline uint64_t crc_copy_short(uint64_t crc, uint8_t *to, const uint8_t *from, size_t length) {
    size_t at = 0;
    for (; at + 32 <= length; at += 32) {
        memcpy(to + at, from + at, 32);
        crc = crc_step_8(crc_step_8(crc, crc_word(from + at)), crc_word(from + at + 8));
        crc = crc_step_8(crc_step_8(crc, crc_word(from + at + 16)), crc_word(from + at + 24));
    }
    if (length & 16) {
        CRC_COPY_PIECE(uint64_t, crc_step_8);
        CRC_COPY_PIECE(uint64_t, crc_step_8);
    }
    if (length & 8) CRC_COPY_PIECE(uint64_t, crc_step_8);
    if (length & 4) CRC_COPY_PIECE(uint32_t, crc_step_4);
    if (length & 2) CRC_COPY_PIECE(uint16_t, crc_step_2);
    if (length & 1) CRC_COPY_PIECE(uint8_t, crc_step_1);
    return crc;
}

/* Copies whole words. Returns the register, which was 0 before these bytes. 8 bytes of 0 precede `from`. The first word
 * takes as many of them as it lacks, and they are written before `to`. They change nothing in a register of 0. */
static inline uint64_t crc_copy_padded(uint8_t *to, const uint8_t *from, size_t length) {
    uint64_t crc = 0;
    size_t missing = -length & 7, at = 0, end = length + missing;
    from -= missing;
    to -= missing;
    if (end & 8) CRC_COPY_PIECE(uint64_t, crc_step_8);
    for (; at != end; at += 16) {
        memcpy(to + at, from + at, 16);
        crc = crc_step_8(crc_step_8(crc, crc_word(from + at)), crc_word(from + at + 8));
    }
    return crc;
}

static inline uint64_t crc_copy_words(uint64_t crc, uint8_t *to, const uint8_t *from, size_t length) {
    while (length >= CRC_COPY_THIRDS_FROM) {
        size_t third = length / 24 * 8 < CRC_POWERS ? length / 24 * 8 : CRC_POWERS;
        uint64_t second = 0, last = 0;
        memcpy(to, from, 3 * third);
        for (const uint8_t *end = from + third; from < end; from += 8) {
            crc = crc_step_8(crc, crc_word(from));
            second = crc_step_8(second, crc_word(from + third));
            last = crc_step_8(last, crc_word(from + 2 * third));
        }
        crc = crc_shift(crc_shift(crc, third) ^ second, third) ^ last;
        from += 2 * third;
        to += 3 * third;
        length -= 3 * third;
    }
    return crc_copy_short(crc, to, from, length);
}

/* Reads at most CRC_READ_MAX bytes. Returns the register, which was `crc` before these bytes. Four pieces are processed
 * side by side: the thirds, and a rest of less than 24 bytes. The rest begins with a part of a word, filled with bytes
 * of 0 in front: they change nothing in a register of 0. */
static inline uint64_t crc_read(uint64_t crc, const uint8_t *from, size_t length) {
    if (length >= CRC_READ_THIRDS_FROM) {
        size_t third = length / 24 * 8, rest = length - 3 * third, odd = rest & 7;
        uint64_t second = 0, last = 0, rest_crc = 0;
        const uint8_t *at = from + 3 * third + odd, *end = from + length;
        if (odd) rest_crc = crc_step_8(0, crc_word(at - 8) >> (64 - 8 * odd) << (64 - 8 * odd));
        for (; at != end; at += 8) rest_crc = crc_step_8(rest_crc, crc_word(at));
        for (end = from + third; from != end; from += 8) {
            crc = crc_step_8(crc, crc_word(from));
            second = crc_step_8(second, crc_word(from + third));
            last = crc_step_8(last, crc_word(from + 2 * third));
        }
        crc_wide sum = crc_sum(crc_product(crc, crc_powers[2 * third + rest]),
                               crc_product(second, crc_powers[third + rest]));
        if (rest == 0) return crc_reduced(sum) ^ last;
        return crc_reduced(crc_sum(sum, crc_product(last, crc_powers[rest]))) ^ rest_crc;
    }
    for (; length >= 8; from += 8, length -= 8) crc = crc_step_8(crc, crc_word(from));
    for (; length; from++, length--) crc = crc_step_1(crc, *from);
    return crc;
}
#else
static const int crc_copy_known = 0; /* the functions below are not called */
static inline uint64_t crc_step_1(uint64_t crc, uint8_t byte) { return (void)byte, crc; }
static inline uint64_t crc_step_2(uint64_t crc, uint16_t half) { return (void)half, crc; }
static inline uint64_t crc_step_4(uint64_t crc, uint32_t word) { return (void)word, crc; }
static inline uint64_t crc_step_8(uint64_t crc, uint64_t words) { return (void)words, crc; }
static inline uint64_t crc_shift(uint64_t crc, size_t length) { return (void)length, crc; }
static inline uint64_t crc_read(uint64_t crc, const uint8_t *from, size_t length) {
    return (void)from, (void)length, crc;
}
static inline uint64_t crc_copy_short(uint64_t crc, uint8_t *to, const uint8_t *from, size_t length) {
    return (void)to, (void)from, (void)length, crc;
}
static inline uint64_t crc_copy_padded(uint8_t *to, const uint8_t *from, size_t length) {
    return (void)to, (void)from, (void)length, (uint64_t)0;
}
static inline uint64_t crc_copy_words(uint64_t crc, uint8_t *to, const uint8_t *from, size_t length) {
    return (void)to, (void)from, (void)length, crc;
}
#endif

#endif
