/* PyTorch's caching allocator on a device that never runs out: blocks of segments, and what they come to (allocator.c). */
#ifndef ULLAGE_ALLOCATOR_H
#define ULLAGE_ALLOCATOR_H

#include "address_space.h"

#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { NONE = -1, LEAST = 512, NUM_STREAMS = 256 };

/* A piece of a segment; while it is in use, one of the blocks that its storage has, the oldest first. */
struct block {
  int64_t address, size;
  int32_t before, after; /* in the segment */
  int32_t older, newer;
  int32_t pool;
  bool is_free;
};

/* Free blocks by size, then address: the first that is large enough is the best fit. */
struct pool {
  int32_t *blocks;
  int64_t count, room;
};

struct allocator {
  struct address_space *addresses; /* of segments */
  struct block *blocks;
  int64_t room;
  int32_t num_blocks, unused; /* a list, by `after` */
  struct pool pools[2 * NUM_STREAMS];
  int64_t allocated, reserved, allocated_peak, reserved_peak;
  bool is_by_age;  /* addresses are given out once, so that the lowest is the oldest segment's */
  bool has_failed; /* no host memory, or more is asked for than there are numbers */
};

struct allocator *new_allocator(enum address_order order); /* NULL: no host memory */
void delete_allocator(struct allocator *a);
int32_t allocate_block(struct allocator *a, int64_t size, uint8_t stream); /* NONE: it has failed */
void release_block(struct allocator *a, int32_t number);
void empty_cache(struct allocator *a); /* gives back the segments without a block in use */

#endif
