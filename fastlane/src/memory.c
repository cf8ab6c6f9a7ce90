/* Allocation. A test makes the N-th one fail. */
#include <stdlib.h>
#include <string.h>
#include "lane.h"

static int64_t until_failure = -1;

/* The next allocation but so many fails, once; -1 for none. */
API void fl_fail_after(int64_t allocations) { until_failure = allocations; }

void *take(void *old, size_t bytes) {
  if (until_failure >= 0 && until_failure-- == 0) return NULL;
  return realloc(old, bytes);
}

char *room(buffer *b, size_t more) {
  if (more <= b->cap - b->len) return b->data + b->len;
  if (more > SIZE_MAX / 4 - b->len) return NULL;
  size_t cap = (b->len + more) + (b->len + more) / 2 + 64;
  char *data = take(b->data, cap);
  if (!data) return NULL;
  b->data = data;
  b->cap = cap;
  return data + b->len;
}

void drop(buffer *b) {
  free(b->data);
  *b = (buffer){0};
}

int put_i64(buffer *b, int64_t value) {
  char *p = room(b, sizeof value);
  if (!p) return NO_MEMORY;
  memcpy(p, &value, sizeof value);
  b->len += sizeof value;
  return 0;
}
