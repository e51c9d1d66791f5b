/* A fingerprint of 128 bits of a topic and a key. Its four seeds are random and secret, so an attacker cannot choose
 * two keys with the same fingerprint. Among a billion keys, two share it by chance once in about 10^20 cases. */
#ifndef CYSTORE_KEY_PRINT_H
#define CYSTORE_KEY_PRINT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t first;
    uint64_t second;
} key_print;

static inline uint64_t print_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline void print_word(key_print *print, const uint64_t *seeds, uint64_t word)
{
    print->first = print_mix(print->first ^ word, seeds[2] | 1);
    print->second = print_mix(print->second ^ ((word << 32) | (word >> 32)), seeds[3] | 1);
}

/* Adds a text and its length, so that the border between two texts changes the fingerprint. */
static inline void print_text(key_print *print, const uint64_t *seeds, const uint8_t *text, size_t length)
{
    uint64_t word;
    size_t left = length;
    for (; left >= 8; text += 8, left -= 8) {
        memcpy(&word, text, 8);
        print_word(print, seeds, word);
    }
    word = 0;
    memcpy(&word, text, left);
    print_word(print, seeds, word);
    print_word(print, seeds, (uint64_t)length);
}

static inline key_print print_begin(const uint64_t *seeds)
{
    key_print print = {seeds[0], seeds[1]};
    return print;
}

#endif
