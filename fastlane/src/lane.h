/* What the files of the lane share. Every function that may lack memory returns NO_MEMORY (or NULL), and leaves its
 * arguments usable and complete. */
#pragma once
#include <stdint.h>
#include <stddef.h>
#include "kafka.h"

#define API __attribute__((visibility("default")))

/* Lengths are multiplied without a check, and lengths and numbers go to Python as they lie in memory. */
_Static_assert(sizeof(size_t) == 8, "64 bits");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian");

enum { UNKNOWN_TAG = -1, NO_MEMORY = -2, CLOSED = -3, GONE = -4, ODD = -5 };

/* memory.c: the allocator, which counts, and which tests let fail. */
void *take(void *old, size_t bytes);
void give(void *old);

typedef struct {
  char *data;
  size_t len, cap;
} buffer;

/* Room for so many more bytes behind `len`; NULL without memory, and then the buffer is as it was. */
char *room(buffer *b, size_t more);
void drop(buffer *b);
int put_i64(buffer *b, int64_t value);

/* xxh3.c */
uint64_t xxh3_64(const void *data, size_t len);

/* text.c: each writes at `p`, for which the caller has made room, and returns the place behind. */
char *text_number(char *p, int64_t value);
char *text_value(char *p, const void *data, size_t len);                    /* a string, or {"base64":...}; null */
char *text_field(char *p, const char *name, const void *data, size_t len);  /* ,"name":... or ,"name_base64":... */
char *text_name(char *p, const char *name);                                 /* of a header; U+FFFD if it is no UTF-8 */
size_t text_room(const void *data, size_t len);                             /* that any of these needs */

/* memo.c: what Python has said of tags, or of whole contents of a field. */
enum { RAW_NONE, RAW_ONE, RAW_SEVERAL };
enum { UNWANTED = -1, NOT_ASKED = -2 };

typedef struct {
  uint64_t hash;
  size_t len;
  int32_t code; /* of its group, or UNWANTED, or NOT_ASKED */
  int32_t kind;
  char raw[];
} entry;

typedef struct {
  entry **slots;
  size_t cap, len, bytes;
  int is_crowded; /* a search was long: somebody chose contents whose hashes are alike */
} memo;

entry *memo_find(memo *m, int kind, const char *raw, size_t len);
void memo_clear(memo *m);

/* mask.c: which contents cannot have a wanted tag. */
typedef struct {
  uint64_t bits;    /* of all wanted tags */
  uint64_t *hashes; /* of the wanted tags, in place of `bits`, if `cap` is not 0; 0 where it is empty */
  size_t cap;
  char *separator; /* of tags in one value */
  size_t separator_len;
} mask;

int mask_set(mask *m, uint64_t bits, const uint64_t *hashes, size_t count, const char *separator, size_t len);
int mask_may_have(const mask *m, const char *tag, size_t len);
int mask_may_match(const mask *m, int kind, const char *raw, size_t len);
void mask_drop(mask *m);

/* The tags in a content, in order, without empty ones. */
typedef struct {
  const char *tag; /* after `tags_next` has returned 1 */
  size_t len;
  const mask *mask;
  const char *at, *end, *more, *stop; /* of the value that is open, and of the values behind it */
  int is_open;
} tags;

tags tags_in(const mask *m, int kind, const char *raw, size_t len);
int tags_next(tags *t);
