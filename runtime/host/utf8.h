/* UTF-8 by the table of the Unicode Standard (3-7): no overlong forms, no surrogates. And text that
 * a terminal can be given. */
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

/* Every byte of what is no printable character becomes '?': bytes that are no UTF-8, control
 * characters (newline excepted), and the marks that hide text or turn it around. */
static inline void utf8_disarm(char *text, size_t bytes) {
    uint8_t *p = (uint8_t *)text, *end = p + bytes;
    for (int n; p < end; p += n > 0 ? n : 1) {
        n = utf8_length(p, (size_t)(end - p));
        uint32_t c = n == 2 ? (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu)
                   : n == 3 ? (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu) : p[0];
        int hidden = (c < 0x20 && c != '\n') || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) ||
                     (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
        for (int i = 0; n <= 0 ? i < 1 : hidden && i < n; i++) p[i] = '?';
    }
}

#endif
