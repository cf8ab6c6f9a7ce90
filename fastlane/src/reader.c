/* One client's messages: taken from a queue of their own, cut into runs, sorted into rows by group.
 *
 * A message belongs to `messages` from `fl_poll` on, and is destroyed as soon as its row is written, by the next poll, or
 * with the client, which waits for a call that is under way. All but `readers_forget` is for one thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "client.h"
#include "columns.h"

enum { PLACE_NONE, PLACE_HEADER, PLACE_KEY, PLACE_TOPIC };
enum { NDJSON, ENVELOPE, COLUMNS };
enum { AHEAD = 8 };
enum { SHOWN = 10 }; /* Python is asked about so many tags that the mask refuses, to show them to people */
enum { POLLS = 16, SPARE_MAX = 4 << 20, SPARE_TIMES = 16, SEVERAL_MAX = 64 << 10 };

typedef struct {
  const char *topic;
  int64_t first, last;
  int32_t partition, start, stop, err;
} run;

/* What a run has for one group. */
typedef struct {
  int32_t code, count, odd;
  int64_t bytes;
  char *data;
  int64_t *offsets, *odd_offsets, *ids;
} group;

typedef struct {
  group told;
  buffer data, offsets, odd, ids;
  size_t at, to; /* of fl_keep: bytes read and kept, rows read */
  int32_t read, read_odd;
} slot;

typedef struct {
  int64_t offset, timestamp, key_len, len;
  const char *topic, *key, *value, *error;
  int32_t partition, err, timestamp_kind, headers, leader_epoch;
} shown;

typedef struct reader {
  struct reader *next;
  pthread_mutex_t lock;
  rd_kafka_t *rk;
  rd_kafka_queue_t *queue; /* NULL once the reader is closed, or the client is gone */
  int tag_place, format, id_place, wants;
  int is_whole; /* Python is asked about whole contents, and not about each tag */
  char *tag_header, *id_header;

  rd_kafka_message_t **messages;
  run *runs;
  int count, most, nruns;
  int64_t bytes;

  mask mask;
  int shown; /* how many that it refused Python was asked about */
  memo memo;
  entry *unknown; /* that Python is asked about */
  int kind; /* the content with the tags of the message that is sorted */
  const char *raw;
  size_t raw_len;
  buffer several, several_ids; /* the values of a repeated header */

  slot *slots;
  group *groups;
  int nslots, slots_cap;
  struct {
    uint64_t sorting;
    int32_t slot;
  } *place_of; /* by code: the slot, if it is of this sorting */
  size_t codes;
  uint64_t sorting;
  size_t used; /* bytes of the largest sorting of the last polls */
  int polls;

  int doing, at; /* the run that was begun, -1 for none, and its next message */
  int32_t filtered, masked, duplicate, odd_ids;
  int64_t stamp, last; /* of the first message; the offset of the last wanted one */
  int has_stamp;
  int64_t no_id;          /* stands for a missing one */
  buffer ids, wanted;     /* of each wanted message: its id; its slot, twice, and whether it has no row */
  columns columns;        /* of the wanted messages, where that is the format */
} reader;

static reader *readers;
static pthread_mutex_t readers_lock = PTHREAD_MUTEX_INITIALIZER;

static void unlock(pthread_mutex_t **lock) { pthread_mutex_unlock(*lock); }
#define HOLD(mutex)                                                     \
  __attribute__((cleanup(unlock))) pthread_mutex_t *held = &(mutex);    \
  pthread_mutex_lock(held)

/* ---- A reader's life ---- */

/* Destroys the messages that are left. */
static void let_go(reader *r) {
  for (int i = 0; i < r->count; i++)
    if (r->messages[i]) kafka_rd_kafka_message_destroy(r->messages[i]);
  r->count = r->nruns = 0;
  r->bytes = 0;
  r->doing = -1;
  r->ids.len = r->wanted.len = 0;
}

/* Must come before the client is destroyed; a second call does nothing. */
API void fl_close(reader *r) {
  HOLD(r->lock);
  if (!r->queue) return;
  let_go(r);
  kafka_rd_kafka_queue_destroy(r->queue);
  r->queue = NULL;
}

void readers_forget(rd_kafka_t *rk) {
  HOLD(readers_lock);
  for (reader *r = readers; r; r = r->next)
    if (r->rk == rk) fl_close(r);
}

/* A child has none of the client's threads, and a lock of its may be taken for ever. */
static void abandon(void) {
  pthread_mutex_init(&readers_lock, NULL);
  for (reader *r = readers; r; r = r->next) {
    pthread_mutex_init(&r->lock, NULL);
    r->queue = NULL;
    r->count = r->nruns = 0;
  }
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, abandon); }

/* Then codes start over. */
static void forget_tags(reader *r) {
  memo_clear(&r->memo);
  give(r->place_of);
  r->place_of = NULL;
  r->codes = 0;
}

static void drop_slots(reader *r) {
  for (int i = 0; i < r->slots_cap; i++) {
    slot *s = &r->slots[i];
    drop(&s->data);
    drop(&s->offsets);
    drop(&s->odd);
    drop(&s->ids);
  }
  give(r->slots);
  give(r->groups);
  r->slots = NULL;
  r->groups = NULL;
  r->nslots = r->slots_cap = 0;
  columns_drop(&r->columns);
}

API void fl_free(reader *r);

API reader *fl_open(rd_kafka_t *rk, int most, int64_t no_id) {
  reader *r = take(NULL, sizeof *r);
  if (!r) return NULL;
  *r = (reader){.rk = rk, .most = most, .no_id = no_id, .doing = -1};
  pthread_mutex_init(&r->lock, NULL);
  r->messages = take(NULL, (size_t)most * sizeof *r->messages);
  r->runs = take(NULL, (size_t)most * sizeof *r->runs);
  if (r->messages && r->runs) r->queue = kafka_rd_kafka_queue_new(rk);
  if (!r->queue) {
    fl_free(r);
    return NULL;
  }
  HOLD(readers_lock);
  r->next = readers;
  readers = r;
  return r;
}

/* How runs are sorted from now on. Without memory, all is as it was. */
API int fl_change(reader *r, int tag_place, const char *tag_header, int format, int id_place, const char *id_header, int wants,
                  int is_whole, uint64_t bits, const uint64_t *hashes, int64_t count, const char *separator, int64_t separator_len) {
  char *tag = take(NULL, strlen(tag_header) + 1), *id = take(NULL, strlen(id_header) + 1);
  if (!tag || !id || mask_set(&r->mask, bits, hashes, (size_t)count, separator, (size_t)separator_len)) {
    give(tag);
    give(id);
    return NO_MEMORY;
  }
  give(r->tag_header);
  give(r->id_header);
  r->tag_header = strcpy(tag, tag_header);
  r->id_header = strcpy(id, id_header);
  r->tag_place = tag_place;
  r->format = format;
  r->id_place = id_place;
  r->wants = wants;
  r->is_whole = is_whole;
  r->shown = 0;
  r->doing = -1;
  r->ids.len = r->wanted.len = 0;
  forget_tags(r);
  return 0;
}

API void fl_free(reader *r) {
  if (!r) return;
  fl_close(r);
  pthread_mutex_lock(&readers_lock);
  for (reader **at = &readers; *at; at = &(*at)->next)
    if (*at == r) {
      *at = r->next;
      break;
    }
  pthread_mutex_unlock(&readers_lock);
  pthread_mutex_destroy(&r->lock);
  drop_slots(r);
  forget_tags(r);
  mask_drop(&r->mask);
  drop(&r->several);
  drop(&r->several_ids);
  drop(&r->ids);
  drop(&r->wanted);
  give(r->messages);
  give(r->runs);
  give(r->tag_header);
  give(r->id_header);
  give(r);
}

/* The partition's messages come here from now on. */
API int fl_forward(reader *r, const char *topic, int32_t partition) {
  HOLD(r->lock);
  if (!r->queue) return CLOSED;
  rd_kafka_queue_t *queue = kafka_rd_kafka_queue_get_partition(r->rk, topic, partition);
  if (!queue) return GONE;
  kafka_rd_kafka_queue_forward(queue, r->queue);
  kafka_rd_kafka_queue_destroy(queue);
  return 0;
}

/* ---- Reading ---- */

static void cut(reader *r) {
  run *a = NULL;
  const rd_kafka_topic_t *topic = NULL;
  for (int i = 0; i < r->count; i++) {
    const rd_kafka_message_t *m = r->messages[i];
    r->bytes += (int64_t)(m->len + m->key_len);
    if (a && !m->err && !a->err && m->rkt == topic && m->partition == a->partition && m->offset > a->last) {
      a->last = m->offset;
      a->stop = i + 1;
      continue;
    }
    a = &r->runs[r->nruns++];
    topic = m->rkt;
    *a = (run){m->rkt ? kafka_rd_kafka_topic_name(m->rkt) : "", m->offset, m->offset, m->partition, i, i + 1, m->err};
  }
}

/* Gives memory back that the last polls did not need. */
static void shrink(reader *r) {
  if (r->several.cap > SEVERAL_MAX) drop(&r->several);
  if (r->several_ids.cap > SEVERAL_MAX) drop(&r->several_ids);
  if (++r->polls < POLLS) return;
  size_t sum = columns_room(&r->columns);
  for (int i = 0; i < r->slots_cap; i++) {
    const slot *s = &r->slots[i];
    sum += sizeof *s + sizeof *r->groups + s->data.cap + s->offsets.cap + s->odd.cap + s->ids.cap;
  }
  if (!r->used || sum > SPARE_MAX + SPARE_TIMES * r->used) drop_slots(r);
  r->used = 0;
  r->polls = 0;
}

/* Takes up to so many messages; returns the number of runs. What an error says is a run of its own. */
API int fl_poll(reader *r, int most, int timeout_ms) {
  HOLD(r->lock);
  if (!r->queue) return CLOSED;
  let_go(r);
  shrink(r);
  ssize_t count = kafka_rd_kafka_consume_batch_queue(r->queue, timeout_ms, r->messages, (size_t)(most < r->most ? most : r->most));
  if (count < 0) return GONE;
  r->count = (int)count;
  cut(r);
  return r->nruns;
}

/* Takes more, up to so many, behind the messages of the last poll, of which none was sorted; cuts the runs again. */
API int fl_poll_more(reader *r, int most, int timeout_ms) {
  HOLD(r->lock);
  if (!r->queue) return CLOSED;
  for (int i = 0; i < r->count; i++)
    if (!r->messages[i]) return GONE;
  int left = r->most - r->count;
  ssize_t count = kafka_rd_kafka_consume_batch_queue(r->queue, timeout_ms, r->messages + r->count, (size_t)(most < left ? most : left));
  if (count < 0) return GONE;
  r->count += (int)count;
  r->nruns = 0;
  r->bytes = 0;
  cut(r);
  return r->nruns;
}

API const run *fl_runs(const reader *r) { return r->runs; }
API int fl_count(const reader *r) { return r->count; }
API int64_t fl_bytes(const reader *r) { return r->bytes; }

/* GONE if it was destroyed. What is shown lasts until the next poll. */
API int fl_show(reader *r, int i, shown *s) {
  HOLD(r->lock);
  if (!r->queue || i < 0 || i >= r->count || !r->messages[i]) return GONE;
  const rd_kafka_message_t *m = r->messages[i];
  rd_kafka_timestamp_type_t kind;
  rd_kafka_headers_t *headers;
  int64_t at = kafka_rd_kafka_message_timestamp(m, &kind);
  *s = (shown){
      .offset = m->offset, .timestamp = at, .key_len = (int64_t)m->key_len, .len = (int64_t)m->len,
      .topic = m->rkt ? kafka_rd_kafka_topic_name(m->rkt) : "", .key = m->key, .value = m->payload,
      .error = m->err ? kafka_rd_kafka_message_errstr(m) : NULL, .partition = m->partition, .err = m->err,
      .timestamp_kind = kind,
      .headers = kafka_rd_kafka_message_headers(m, &headers) ? -1 : (int32_t)kafka_rd_kafka_header_cnt(headers),
      .leader_epoch = m->err ? -1 : kafka_rd_kafka_message_leader_epoch(m),
  };
  return 0;
}

API int fl_header(reader *r, int i, int at, const char **name, const char **value, int64_t *len) {
  HOLD(r->lock);
  if (!r->queue || i < 0 || i >= r->count || !r->messages[i]) return GONE;
  rd_kafka_headers_t *headers;
  const void *found = NULL;
  size_t size = 0;
  if (kafka_rd_kafka_message_headers(r->messages[i], &headers)) return GONE;
  if (kafka_rd_kafka_header_get_all(headers, (size_t)at, name, &found, &size)) return GONE;
  *value = found;
  *len = (int64_t)size;
  return 0;
}

API int fl_offsets(reader *r, int which, int64_t *to) {
  HOLD(r->lock);
  if (!r->queue || which >= r->nruns) return GONE;
  const run *a = &r->runs[which];
  for (int i = a->start; i < a->stop; i++) {
    if (!r->messages[i]) return GONE;
    *to++ = r->messages[i]->offset;
  }
  return 0;
}

/* ---- Fields ---- */

/* The content of a field. Of a repeated header: each value behind its length, 8 bytes. Returns its kind, or NO_MEMORY. */
static int raw_of(buffer *several, const rd_kafka_message_t *m, int place, const char *header, const char *topic, const char **at,
                  size_t *len) {
  *at = "";
  *len = 0;
  switch (place) {
    case PLACE_TOPIC: *at = topic; *len = strlen(topic); return RAW_ONE;
    case PLACE_KEY:
      if (!m->key) return RAW_NONE;
      *at = m->key;
      *len = m->key_len;
      return RAW_ONE;
    case PLACE_HEADER: break;
    default: return RAW_NONE;
  }
  rd_kafka_headers_t *headers;
  if (kafka_rd_kafka_message_headers(m, &headers)) return RAW_NONE;
  size_t n = kafka_rd_kafka_header_cnt(headers), found = 0;
  for (size_t i = 0; i < n; i++) {
    const char *name;
    const void *value;
    size_t size;
    if (kafka_rd_kafka_header_get_all(headers, i, &name, &value, &size)) break;
    if (!value || *name != *header || strcmp(name, header)) continue;
    if (!found++) {
      *at = value;
      *len = size;
      continue;
    }
    if (found == 2) {
      several->len = 0;
      char *p = room(several, 8 + *len);
      if (!p) return NO_MEMORY;
      memcpy(p, len, 8);
      memcpy(p + 8, *at, *len);
      several->len += 8 + *len;
    }
    char *p = room(several, 8 + size);
    if (!p) return NO_MEMORY;
    memcpy(p, &size, 8);
    memcpy(p + 8, value, size);
    several->len += 8 + size;
  }
  if (found < 2) return found ? RAW_ONE : RAW_NONE;
  *at = several->data;
  *len = several->len;
  return RAW_SEVERAL;
}

/* 1 with an id, the signed number of `text_id`; 0 without. Several values are none, and are counted. */
static int id_of(reader *r, const rd_kafka_message_t *m, const char *topic, int64_t *id) {
  const char *at;
  size_t len;
  int kind = raw_of(&r->several_ids, m, r->id_place, r->id_header, topic, &at, &len);
  if (kind < 0) return kind;
  r->odd_ids += kind == RAW_SEVERAL;
  if (kind != RAW_ONE || !len) return 0;
  *id = (int64_t)(xxh3_64(at, len) ^ (uint64_t)1 << 63);
  return 1;
}

/* The entry of a tag or of a whole content; UNKNOWN_TAG if Python is to be asked about `r->unknown`. */
static int look_up(reader *r, int kind, const char *raw, size_t len, entry **found) {
  entry *e = memo_find(&r->memo, kind, raw, len);
  if (!e) return NO_MEMORY;
  *found = e;
  if (e->code != NOT_ASKED) return 0;
  r->unknown = e;
  return UNKNOWN_TAG;
}

/* The entry that decides about a message; NULL if the mask refuses it. Returns like `look_up`. */
static int tag_of(reader *r, const rd_kafka_message_t *m, const char *topic, entry **found) {
  *found = NULL;
  r->kind = raw_of(&r->several, m, r->tag_place, r->tag_header, topic, &r->raw, &r->raw_len);
  if (r->kind < 0) return r->kind;
  if (r->is_whole) {
    if (mask_may_match(&r->mask, r->kind, r->raw, r->raw_len)) return look_up(r, r->kind, r->raw, r->raw_len, found);
  } else {
    tags t = tags_in(&r->mask, r->kind, r->raw, r->raw_len);
    int count = 0;
    for (; tags_next(&t); count++) {
      if (!mask_may_have(&r->mask, t.tag, t.len)) continue;
      int failed = look_up(r, RAW_ONE, t.tag, t.len, found);
      if (failed || (*found)->code != UNWANTED) return failed;
    }
    if (*found) return 0;
    if (!count && mask_may_match(&r->mask, RAW_NONE, "", 0)) return look_up(r, RAW_NONE, "", 0, found);
  }
  if (r->shown >= SHOWN) return 0;
  entry *e;
  int failed = look_up(r, r->kind, r->raw, r->raw_len, &e);
  r->shown += failed == UNKNOWN_TAG;
  return failed;
}

API int fl_unknown(const reader *r, const char **at, int64_t *len) {
  *at = r->unknown->raw;
  *len = (int64_t)r->unknown->len;
  return r->unknown->kind;
}

/* What Python has said: the code of the group, or UNWANTED. */
API int fl_tell(reader *r, int32_t code) {
  if (code >= 0 && (size_t)code >= r->codes) {
    size_t codes = 2 * (size_t)code + 64;
    void *wider = take(r->place_of, codes * sizeof *r->place_of);
    if (!wider) return NO_MEMORY;
    r->place_of = wider;
    memset(r->place_of + r->codes, 0, (codes - r->codes) * sizeof *r->place_of);
    r->codes = codes;
  }
  r->unknown->code = code;
  return 0;
}

/* Forgets the tags if they are too many, too large, or too alike. Only right before a poll. */
API int fl_forget_tags(reader *r, int64_t most, int64_t most_bytes) {
  if ((int64_t)r->memo.len <= most && (int64_t)r->memo.bytes <= most_bytes && !r->memo.is_crowded) return 0;
  forget_tags(r);
  return 1;
}

/* ---- Sorting ---- */

/* Room for the tags of the message that is sorted. */
static size_t tags_room(const reader *r) {
  size_t needed = 0;
  for (tags t = tags_in(&r->mask, r->kind, r->raw, r->raw_len); tags_next(&t);) needed += 2 * text_room(t.tag, t.len);
  return needed;
}

/* ,"tag": the first one; and ,"tags": all, if there are several */
static char *put_tags(const reader *r, char *p) {
  tags t = tags_in(&r->mask, r->kind, r->raw, r->raw_len), first = t;
  int has_one = tags_next(&first);
  p = text_field(p, "tag", has_one ? first.tag : NULL, first.len);
  if (!has_one || !tags_next(&first)) return p;
  memcpy(p, ",\"tags\":", 8);
  p += 8;
  for (char before = '['; tags_next(&t); before = ',') {
    *p++ = before;
    p = text_value(p, t.tag, t.len);
  }
  *p++ = ']';
  return p;
}

static int envelope(reader *r, buffer *b, const rd_kafka_message_t *m, const char *head, size_t head_len) {
  rd_kafka_headers_t *headers = NULL;
  size_t n = kafka_rd_kafka_message_headers(m, &headers) ? 0 : kafka_rd_kafka_header_cnt(headers);
  size_t needed = 256 + head_len + tags_room(r) + text_room(m->payload, m->payload ? m->len : 0), size;
  needed += text_room(m->key, m->key ? m->key_len : 0);
  const char *name;
  const void *value;
  for (size_t i = 0; i < n; i++) {
    if (kafka_rd_kafka_header_get_all(headers, i, &name, &value, &size)) return NO_MEMORY;
    needed += text_room(name, strlen(name)) + text_room(value, value ? size : 0);
  }
  char *begin = room(b, needed), *p = begin;
  if (!p) return NO_MEMORY;
  memcpy(p, head, head_len); /* {"topic":"...","partition":3,"offset": */
  p = text_number(p + head_len, m->offset);
  rd_kafka_timestamp_type_t kind;
  int64_t at = kafka_rd_kafka_message_timestamp(m, &kind);
  memcpy(p, ",\"timestamp\":", 13);
  p += 13;
  if (kind == KAFKA_NO_TIMESTAMP) p = text_value(p, NULL, 0);
  else p = text_number(p, at);
  p = text_field(p, "key", m->key, m->key_len);
  p = put_tags(r, p);
  memcpy(p, ",\"headers\":[", 12);
  p += 12;
  for (size_t i = 0; i < n; i++) {
    kafka_rd_kafka_header_get_all(headers, i, &name, &value, &size);
    if (i) *p++ = ',';
    *p++ = '[';
    p = text_name(p, name);
    *p++ = ',';
    p = text_value(p, value, size);
    *p++ = ']';
  }
  *p++ = ']';
  p = text_field(p, "value", m->payload, m->len);
  *p++ = '}';
  b->len += (size_t)(p - begin);
  return 0;
}

static int line(buffer *b, const rd_kafka_message_t *m) {
  char *p = room(b, m->len);
  if (!p) return NO_MEMORY;
  memcpy(p, m->payload, m->len);
  b->len += m->len;
  return 0;
}

/* The slot of a group in this sorting; NULL without memory. */
static slot *slot_for(reader *r, int32_t code) {
  if (r->place_of[code].sorting == r->sorting) return &r->slots[r->place_of[code].slot];
  if (r->nslots == r->slots_cap) {
    int cap = 2 * r->slots_cap + 8;
    slot *slots = take(r->slots, (size_t)cap * sizeof *slots);
    if (!slots) return NULL;
    r->slots = slots;
    group *groups = take(r->groups, (size_t)cap * sizeof *groups);
    if (!groups) return NULL;
    r->groups = groups;
    memset(slots + r->slots_cap, 0, (size_t)(cap - r->slots_cap) * sizeof *slots);
    r->slots_cap = cap;
  }
  slot *s = &r->slots[r->nslots];
  s->told = (group){.code = code};
  s->data.len = s->offsets.len = s->odd.len = s->ids.len = 0;
  r->place_of[code].sorting = r->sorting;
  r->place_of[code].slot = r->nslots++;
  return s;
}

/* Notes the id of a wanted message. */
static int note_id(reader *r, const rd_kafka_message_t *m, const char *topic, int64_t *id) {
  *id = r->no_id;
  r->last = m->offset;
  return id_of(r, m, topic, id) < 0 || put_i64(&r->ids, *id) ? NO_MEMORY : 0;
}

/* The same, and where it goes. */
static int note(reader *r, const slot *s, const rd_kafka_message_t *m, const char *topic, int is_odd, int64_t *id) {
  if (note_id(r, m, topic, id)) return NO_MEMORY;
  char *p = room(&r->wanted, sizeof(int32_t));
  if (!p) return NO_MEMORY;
  int32_t where = 2 * (int32_t)(s - r->slots) + is_odd;
  memcpy(p, &where, sizeof where);
  r->wanted.len += sizeof where;
  return 0;
}

static int add_row(reader *r, slot *s, const rd_kafka_message_t *m, const char *topic, const char *head, size_t head_len) {
  int is_odd = r->format == NDJSON && (!m->payload || !m->len || memchr(m->payload, '\n', m->len));
  int64_t id = 0;
  if (r->id_place != PLACE_NONE && note(r, s, m, topic, is_odd, &id)) return NO_MEMORY;
  if (is_odd) {
    s->told.odd++;
    return put_i64(&s->odd, m->offset);
  }
  if (s->told.count) {
    char *p = room(&s->data, 1);
    if (!p) return NO_MEMORY;
    *p = '\n';
    s->data.len++;
  }
  if (r->format == NDJSON ? line(&s->data, m) : envelope(r, &s->data, m, head, head_len)) return NO_MEMORY;
  s->told.count++;
  if (put_i64(&s->offsets, m->offset)) return NO_MEMORY;
  return r->id_place == PLACE_NONE ? 0 : put_i64(&s->ids, id);
}

static int add(reader *r, const rd_kafka_message_t *m, const char *topic, const entry *e, const char *head, size_t head_len) {
  if (r->format == COLUMNS) {
    int64_t id;
    if (r->id_place != PLACE_NONE && note_id(r, m, topic, &id)) return NO_MEMORY;
    return columns_add(&r->columns, m, e->code, r->wants);
  }
  slot *s = slot_for(r, e->code);
  return s ? add_row(r, s, m, topic, head, head_len) : NO_MEMORY;
}

static void begin(reader *r, int which) {
  r->doing = which;
  r->at = r->runs[which].start;
  r->ids.len = r->wanted.len = 0;
  r->last = -1;
  r->filtered = r->masked = r->duplicate = r->odd_ids = 0;
  r->nslots = 0;
  columns_clear(&r->columns);
  r->sorting++;
  rd_kafka_timestamp_type_t kind;
  r->stamp = kafka_rd_kafka_message_timestamp(r->messages[r->at], &kind);
  r->has_stamp = kind != KAFKA_NO_TIMESTAMP;
}

/* What was begun is given up. */
static int lost(reader *r) {
  r->doing = -1;
  r->ids.len = r->wanted.len = 0;
  return NO_MEMORY;
}

/* Makes what was sorted known to `fl_groups`; returns the number of groups. */
static int told(reader *r) {
  int groups = 0;
  size_t used = r->ids.len + r->wanted.len + columns_used(&r->columns);
  for (int i = 0; i < r->nslots; i++) {
    slot *s = &r->slots[i];
    used += sizeof *s + sizeof *r->groups + s->data.len + s->offsets.len + s->odd.len + s->ids.len;
    s->told.bytes = (int64_t)s->data.len;
    s->told.data = s->data.data;
    s->told.offsets = (int64_t *)s->offsets.data;
    s->told.odd_offsets = (int64_t *)s->odd.data;
    s->told.ids = (int64_t *)s->ids.data;
    if (s->told.count || s->told.odd) r->groups[groups++] = s->told;
  }
  if (used > r->used) r->used = used;
  return groups;
}

/* Sorts a run in one pass, and destroys its messages. Returns the number of groups; UNKNOWN_TAG: tell it, and call again.
 * After any other error the run is lost. */
API int fl_sort(reader *r, int which, const char *head, int64_t head_len) {
  HOLD(r->lock);
  if (!r->queue || which >= r->nruns) return GONE;
  const run *a = &r->runs[which];
  if (r->doing != which) {
    if (!r->messages[a->start]) return GONE;
    begin(r, which);
  }
  for (; r->at < a->stop; r->at++) {
    rd_kafka_message_t *m = r->messages[r->at];
    if (r->at + AHEAD < a->stop) {
      const char *next = (const char *)r->messages[r->at + AHEAD];
      __builtin_prefetch(next);
      __builtin_prefetch(next + 64);
      __builtin_prefetch(next - 64);
      __builtin_prefetch(next + 128);
    }
    entry *e;
    int failed = tag_of(r, m, a->topic, &e);
    if (failed == NO_MEMORY) return lost(r);
    if (failed) return failed;
    if (!e || e->code == UNWANTED) {
      r->filtered++;
      r->masked += !e;
    } else if (add(r, m, a->topic, e, head, (size_t)head_len)) {
      return lost(r);
    }
    kafka_rd_kafka_message_destroy(m);
    r->messages[r->at] = NULL;
  }
  r->doing = -1;
  return told(r);
}

/* The ids of the wanted messages of the run that was sorted last, or `no_id`, and the offset of the last of these messages,
 * -1 if there is none. Returns how many. */
API int fl_ids(const reader *r, const int64_t **ids, int64_t *last) {
  *ids = (const int64_t *)r->ids.data;
  *last = r->last;
  return (int)(r->ids.len / sizeof **ids);
}

/* Moves what is kept of a slot to its begin: a row with its offset and id, or an offset without a row. */
static void keep(slot *s, int is_odd, int is_kept) {
  int64_t *offsets = (int64_t *)(is_odd ? s->odd.data : s->offsets.data), *ids = (int64_t *)s->ids.data;
  int32_t *read = is_odd ? &s->read_odd : &s->read, *kept = is_odd ? &s->told.odd : &s->told.count;
  if (!is_odd) {
    char *data = s->data.data, *row = data + s->at, *end = memchr(row, '\n', s->data.len - s->at);
    size_t len = (size_t)((end ? end : data + s->data.len) - row);
    s->at += len + 1;
    if (is_kept) {
      if (*kept) data[s->to++] = '\n';
      memmove(data + s->to, row, len);
      s->to += len;
      ids[*kept] = ids[*read];
    }
  }
  if (is_kept) offsets[(*kept)++] = offsets[*read];
  ++*read;
}

/* Leaves messages out of what was sorted last: `fresh` has a flag for each that `fl_ids` told of. Returns the number of
 * groups; ODD if these do not belong together. */
API int fl_keep(reader *r, const uint8_t *fresh, int64_t count) {
  HOLD(r->lock);
  const int32_t *wanted = (const int32_t *)r->wanted.data;
  if ((size_t)count * sizeof *wanted != r->wanted.len) return ODD;
  if (!count || !memchr(fresh, 0, (size_t)count)) return told(r);
  for (int i = 0; i < r->nslots; i++) {
    slot *s = &r->slots[i];
    s->at = s->to = 0;
    s->read = s->read_odd = s->told.count = s->told.odd = 0;
  }
  for (int64_t i = 0; i < count; i++) {
    keep(&r->slots[wanted[i] / 2], wanted[i] % 2, fresh[i]);
    r->duplicate += !fresh[i];
  }
  for (int i = 0; i < r->nslots; i++) r->slots[i].data.len = r->slots[i].to;
  r->wanted.len = 0; /* once is enough */
  return told(r);
}

/* What was sorted last, if the format is that of columns. */
API const columns *fl_columns(const reader *r) { return &r->columns; }

API const group *fl_groups(const reader *r) { return r->groups; }

API void fl_tally(const reader *r, int32_t *filtered, int32_t *masked, int32_t *duplicate, int32_t *odd_ids, int64_t *stamp, int32_t *has_stamp) {
  *filtered = r->filtered;
  *masked = r->masked;
  *duplicate = r->duplicate;
  *odd_ids = r->odd_ids;
  *stamp = r->stamp;
  *has_stamp = r->has_stamp;
}
