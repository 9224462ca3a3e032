/* Feeds PyTorch's caching allocator with the requests of a program, and tells what they come to. */
#include "allocator.h"

#include <stdlib.h>

/* Operations as ground/programs/allocator_replay.py has them: 0 <= op < n allocates block op, n <= op < 2n frees block op - n,
 * and -op is one of these kinds + 8 * argument. */
enum kind { EMPTY_CACHE = 1, RETRY, ATTEMPT, POOL, DROP_POOL, NUM_KINDS };

/* sizes: of blocks, as the program asks for them. ignored: a bit for each kind of operation that is left out. */
struct requests {
  const int64_t *sizes;
  const uint8_t *streams;
  int64_t num_blocks;
  const int64_t *before, *ops; /* peaks are those of ops, from where `before` leads */
  int64_t num_before, num_ops;
  int64_t ignored;
};

/* segments: bytes of each at the end, where that is not NULL; addresses and reserved: after each of ops, likewise. */
struct outcome {
  int64_t requested_peak, allocated_peak, reserved_peak;
  int64_t num_retries, num_device_allocs, num_failed_attempts;
  int64_t stopped_at; /* the operation that the device had no room for; -1: one before them; num_ops: none */
  int64_t num_segments, room_for_segments;
  int64_t *segments, *addresses, *reserved;
};

struct play {
  struct allocator *allocator;
  const struct requests *requests;
  struct outcome *outcome;
  int32_t *blocks; /* of each number, while it is there */
};

/* Requests so many bytes on the default stream; if there is room, they go back at once. */
static void attempt(struct play *p, int64_t bytes) {
  int32_t number = allocate_block(p->allocator, bytes, 0);
  if (number != NONE)
    release_block(p->allocator, number);
  else
    p->outcome->num_failed_attempts++;
}

/* Whether that kind of operation is known. */
static bool do_other(struct play *p, int64_t kind, int64_t argument) {
  if (kind < NUM_KINDS && p->requests->ignored >> kind & 1) return true;
  if (kind == ATTEMPT)
    attempt(p, argument);
  else if (kind == POOL)
    enter_pool(p->allocator, argument);
  else if (kind == DROP_POOL)
    drop_pool(p->allocator, argument);
  if (kind == EMPTY_CACHE || kind == RETRY || kind == DROP_POOL) empty_cache(p->allocator);
  return kind < NUM_KINDS;
}

/* Returns the operation that there was no room for, their number where there was, or -1 where one is not known. */
static int64_t play(struct play *p, const int64_t *ops, int64_t num_ops, bool is_noted) {
  int64_t count = p->requests->num_blocks;
  for (int64_t i = 0; i < num_ops; i++) {
    int64_t op = ops[i];
    int32_t number = NONE;
    if (op >= count) {
      if (op >= 2 * count || p->blocks[op - count] == NONE) return -1;
      release_block(p->allocator, p->blocks[op - count]);
      p->blocks[op - count] = NONE;
    } else if (op >= 0) {
      if (p->blocks[op] != NONE) return -1;
      number = p->blocks[op] = allocate_block(p->allocator, p->requests->sizes[op], p->requests->streams[op]);
      if (number == NONE && !p->allocator->has_failed) return i;
    } else if (!do_other(p, -op & 7, -op >> 3)) {
      return -1;
    }
    if (p->allocator->has_failed) return -1;
    if (is_noted && p->outcome->addresses)
      p->outcome->addresses[i] = number == NONE ? 0 : p->allocator->blocks[number].address;
    if (is_noted && p->outcome->reserved) p->outcome->reserved[i] = p->allocator->reserved;
  }
  return num_ops;
}

/* Bytes of each segment; of an expandable one, of each range that has memory. */
static bool list_segments(const struct allocator *a, struct outcome *outcome) {
  for (int32_t i = 0; i < a->num_blocks; i++) {
    const struct block *block = &a->blocks[i];
    bool is_first = block->before == NONE || a->blocks[block->before].is_unmapped;
    if (block->pool == NONE || block->is_unmapped || !is_first) continue;
    int64_t size = 0;
    for (int32_t part = i; part != NONE && !a->blocks[part].is_unmapped; part = a->blocks[part].after)
      size += a->blocks[part].size;
    if (outcome->num_segments == outcome->room_for_segments) return false;
    outcome->segments[outcome->num_segments++] = size;
  }
  return true;
}

/* Returns 0 where an operation is not known, or the numbers or the memory do not suffice. */
EXPORT int play_requests(const struct allocator_settings *settings, const struct requests *requests,
                         struct outcome *outcome) {
  struct allocator *a = new_allocator(settings);
  int32_t *blocks = malloc(((size_t)requests->num_blocks + 1) * sizeof *blocks);
  struct play p = {a, requests, outcome, blocks};
  bool is_done = a && blocks;
  for (int64_t i = 0; i < requests->num_blocks && blocks; i++) blocks[i] = NONE;
  if (is_done) {
    int64_t at = play(&p, requests->before, requests->num_before, false);
    is_done = at >= 0;
    outcome->stopped_at = -1;
    if (at == requests->num_before) {
      a->requested_peak = a->requested;
      a->allocated_peak = a->allocated;
      a->reserved_peak = a->reserved;
      outcome->stopped_at = play(&p, requests->ops, requests->num_ops, true);
      is_done = outcome->stopped_at >= 0;
    }
    outcome->requested_peak = a->requested_peak;
    outcome->allocated_peak = a->allocated_peak;
    outcome->reserved_peak = a->reserved_peak;
    outcome->num_retries = a->num_retries;
    outcome->num_device_allocs = a->num_device_allocs;
    is_done = is_done && (!outcome->segments || list_segments(a, outcome));
  }
  if (a) delete_allocator(a);
  free(blocks);
  return is_done;
}

EXPORT void round_sizes(const struct allocator_settings *settings, const int64_t *sizes, int64_t count, int64_t *rounded) {
  for (int64_t i = 0; i < count; i++) rounded[i] = round_size(settings, sizes[i]);
}

EXPORT int64_t size_of_segment(const struct allocator_settings *settings, int64_t size) {
  return segment_size(settings, round_size(settings, size));
}

EXPORT void fill_default_settings(struct allocator_settings *settings) { *settings = default_settings; }
