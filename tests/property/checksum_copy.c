/* Compares the checksums of crc_copy.h, and the copies beside them, with a CRC-32C that goes bit by bit: every short
 * length, random long ones, every alignment, any register before. Arguments: a seed, and rounds of random lengths.
 * Prints the number of comparisons, or the first difference (exit code 1). */
#include <stdio.h>

#include "crc_copy.h"

enum { LONGEST = 20000, MARGIN = 64 };

static uint8_t source_bytes[MARGIN + LONGEST + MARGIN], target_bytes[MARGIN + LONGEST + MARGIN];
static uint64_t state, compared;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *from, size_t length) {
    for (; length; from++, length--) {
        crc ^= *from;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return crc;
}

static void check(const char *function, uint64_t found, uint32_t wanted, size_t length, size_t shift) {
    compared++;
    if (found == wanted) return;
    printf("%s: %llx instead of %x, length %zu, alignment %zu\n", function, (unsigned long long)found, wanted, length,
           shift);
    exit(1);
}

/* The bytes are in the target, and none beside them has changed but the `before` ones that are bytes of 0 now. */
static void check_copy(const char *function, const uint8_t *from, uint8_t *to, size_t length, size_t before) {
    int good = memcmp(from, to, length) == 0;
    for (size_t i = before + 1; i <= MARGIN / 2; i++) good &= to[-(ptrdiff_t)i] == 0xA5;
    for (size_t i = 0; i < MARGIN / 2; i++) good &= to[length + i] == 0xA5;
    memset(to - MARGIN / 2, 0xA5, length + MARGIN);
    compared++;
    if (good) return;
    printf("%s: copied wrongly, length %zu\n", function, length);
    exit(1);
}

static void try_length(size_t length, size_t shift) {
    uint8_t *from = source_bytes + MARGIN / 2 + shift, *to = target_bytes + MARGIN / 2 + (shift * 5 & 15);
    uint32_t before = (uint32_t)next_random(), wanted = bit_by_bit(before, from, length);
    uint8_t kept[8];
    check("crc_copy_short", crc_copy_short(before, to, from, length), wanted, length, shift);
    check_copy("crc_copy_short", from, to, length, 0);
    check("crc_copy_words", crc_copy_words(before, to, from, length), wanted, length, shift);
    check_copy("crc_copy_words", from, to, length, 0);
    if (length <= CRC_READ_MAX) check("crc_read", crc_read(before, from, length), wanted, length, shift);
    memcpy(kept, from - 8, 8);
    memset(from - 8, 0, 8); /* crc_copy_padded needs them */
    check("crc_copy_padded", crc_copy_padded(to, from, length), bit_by_bit(0, from, length), length, shift);
    check_copy("crc_copy_padded", from, to, length, 7);
    memcpy(from - 8, kept, 8);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    if (!crc_copy_known) {
        puts("this CPU has no such instructions");
        return 3;
    }
    state = strtoull(arguments[1], NULL, 10) * 2 + 1;
    for (size_t i = 0; i < sizeof source_bytes; i++) source_bytes[i] = (uint8_t)next_random();
    memset(target_bytes, 0xA5, sizeof target_bytes);
    for (size_t length = 0; length <= 640; length++) try_length(length, length & 15);
    for (long left = strtol(arguments[2], NULL, 10); left > 0; left--) {
        size_t most = next_random() & 1 ? 1000 : LONGEST - 16, length = next_random() % most;
        try_length(length, next_random() & 15);
    }
    for (size_t length = 0; length <= 3 * CRC_POWERS; length += 97) {
        static const uint8_t zeros[3 * CRC_POWERS];
        uint32_t before = (uint32_t)next_random();
        check("crc_shift", crc_shift(before, length), bit_by_bit(before, zeros, length), length, 0);
    }
    printf("%llu comparisons\n", (unsigned long long)compared);
    return 0;
}
