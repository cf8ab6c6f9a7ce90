/* Messages as columns, laid out as Arrow has them: the end of each value as int32 behind a first 0, and a byte for each
 * place that says whether there is a value. */
#pragma once
#include "lane.h"

enum { WANT_KEY = 1, WANT_VALUE = 2, WANT_HEADERS = 4 };

typedef struct {
  buffer data, ends, is_there;
} cells;

typedef struct {
  int32_t rows, headers; /* in all rows */
  buffer offsets, times, has_time, codes, header_ends;
  cells keys, values, names, contents; /* the last two of headers, in the order of the rows */
} columns;

void columns_clear(columns *c);
void columns_drop(columns *c);
size_t columns_used(const columns *c), columns_room(const columns *c);
/* After a failure the columns are useless until they are cleared. */
int columns_add(columns *c, const rd_kafka_message_t *m, int32_t code, int wants);
