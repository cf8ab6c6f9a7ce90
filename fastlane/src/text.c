/* JSON as orjson writes it, with the base64 forms of the format `envelope` for what is no UTF-8. */
#include <string.h>
#include "lane.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static const char HEX[] = "0123456789abcdef";
static const char B64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static inline char *literal(char *p, const char *text, size_t len) {
  memcpy(p, text, len);
  return p + len;
}
#define LITERAL(p, text) literal(p, text, sizeof(text) - 1)

static inline char *control(char *p, unsigned char c) {
  *p++ = '\\';
  switch (c) {
    case '"': case '\\': *p++ = (char)c; return p;
    case '\b': *p++ = 'b'; return p;
    case '\t': *p++ = 't'; return p;
    case '\n': *p++ = 'n'; return p;
    case '\f': *p++ = 'f'; return p;
    case '\r': *p++ = 'r'; return p;
  }
  p = LITERAL(p, "u00");
  *p++ = HEX[c >> 4];
  *p++ = HEX[c & 15];
  return p;
}

/* The length of the character that begins here, 0 if it is no UTF-8 (RFC 3629: no surrogates, nothing longer than needed). */
static inline size_t character(const unsigned char *s, size_t left) {
  unsigned char c = s[0];
  size_t len = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
  if (c < 0xC2 || c > 0xF4 || len > left) return 0;
  unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
  if (s[1] < low || s[1] > high) return 0;
  for (size_t i = 2; i < len; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  return len;
}

/* The text without quotes; NULL if it is no UTF-8. Writes up to 15 bytes beyond its end. */
static char *escaped(char *p, const unsigned char *s, size_t len) {
  size_t i = 0;
  while (i < len) {
#if defined(__SSE2__)
    while (i + 16 <= len) {
      __m128i x = _mm_loadu_si128((const __m128i *)(s + i));
      _mm_storeu_si128((__m128i *)p, x);
      __m128i odd = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')));
      odd = _mm_or_si128(odd, _mm_cmplt_epi8(x, _mm_set1_epi8(0x20))); /* bytes from 0x80 on are negative */
      int mask = _mm_movemask_epi8(odd), plain = mask ? __builtin_ctz((unsigned)mask) : 16;
      p += plain;
      i += (size_t)plain;
      if (mask) break;
    }
    if (i == len) break;
#endif
    unsigned char c = s[i];
    if (c >= 0x80) {
      size_t n = character(s + i, len - i);
      if (!n) return NULL;
      p = literal(p, (const char *)s + i, n);
      i += n;
    } else {
      if (c < 0x20 || c == '"' || c == '\\') p = control(p, c);
      else *p++ = (char)c;
      i++;
    }
  }
  return p;
}

static char *base64(char *p, const unsigned char *s, size_t len) {
  size_t i = 0;
  for (; i + 2 < len; i += 3) {
    uint32_t x = (uint32_t)s[i] << 16 | (uint32_t)s[i + 1] << 8 | s[i + 2];
    *p++ = B64[x >> 18];
    *p++ = B64[x >> 12 & 63];
    *p++ = B64[x >> 6 & 63];
    *p++ = B64[x & 63];
  }
  if (i < len) {
    uint32_t x = (uint32_t)s[i] << 16 | (i + 1 < len ? (uint32_t)s[i + 1] << 8 : 0);
    *p++ = B64[x >> 18];
    *p++ = B64[x >> 12 & 63];
    *p++ = i + 1 < len ? B64[x >> 6 & 63] : '=';
    *p++ = '=';
  }
  return p;
}

char *text_number(char *p, int64_t value) {
  char digits[20];
  int n = 0;
  uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  if (value < 0) *p++ = '-';
  do digits[n++] = (char)('0' + left % 10);
  while (left /= 10);
  while (n) *p++ = digits[--n];
  return p;
}

char *text_value(char *p, const void *data, size_t len) {
  if (!data) return LITERAL(p, "null");
  *p = '"';
  char *end = escaped(p + 1, data, len);
  if (end) {
    *end = '"';
    return end + 1;
  }
  return LITERAL(base64(LITERAL(p, "{\"base64\":\""), data, len), "\"}");
}

char *text_field(char *p, const char *name, const void *data, size_t len) {
  p = LITERAL(p, ",\"");
  p = literal(p, name, strlen(name));
  if (!data) return LITERAL(p, "\":null");
  char *end = escaped(LITERAL(p, "\":\""), data, len);
  if (!end) end = base64(LITERAL(p, "_base64\":\""), data, len);
  *end = '"';
  return end + 1;
}

char *text_name(char *p, const char *name) {
  *p = '"';
  char *end = escaped(p + 1, (const unsigned char *)name, strlen(name));
  if (!end) return LITERAL(p, "\"\xEF\xBF\xBD\"");
  *end = '"';
  return end + 1;
}

/* Six bytes for a control character, two for a quote; or base64, four bytes for three. */
size_t text_room(const void *data, size_t len) {
  if (len <= 4096) return 6 * len + 40;
  const unsigned char *s = data;
  size_t more = 0, i = 0;
  for (; i + 32 <= len; i += 32) {
    unsigned char some = 0;
    for (size_t k = 0; k < 32; k++) some += (s[i + k] < 0x20) * 5 + ((s[i + k] == '"') | (s[i + k] == '\\'));
    more += some;
  }
  more += 5 * (len - i);
  return len + (more > len / 3 ? more : len / 3) + 40;
}
