/* The order in which the driver hands out addresses. PyTorch's best fit takes the lower of two free blocks of one size, so
 * the order of its segments decides which block is split, and now and then how many segments there are.
 *
 * Native Linux: the driver maps chunks, multiples of 32 MiB, and the kernel places each at the top of the highest gap that
 * has room. An allocation goes into the newest chunk with a large enough free range, at the lowest one of that; only where
 * no chunk has one is another mapped. A chunk whose last allocation goes is unmapped, and its addresses can be mapped again.
 *
 * Windows and WSL2: all addresses are one chunk from the start, so the lowest free range that is large enough is taken.
 *
 * Source: addresses of 13,893 segments in recordings of real GPUs (docs/results/truth.md says how well they agree). Not
 * modelled: what the driver, other libraries and the host itself map between the chunks.
 */
#include "address_space.h"

#include <stdbool.h>
#include <stdlib.h>

static const size_t CHUNK_UNIT = (size_t)32 << 20;

/* Free addresses, by address; neighbours are joined. */
struct range {
  uintptr_t start, end;
  struct range *next;
};

struct chunk {
  uintptr_t start, end;
  struct range *free;
  struct chunk *older;
};

struct address_space {
  struct chunk *newest;
  struct range *unmapped;
  bool is_one_chunk;
};

/* Without host memory for it, the range is lost. */
static void add_range(struct range **list, uintptr_t start, uintptr_t end) {
  struct range **at = list;
  while (*at && (*at)->end < start) at = &(*at)->next;
  struct range *next = *at;
  if (!next || next->start > end) { /* it touches none */
    struct range *added = malloc(sizeof *added);
    if (!added) return;
    *added = (struct range){start, end, next};
    *at = added;
    return;
  }
  if (start < next->start) next->start = start;
  if (end > next->end) next->end = end;
  struct range *after = next->next;
  if (!after || after->start != next->end) return;
  next->end = after->end;
  next->next = after->next;
  free(after);
}

static void drop_if_empty(struct range **at) {
  struct range *range = *at;
  if (range->start < range->end) return;
  *at = range->next;
  free(range);
}

static void delete_ranges(struct range *list) {
  while (list) {
    struct range *next = list->next;
    free(list);
    list = next;
  }
}

/* From the start of the lowest range that is large enough; 0: there is none. */
static uintptr_t take_lowest(struct range **list, size_t bytes) {
  for (struct range **at = list; *at; at = &(*at)->next) {
    if ((*at)->end - (*at)->start < bytes) continue;
    uintptr_t start = (*at)->start;
    (*at)->start += bytes;
    drop_if_empty(at);
    return start;
  }
  return 0;
}

/* From the end of the highest range that is large enough; 0: there is none. */
static uintptr_t take_highest(struct range **list, size_t bytes) {
  struct range **highest = NULL;
  for (struct range **at = list; *at; at = &(*at)->next)
    if ((*at)->end - (*at)->start >= bytes) highest = at;
  if (!highest) return 0;
  uintptr_t start = (*highest)->end -= bytes;
  drop_if_empty(highest);
  return start;
}

/* A chunk of free addresses, the newest from now on. */
static struct chunk *add_chunk(struct address_space *space, uintptr_t start, uintptr_t end) {
  struct chunk *chunk = malloc(sizeof *chunk);
  if (!chunk) return NULL;
  *chunk = (struct chunk){start, end, NULL, space->newest};
  add_range(&chunk->free, start, end);
  space->newest = chunk;
  return chunk;
}

static struct chunk *map_chunk(struct address_space *space, size_t bytes) {
  size_t size = (bytes + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
  uintptr_t start = size < bytes ? 0 : take_highest(&space->unmapped, size);
  return start ? add_chunk(space, start, start + size) : NULL;
}

struct address_space *new_address_space(uintptr_t bottom, uintptr_t top, enum address_order order) {
  struct address_space *space = calloc(1, sizeof *space);
  if (!space) return NULL;
  space->is_one_chunk = order == WINDOWS_ORDER;
  if (space->is_one_chunk)
    add_chunk(space, bottom, top);
  else
    add_range(&space->unmapped, (bottom + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT, top / CHUNK_UNIT * CHUNK_UNIT);
  return space;
}

void delete_address_space(struct address_space *space) {
  if (!space) return;
  while (space->newest) {
    struct chunk *older = space->newest->older;
    delete_ranges(space->newest->free);
    free(space->newest);
    space->newest = older;
  }
  delete_ranges(space->unmapped);
  free(space);
}

uintptr_t take_addresses(struct address_space *space, size_t bytes) {
  for (struct chunk *chunk = space->newest; chunk; chunk = chunk->older) {
    uintptr_t start = take_lowest(&chunk->free, bytes);
    if (start) return start;
  }
  struct chunk *chunk = space->is_one_chunk ? NULL : map_chunk(space, bytes);
  return chunk ? take_lowest(&chunk->free, bytes) : 0;
}

void return_addresses(struct address_space *space, uintptr_t start, size_t bytes) {
  struct chunk **at = &space->newest;
  while (*at && (start < (*at)->start || start >= (*at)->end)) at = &(*at)->older;
  struct chunk *chunk = *at;
  if (!chunk) return;
  add_range(&chunk->free, start, start + bytes);
  bool is_empty = chunk->free && chunk->free->start == chunk->start && chunk->free->end == chunk->end;
  if (space->is_one_chunk || !is_empty) return;
  *at = chunk->older;
  add_range(&space->unmapped, chunk->start, chunk->end);
  delete_ranges(chunk->free);
  free(chunk);
}
