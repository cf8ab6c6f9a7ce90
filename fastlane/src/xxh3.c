/* XXH3, 64 bits, seed 0 and the default secret, after its specification (github.com/Cyan4973/xxHash, doc). */
#include <string.h>
#include "lane.h"

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87u
#define P64_2 0xC2B2AE3D27D4EB4Fu
#define P64_3 0x165667B19E3779F9u
#define P64_4 0x85EBCA77C2B2AE63u
#define P64_5 0x27D4EB2F165667C5u

enum { STRIPE = 64, LANES = 8, SECRET = 192, BLOCK_STRIPES = (SECRET - STRIPE) / 8 };

static const unsigned char secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71,
    0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3,
    0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8,
    0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa,
    0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b,
    0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95,
    0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t r64(const unsigned char *p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}
static inline uint32_t r32(const unsigned char *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
static inline uint64_t rotl(uint64_t v, int n) { return v << n | v >> (64 - n); }
static inline uint64_t fold(uint64_t a, uint64_t b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}
static inline uint64_t finish(uint64_t h) {
  h = (h ^ h >> 37) * 0x165667919E3779F9u;
  return h ^ h >> 32;
}
static inline uint64_t finish_short(uint64_t h) {
  h = (h ^ h >> 33) * P64_2;
  h = (h ^ h >> 29) * P64_3;
  return h ^ h >> 32;
}
static inline uint64_t mix16(const unsigned char *p, size_t at) { return fold(r64(p) ^ r64(secret + at), r64(p + 8) ^ r64(secret + at + 8)); }

static uint64_t up_to_16(const unsigned char *p, size_t len) {
  if (len > 8) {
    uint64_t low = r64(p) ^ r64(secret + 24) ^ r64(secret + 32), high = r64(p + len - 8) ^ r64(secret + 40) ^ r64(secret + 48);
    return finish(len + __builtin_bswap64(low) + high + fold(low, high));
  }
  if (len >= 4) {
    uint64_t h = (r32(p + len - 4) + ((uint64_t)r32(p) << 32)) ^ r64(secret + 8) ^ r64(secret + 16);
    h ^= rotl(h, 49) ^ rotl(h, 24);
    h *= 0x9FB21C651E98DF25u;
    h = (h ^ ((h >> 35) + len)) * 0x9FB21C651E98DF25u;
    return h ^ h >> 28;
  }
  if (!len) return finish_short(r64(secret + 56) ^ r64(secret + 64));
  uint32_t all = (uint32_t)p[0] << 16 | (uint32_t)p[len >> 1] << 24 | p[len - 1] | (uint32_t)len << 8;
  return finish_short(all ^ (uint64_t)(r32(secret) ^ r32(secret + 4)));
}

static uint64_t up_to_128(const unsigned char *p, size_t len) {
  uint64_t sum = len * P64_1;
  for (size_t i = (len - 1) / 32 + 1; i-- > 0;) sum += mix16(p + 16 * i, 32 * i) + mix16(p + len - 16 * (i + 1), 32 * i + 16);
  return finish(sum);
}

static uint64_t up_to_240(const unsigned char *p, size_t len) {
  uint64_t sum = len * P64_1;
  for (size_t i = 0; i < 8; i++) sum += mix16(p + 16 * i, 16 * i);
  sum = finish(sum);
  for (size_t i = 8; i < len / 16; i++) sum += mix16(p + 16 * i, 16 * (i - 8) + 3);
  return finish(sum + mix16(p + len - 16, 136 - 17));
}

static void add(uint64_t sums[LANES], const unsigned char *p, const unsigned char *key) {
  for (int i = 0; i < LANES; i++) {
    uint64_t value = r64(p + 8 * i), keyed = value ^ r64(key + 8 * i);
    sums[i ^ 1] += value;
    sums[i] += (uint64_t)(uint32_t)keyed * (keyed >> 32);
  }
}

static uint64_t longer(const unsigned char *p, size_t len) {
  uint64_t sums[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
  size_t stripes = (len - 1) / STRIPE;
  for (size_t i = 0; i < stripes; i++) {
    add(sums, p + STRIPE * i, secret + 8 * (i % BLOCK_STRIPES));
    if (i % BLOCK_STRIPES == BLOCK_STRIPES - 1)
      for (int k = 0; k < LANES; k++) sums[k] = (sums[k] ^ sums[k] >> 47 ^ r64(secret + SECRET - STRIPE + 8 * k)) * P32_1;
  }
  add(sums, p + len - STRIPE, secret + SECRET - STRIPE - 7);
  uint64_t h = len * P64_1;
  for (int i = 0; i < LANES; i += 2) h += fold(sums[i] ^ r64(secret + 11 + 8 * i), sums[i + 1] ^ r64(secret + 19 + 8 * i));
  return finish(h);
}

uint64_t xxh3_64(const void *data, size_t len) {
  const unsigned char *p = data;
  return len <= 16 ? up_to_16(p, len) : len <= 128 ? up_to_128(p, len) : len <= 240 ? up_to_240(p, len) : longer(p, len);
}

API uint64_t fl_xxh3(const void *data, size_t len) { return xxh3_64(data, len); }
