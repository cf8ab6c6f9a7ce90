/* The tags in the content of a field, and whether they may be wanted, by their hashes alone. The look comes after it.
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

static int mask_takes_all(const mask *m) { return m->bits == ~(uint64_t)0 && !m->cap; }

int mask_may_have(const mask *m, const char *tag, size_t len) {
  if (mask_takes_all(m)) return 1;
  uint64_t hash = xxh3_64(tag, len);
  if (m->cap) return *place_of(m, hash) == hash;
  return m->bits >> (hash & 63) & m->bits >> (hash >> 6 & 63) & m->bits >> (hash >> 12 & 63) & m->bits >> (hash >> 18 & 63) & 1;
}

int mask_may_match(const mask *m, int kind, const char *raw, size_t len) {
  if (mask_takes_all(m)) return 1;
  tags t = tags_in(m, kind, raw, len);
  while (tags_next(&t))
    if (mask_may_have(m, t.tag, t.len)) return 1;
  return 0;
}

tags tags_in(const mask *m, int kind, const char *raw, size_t len) {
  tags t = {.mask = m};
  if (kind == RAW_SEVERAL) {
    t.more = raw;
    t.stop = raw + len;
  } else if (kind == RAW_ONE) {
    t.at = raw;
    t.end = raw + len;
    t.is_open = 1;
  }
  return t;
}

/* As in Python's `bytes.strip`. */
static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

int tags_next(tags *t) {
  size_t separator_len = t->mask->separator_len;
  for (;;) {
    if (!t->is_open) {
      if (t->more == t->stop) return 0;
      size_t size;
      memcpy(&size, t->more, 8);
      t->at = t->more + 8;
      t->end = t->more = t->at + size;
      t->is_open = 1;
    }
    const char *first = t->at, *behind = t->end;
    const char *separator = separator_len ? memmem(first, (size_t)(behind - first), t->mask->separator, separator_len) : NULL;
    if (separator) {
      behind = separator;
      t->at = separator + separator_len;
    } else {
      t->is_open = 0;
    }
    while (separator_len && first < behind && is_space(*first)) first++;
    while (separator_len && behind > first && is_space(behind[-1])) behind--;
    if (behind == first) continue;
    t->tag = first;
    t->len = (size_t)(behind - first);
    return 1;
  }
}
