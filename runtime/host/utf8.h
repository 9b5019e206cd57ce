/* UTF-8 by the table of the Unicode Standard (3-7): no overlong forms, no surrogates. */
#ifndef UTF8_H
#define UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at p (n > 0 are there): 1..4; 0: not a character; -1: the beginning of
 * one that n bytes do not complete. */
static inline int utf8_length(const uint8_t *p, size_t n) {
    uint8_t b = p[0], low = 0x80, high = 0xBF;
    if (b < 0x80) return 1;
    if (b < 0xC2 || b > 0xF4) return 0;
    int length = b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    if (b == 0xE0) low = 0xA0;
    if (b == 0xED) high = 0x9F;
    if (b == 0xF0) low = 0x90;
    if (b == 0xF4) high = 0x8F;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n) return -1;
        if (p[i] < low || p[i] > high) return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

#endif
