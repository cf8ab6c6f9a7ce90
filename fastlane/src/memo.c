/* A table of raw contents, by hash and exact comparison. Python decides about each, once. */
#include <stdlib.h>
#include <string.h>
#include "lane.h"

enum { CROWD = 500 };

static entry **slot_of(memo *m, uint64_t hash, int kind, const char *raw, size_t len) {
  for (size_t i = hash & (m->cap - 1), tries = 0;; i = (i + 1) & (m->cap - 1)) {
    entry *e = m->slots[i];
    if (++tries > CROWD) m->is_crowded = 1;
    if (!e || (e->hash == hash && e->kind == kind && e->len == len && !memcmp(e->raw, raw, len))) return &m->slots[i];
  }
}

static int widen(memo *m) {
  size_t cap = m->cap ? 2 * m->cap : 256;
  entry **slots = take(NULL, cap * sizeof *slots);
  if (!slots) return NO_MEMORY;
  memset(slots, 0, cap * sizeof *slots);
  memo wider = {slots, cap, m->len, m->bytes, m->is_crowded};
  for (size_t i = 0; i < m->cap; i++)
    if (m->slots[i]) *slot_of(&wider, m->slots[i]->hash, m->slots[i]->kind, m->slots[i]->raw, m->slots[i]->len) = m->slots[i];
  give(m->slots);
  *m = wider;
  return 0;
}

entry *memo_find(memo *m, int kind, const char *raw, size_t len) {
  if (2 * (m->len + 1) > m->cap && widen(m)) return NULL;
  uint64_t hash = xxh3_64(raw, len) + (uint64_t)kind;
  entry **slot = slot_of(m, hash, kind, raw, len);
  if (*slot) return *slot;
  entry *e = take(NULL, sizeof *e + len);
  if (!e) return NULL;
  *e = (entry){.hash = hash, .len = len, .code = NOT_ASKED, .kind = kind};
  if (len) memcpy(e->raw, raw, len);
  m->len++;
  m->bytes += sizeof *e + len;
  return *slot = e;
}

void memo_clear(memo *m) {
  for (size_t i = 0; i < m->cap; i++)
    if (m->slots[i]) give(m->slots[i]);
  give(m->slots);
  *m = (memo){0};
}
