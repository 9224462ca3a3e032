/* What PyTorch's caching allocator rounds sizes to, what it asks the driver for, and when it splits a block: shared by the
 * allocator that decides (allocator.c) and the replay that follows the addresses of a trace (replay.c).
 *
 * Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h, torch 2.6 to 2.15.
 */
#ifndef ULLAGE_RULES_H
#define ULLAGE_RULES_H

#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Blocks are multiples of LEAST. Up to SMALL they come from segments of one PAGE, the driver's unit; less than OWN_SEGMENT
 * from large segments, 20 MiB where nothing else is set; others get a segment of their own. */
enum { LEAST = 512, SMALL = 1 << 20, PAGE = 2 << 20, OWN_SEGMENT = 10 << 20, LARGE_SEGMENT = 20 << 20, NUM_DIVISIONS = 16 };

/* Of free blocks of one size: the lowest (up to torch 2.12), or that of the oldest segment. */
enum tie { BY_ADDRESS, BY_AGE };

/* All sizes are bytes; INT64_MAX is no limit. */
struct allocator_settings {
  int64_t max_split;     /* blocks of this size or more are not split */
  int64_t max_unused;    /* of one that is not split, what may stay unused */
  int64_t large_segment;
  int64_t device_bytes;  /* what the driver can give */
  int64_t allowed_bytes; /* set_per_process_memory_fraction; INT64_MAX: it was not called */
  int64_t range_bytes;   /* addresses of an expandable segment */
  double collection_share;
  int32_t divisions[NUM_DIVISIONS]; /* of powers of two, from 1 MiB on; 0: multiples of LEAST */
  uint8_t is_expandable, order, tie, is_released_in_pool;
};

static inline int64_t round_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

static inline int log2_of(int64_t size) { return 63 - __builtin_clzll((unsigned long long)size); }

/* Bytes of the block for a request; -1: there is no such number. */
static inline int64_t round_size(const struct allocator_settings *s, int64_t size) {
  if (size < LEAST) return LEAST;
  if (size > INT64_MAX / 2) return -1;
  int power = log2_of(size), place = power - 20;
  int64_t divisions = s->divisions[place < 0 ? 0 : place < NUM_DIVISIONS ? place : NUM_DIVISIONS - 1];
  if (divisions < 2 || size <= LEAST * divisions) return round_up(size, LEAST);
  return round_up(size, ((int64_t)1 << power) >> log2_of(divisions));
}

/* What the driver is asked for where no free block fits. */
static inline int64_t segment_size(const struct allocator_settings *s, int64_t size) {
  return size <= SMALL ? PAGE : size < OWN_SEGMENT ? s->large_segment : round_up(size, PAGE);
}

/* Whether what a block leaves is split off; splits_all: in a small or an expandable segment. */
static inline bool is_split(const struct allocator_settings *s, bool splits_all, int64_t size, int64_t rest) {
  return splits_all ? rest >= LEAST : rest > SMALL && size < s->max_split;
}

#endif
