/* Rows of the format `envelope` for stored messages of RocketMQ, by column. What is rare is left to Python, all of it. */
#include <string.h>
#include "lane.h"

enum { NAMES_MAX = 64, LARGE = 1 << 20 };

typedef struct {
  const char **data;
  const int64_t *len;
} column;

/* The first value of a property, in `name \1 value \2` and so on; NULL if there is none. */
static const char *property(const char *p, size_t n, const char *name, size_t *len) {
  size_t named = strlen(name);
  for (const char *end = p + n, *stop; p < end; p = stop + 1) {
    stop = memchr(p, 2, (size_t)(end - p));
    if (!stop) stop = end;
    if ((size_t)(stop - p) <= named || memcmp(p, name, named) || p[named] != 1) continue;
    *len = (size_t)(stop - p) - named - 1;
    return p + named + 1;
  }
  *len = 0;
  return NULL;
}

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static char *keys(char *p, const char *at, size_t len) {
  const char *end = at + len;
  for (int count = 0; at && at < end;) {
    if (is_space(*at)) {
      at++;
      continue;
    }
    const char *stop = at;
    while (stop < end && !is_space(*stop)) stop++;
    if (count++) *p++ = ',';
    p = text_value(p, at, (size_t)(stop - at));
    at = stop;
  }
  return p;
}

/* NULL if a name is there twice, or is not ASCII. */
static char *properties(char *p, const char *at, size_t len) {
  const char *names[NAMES_MAX], *end = at + len;
  size_t sizes[NAMES_MAX];
  int count = 0;
  for (const char *stop; at < end; at = stop + 1) {
    stop = memchr(at, 2, (size_t)(end - at));
    if (!stop) stop = end;
    const char *equals = memchr(at, 1, (size_t)(stop - at));
    if (!equals) continue;
    size_t size = (size_t)(equals - at);
    if (count == NAMES_MAX) return NULL;
    for (size_t i = 0; i < size; i++)
      if (at[i] & 0x80) return NULL;
    for (int i = 0; i < count; i++)
      if (sizes[i] == size && !memcmp(names[i], at, size)) return NULL;
    names[count] = at;
    sizes[count] = size;
    if (count++) *p++ = ',';
    p = text_value(p, at, size);
    *p++ = ':';
    p = text_value(p, equals + 1, (size_t)(stop - equals - 1));
  }
  return p;
}

static char *hex(char *p, const unsigned char *data, size_t len) {
  for (size_t i = 0; i < len; i++) {
    *p++ = "0123456789ABCDEF"[data[i] >> 4];
    *p++ = "0123456789ABCDEF"[data[i] & 15];
  }
  return p;
}

#define PUT(text) (memcpy(p, text, sizeof text - 1), p += sizeof text - 1)

/* Rows between line feeds, in memory that `fl_stored_free` frees. Returns their size; NO_MEMORY; GONE: Python must do it.
 * `tags` are JSON members, `numbers` are offset, time, position and number of times handed back, `head` is the row up to
 * its offset, and `broker` that member. */
API int64_t fl_stored_rows(int count, column bodies, column props, column hosts, column tags, const int64_t *numbers, const char *head,
                           int64_t head_len, const char *broker, int64_t broker_len, char **rows) {
  buffer b = {0};
  *rows = NULL;
  for (int i = 0; i < count; i++) {
    const int64_t *number = numbers + 4 * i;
    size_t len = (size_t)bodies.len[i], props_len = (size_t)props.len[i], host_len = (size_t)hosts.len[i];
    /* Each byte of the properties is at most in `properties`, in `key` or `message_id`, and in `keys`, and a name or value
     * takes two of them at least. */
    size_t needed = 512 + (size_t)(head_len + broker_len + tags.len[i]) + text_room(bodies.data[i], len) + 2 * host_len + 3 * 26 * props_len + 120;
    if (len > LARGE) { /* Python makes it in pieces */
      drop(&b);
      return GONE;
    }
    char *begin = room(&b, needed), *p = begin;
    if (!p) {
      drop(&b);
      return NO_MEMORY;
    }
    if (i) *p++ = '\n';
    memcpy(p, head, (size_t)head_len);
    p = text_number(p + head_len, number[0]);
    PUT(",\"timestamp\":");
    p = text_number(p, number[1]);
    size_t key_len, id_len;
    const char *key = property(props.data[i], props_len, "KEYS", &key_len);
    const char *id = property(props.data[i], props_len, "UNIQ_KEY", &id_len);
    p = text_field(p, "key", key, key_len);
    memcpy(p, tags.data[i], (size_t)tags.len[i]);
    p += tags.len[i];
    memcpy(p, broker, (size_t)broker_len);
    p += broker_len;
    PUT(",\"message_id\":");
    p = text_value(p, id, id_len);
    PUT(",\"offset_message_id\":\"");
    p = hex(p, (const unsigned char *)hosts.data[i], host_len);
    unsigned char position[8];
    for (int k = 0; k < 8; k++) position[k] = (unsigned char)((uint64_t)number[2] >> (56 - 8 * k));
    p = hex(p, position, 8);
    PUT("\",\"keys\":[");
    p = keys(p, key, key_len);
    PUT("],\"reconsume_times\":");
    p = text_number(p, number[3]);
    PUT(",\"properties\":{");
    p = number[2] < 0 ? NULL : properties(p, props.data[i], props_len);
    if (!p) {
      drop(&b);
      return GONE;
    }
    *p++ = '}';
    p = text_field(p, "value", bodies.data[i], len);
    *p++ = '}';
    b.len += (size_t)(p - begin);
  }
  *rows = b.data;
  return (int64_t)b.len;
}

API void fl_stored_free(char *rows) { give(rows); }
