/* PyTorch's caching allocator: blocks of segments, and what they come to (allocator.c). */
#ifndef ULLAGE_ALLOCATOR_H
#define ULLAGE_ALLOCATOR_H

#include "address_space.h"
#include "rules.h"

enum { NONE = -1, NUM_STREAMS = 256 };

/* A piece of a segment; while it is in use, one of the blocks that its storage has, the oldest first. */
struct block {
  int64_t address, size;
  int64_t start; /* of its segment */
  int64_t requested;
  int64_t searches; /* before it was free: by them the collection of garbage knows how long it has been so */
  int32_t before, after; /* in the segment */
  int32_t older, newer;
  int32_t pool; /* NONE: it is not there */
  int32_t age;  /* how many segments came before its own */
  bool is_free, is_unmapped;
};

/* Blocks in an order: free ones by size, then by the tie; those without memory by address. */
struct list {
  int32_t *blocks;
  int64_t count, room;
};

/* Of a private pool or the default one: of a stream, and of small or large blocks. */
struct pool {
  struct list free, unmapped;
};

/* A private pool, as a program names it; number 0 is the default one. */
struct group {
  int64_t name;
  bool is_dropped;
};

struct allocator {
  struct allocator_settings settings;
  struct address_space *addresses; /* of segments */
  struct block *blocks;
  int64_t room;
  int32_t num_blocks, unused; /* a list, by `after` */
  struct pool *pools;         /* 2 * NUM_STREAMS of each group */
  struct group *groups;
  int32_t num_groups, active; /* the group of what is allocated now */
  int32_t num_ages;
  int64_t num_searches; /* in the default pools of large blocks */
  int64_t requested, allocated, reserved, requested_peak, allocated_peak, reserved_peak;
  int64_t num_retries, num_device_allocs;
  bool has_failed; /* no host memory, or more is asked for than there are numbers */
};

extern const struct allocator_settings default_settings; /* on a device that never runs out, ties by age */

struct allocator *new_allocator(const struct allocator_settings *settings); /* NULL: no host memory */
void delete_allocator(struct allocator *a);
int32_t allocate_block(struct allocator *a, int64_t size, uint8_t stream); /* NONE: no room, or it has failed */
void release_block(struct allocator *a, int32_t number);
void empty_cache(struct allocator *a); /* gives back what of segments has no block in use */
void enter_pool(struct allocator *a, int64_t name); /* what follows is allocated in this private pool; 0: in none */
void drop_pool(struct allocator *a, int64_t name);  /* what of it is not in use can be given back */

#endif
