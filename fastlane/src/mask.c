/* Whether the content of a field may have a wanted tag, by its tags' hashes alone. The look at the tags comes after it.
 * `sidecar.core.messages.masks` has the same bits, and chooses between them and the set of hashes. */
#define _GNU_SOURCE
#include <string.h>
#include "lane.h"

static uint64_t *place_of(const mask *m, uint64_t hash) {
  size_t i = hash & (m->cap - 1);
  while (m->hashes[i] && m->hashes[i] != hash) i = (i + 1) & (m->cap - 1);
  return &m->hashes[i];
}

int mask_set(mask *m, uint64_t bits, const uint64_t *hashes, size_t count, const char *separator, size_t len) {
  mask changed = {.bits = bits, .cap = count ? 2 : 0, .separator_len = len};
  while (changed.cap < 2 * count) changed.cap *= 2;
  changed.hashes = take(NULL, changed.cap * sizeof *changed.hashes + 1);
  changed.separator = take(NULL, len + 1);
  if (!changed.hashes || !changed.separator) {
    mask_drop(&changed);
    return NO_MEMORY;
  }
  memset(changed.hashes, 0, changed.cap * sizeof *changed.hashes);
  memcpy(changed.separator, separator, len);
  for (size_t i = 0; i < count; i++) *place_of(&changed, hashes[i]) = hashes[i];
  mask_drop(m);
  *m = changed;
  return 0;
}

void mask_drop(mask *m) {
  give(m->hashes);
  give(m->separator);
  *m = (mask){0};
}

static int may_have(const mask *m, const char *tag, size_t len) {
  uint64_t hash = xxh3_64(tag, len);
  if (m->cap) return *place_of(m, hash) == hash;
  return m->bits >> (hash & 63) & m->bits >> (hash >> 6 & 63) & m->bits >> (hash >> 12 & 63) & m->bits >> (hash >> 18 & 63) & 1;
}

/* As in Python's `bytes.strip`. */
static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static int may_have_any(const mask *m, const char *at, size_t len) {
  if (!m->separator_len) return len && may_have(m, at, len);
  for (const char *end = at + len, *stop; at <= end; at = stop + m->separator_len) {
    stop = memmem(at, (size_t)(end - at), m->separator, m->separator_len);
    if (!stop) stop = end;
    const char *first = at, *behind = stop;
    while (first < behind && is_space(*first)) first++;
    while (behind > first && is_space(behind[-1])) behind--;
    if (behind > first && may_have(m, first, (size_t)(behind - first))) return 1;
  }
  return 0;
}

int mask_may_match(const mask *m, int kind, const char *at, size_t len) {
  if (m->bits == ~(uint64_t)0 && !m->cap) return 1;
  if (kind != RAW_SEVERAL) return may_have_any(m, at, kind == RAW_ONE ? len : 0);
  for (size_t i = 0, size; i < len; i += 8 + size) {
    memcpy(&size, at + i, 8);
    if (may_have_any(m, at + i + 8, size)) return 1;
  }
  return 0;
}
