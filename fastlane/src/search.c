/* Looks keys up in sorted runs, as `sidecar.core.windows.idruns` lays them out: the first bits of a key lead to a bit of
 * the run's filter, and to its neighbours by the index. */
#include "lane.h"

typedef struct {
  const uint64_t *keys; /* rising */
  const uint32_t *index;
  const uint8_t *filter;
  int64_t index_shift, filter_shift;
} sorted_run;

static int within(const sorted_run *r, uint64_t key) {
  uint64_t bit = key >> r->filter_shift;
  if (!(r->filter[bit >> 3] >> (bit & 7) & 1)) return 0;
  uint32_t low = r->index[key >> r->index_shift], high = r->index[(key >> r->index_shift) + 1];
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (r->keys[middle] < key) low = middle + 1;
    else if (r->keys[middle] > key) high = middle;
    else return 1;
  }
  return 0;
}

/* Sets the byte of each key that is in any of the runs. */
API void fl_search(const sorted_run *runs, int count, const uint64_t *keys, int64_t n, uint8_t *found) {
  for (int i = 0; i < count; i++)
    for (int64_t j = 0; j < n; j++) found[j] |= (uint8_t)within(&runs[i], keys[j]);
}
