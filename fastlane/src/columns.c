#include <string.h>
#include "columns.h"

#define ALL(c, X)                                                                                       \
  X((c)->offsets) X((c)->times) X((c)->has_time) X((c)->codes) X((c)->header_ends)                      \
  X((c)->keys.data) X((c)->keys.ends) X((c)->keys.is_there)                                             \
  X((c)->values.data) X((c)->values.ends) X((c)->values.is_there)                                       \
  X((c)->names.data) X((c)->names.ends) X((c)->names.is_there)                                          \
  X((c)->contents.data) X((c)->contents.ends) X((c)->contents.is_there)

void columns_clear(columns *c) {
#define CLEAR(b) (b).len = 0;
  ALL(c, CLEAR)
  c->rows = c->headers = 0;
}

void columns_drop(columns *c) {
#define DROP(b) drop(&(b));
  ALL(c, DROP)
  c->rows = c->headers = 0;
}

size_t columns_used(const columns *c) {
  size_t sum = 0;
#define USED(b) sum += (b).len;
  ALL(c, USED)
  return sum;
}

size_t columns_room(const columns *c) {
  size_t sum = 0;
#define ROOM(b) sum += (b).cap;
  ALL(c, ROOM)
  return sum;
}

static int put(buffer *b, const void *data, size_t len) {
  if (!len) return 0;
  char *p = room(b, len);
  if (!p) return NO_MEMORY;
  memcpy(p, data, len);
  b->len += len;
  return 0;
}

static int put_i32(buffer *b, int32_t value) { return put(b, &value, sizeof value); }

static int put_end(buffer *ends, size_t end) {
  if (end > INT32_MAX) return NO_MEMORY;
  if (!ends->len && put_i32(ends, 0)) return NO_MEMORY;
  return put_i32(ends, (int32_t)end);
}

static int put_cell(cells *c, const void *data, size_t len) {
  uint8_t is_there = data != NULL;
  return put(&c->data, data, data ? len : 0) || put_end(&c->ends, c->data.len) || put(&c->is_there, &is_there, 1);
}

static int put_headers(columns *c, const rd_kafka_message_t *m) {
  rd_kafka_headers_t *headers;
  size_t n = kafka_rd_kafka_message_headers(m, &headers) ? 0 : kafka_rd_kafka_header_cnt(headers), size;
  for (size_t i = 0; i < n; i++) {
    const char *name;
    const void *content;
    if (kafka_rd_kafka_header_get_all(headers, i, &name, &content, &size)) return NO_MEMORY;
    if (put_cell(&c->names, name, strlen(name)) || put_cell(&c->contents, content, size)) return NO_MEMORY;
    c->headers++;
  }
  return put_end(&c->header_ends, (size_t)c->headers);
}

int columns_add(columns *c, const rd_kafka_message_t *m, int32_t code, int wants) {
  rd_kafka_timestamp_type_t kind;
  int64_t at = kafka_rd_kafka_message_timestamp(m, &kind);
  uint8_t has_time = kind != KAFKA_NO_TIMESTAMP;
  if (put_i64(&c->offsets, m->offset) || put_i64(&c->times, at) || put(&c->has_time, &has_time, 1)) return NO_MEMORY;
  if (put_i32(&c->codes, code)) return NO_MEMORY;
  if (wants & WANT_KEY && put_cell(&c->keys, m->key, m->key_len)) return NO_MEMORY;
  if (wants & WANT_VALUE && put_cell(&c->values, m->payload, m->len)) return NO_MEMORY;
  if (wants & WANT_HEADERS && put_headers(c, m)) return NO_MEMORY;
  c->rows++;
  return 0;
}
