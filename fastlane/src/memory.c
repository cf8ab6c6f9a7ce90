/* Allocation, counted. A test makes the N-th one fail. */
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "lane.h"

enum { AHEAD_MAX = 1 << 20 };

static int64_t until_failure = -1;
static _Atomic int64_t held;

/* The next allocation but so many fails, once; -1 for none. */
API void fl_fail_after(int64_t allocations) { until_failure = allocations; }

/* All bytes that the lane holds in this process, without librdkafka's messages. */
API int64_t fl_memory(void) { return held; }

void *take(void *old, size_t bytes) {
  if (until_failure >= 0 && until_failure-- == 0) return NULL;
  int64_t before = (int64_t)malloc_usable_size(old);
  void *taken = realloc(old, bytes);
  if (taken) held += (int64_t)malloc_usable_size(taken) - before;
  return taken;
}

void give(void *old) {
  held -= (int64_t)malloc_usable_size(old);
  free(old);
}

char *room(buffer *b, size_t more) {
  if (more <= b->cap - b->len) return b->data + b->len;
  if (more > SIZE_MAX / 4 - b->len) return NULL;
  size_t needed = b->len + more, cap = needed + (needed / 2 < AHEAD_MAX ? needed / 2 : AHEAD_MAX) + 64;
  char *data = take(b->data, cap);
  if (!data) return NULL;
  b->data = data;
  b->cap = cap;
  return data + b->len;
}

void drop(buffer *b) {
  give(b->data);
  *b = (buffer){0};
}

int put_i64(buffer *b, int64_t value) {
  char *p = room(b, sizeof value);
  if (!p) return NO_MEMORY;
  memcpy(p, &value, sizeof value);
  b->len += sizeof value;
  return 0;
}
