/* The rules of PyTorch's caching allocator.
 *
 * They are those of c10/cuda/CUDACachingAllocator.cpp with its default settings: best fit in one of two pools of a
 * stream, a new segment where nothing fits, the rest of a block split off where it is large enough, free neighbours
 * merged. Of free blocks of one size it takes the one with the lowest address, as torch did up to 2.12; from 2.13 on it
 * takes that of the oldest segment, which is the same where addresses go upwards and none is given out twice.
 */
#include "allocator.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL = 1 << 20, SMALL_SEGMENT = 2 << 20, LARGE_SEGMENT = 20 << 20, OWN_SEGMENT = 10 << 20 };

static int32_t add_block(struct allocator *a, int64_t address, int64_t size, int32_t pool) {
  int32_t number = a->unused;
  if (number != NONE) {
    a->unused = a->blocks[number].after;
  } else {
    if (a->num_blocks == a->room) {
      int64_t room = a->room ? a->room * 2 : 1024;
      struct block *grown = room > INT32_MAX ? NULL : realloc(a->blocks, (size_t)room * sizeof *grown);
      if (!grown) {
        a->has_failed = true;
        return NONE;
      }
      a->blocks = grown;
      a->room = room;
    }
    number = a->num_blocks++;
  }
  a->blocks[number] = (struct block){address, size, NONE, NONE, NONE, NONE, pool, false};
  return number;
}

static void drop_block(struct allocator *a, int32_t number) {
  a->blocks[number].after = a->unused;
  a->unused = number;
}

/* Where in a pool the first block is that is not before this size and address. */
static int64_t seek(const struct allocator *a, const struct pool *pool, int64_t size, int64_t address) {
  int64_t low = 0, high = pool->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const struct block *block = &a->blocks[pool->blocks[middle]];
    if (block->size < size || (block->size == size && block->address < address))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void take_out(struct pool *pool, int64_t place) {
  pool->count--;
  memmove(&pool->blocks[place], &pool->blocks[place + 1], (size_t)(pool->count - place) * sizeof *pool->blocks);
}

static void put_in(struct allocator *a, int32_t number) {
  struct block *block = &a->blocks[number];
  struct pool *pool = &a->pools[block->pool];
  if (pool->count == pool->room) {
    int64_t room = pool->room ? pool->room * 2 : 256;
    int32_t *grown = realloc(pool->blocks, (size_t)room * sizeof *grown);
    if (!grown) {
      a->has_failed = true;
      return;
    }
    pool->blocks = grown;
    pool->room = room;
  }
  int64_t place = seek(a, pool, block->size, block->address);
  memmove(&pool->blocks[place + 1], &pool->blocks[place], (size_t)(pool->count - place) * sizeof *pool->blocks);
  pool->blocks[place] = number;
  pool->count++;
  block->is_free = true;
}

/* Takes a free block out of its pool; false where it is none. */
static bool claim(struct allocator *a, int32_t number) {
  if (number == NONE || !a->blocks[number].is_free) return false;
  struct block *block = &a->blocks[number];
  struct pool *pool = &a->pools[block->pool];
  take_out(pool, seek(a, pool, block->size, block->address));
  return true;
}

static int32_t reserve(struct allocator *a, int64_t size, int32_t pool) {
  int64_t length = size;
  if (size <= SMALL)
    length = SMALL_SEGMENT;
  else if (size < OWN_SEGMENT)
    length = LARGE_SEGMENT;
  else if (size <= INT64_MAX - SMALL_SEGMENT)
    length = (size + SMALL_SEGMENT - 1) / SMALL_SEGMENT * SMALL_SEGMENT;
  if (length > INT64_MAX - a->reserved) {
    a->has_failed = true;
    return NONE;
  }
  uintptr_t address = take_addresses(a->addresses, (size_t)length);
  if (!address) {
    a->has_failed = true;
    return NONE;
  }
  int32_t number = add_block(a, (int64_t)address, length, pool);
  a->reserved += length;
  if (a->reserved > a->reserved_peak) a->reserved_peak = a->reserved;
  return number;
}

static void split(struct allocator *a, int32_t number, int64_t size) {
  struct block whole = a->blocks[number];
  int32_t rest = add_block(a, whole.address + size, whole.size - size, whole.pool);
  if (rest == NONE) return;
  a->blocks[rest].before = number;
  a->blocks[rest].after = whole.after;
  if (whole.after != NONE) a->blocks[whole.after].before = rest;
  a->blocks[number].after = rest;
  a->blocks[number].size = size;
  put_in(a, rest);
}

int32_t allocate_block(struct allocator *a, int64_t size, uint8_t stream) {
  bool is_small = size <= SMALL;
  struct pool *pool = &a->pools[2 * stream + is_small];
  int64_t place = seek(a, pool, size, 0);
  int32_t number;
  if (place < pool->count) {
    number = pool->blocks[place];
    take_out(pool, place);
    a->blocks[number].is_free = false;
  } else {
    number = reserve(a, size, 2 * stream + is_small);
    if (number == NONE) return NONE;
  }
  int64_t rest = a->blocks[number].size - size;
  if (is_small ? rest >= LEAST : rest > SMALL) split(a, number, size);
  a->allocated += a->blocks[number].size;
  if (a->allocated > a->allocated_peak) a->allocated_peak = a->allocated;
  return number;
}

/* Makes one of two neighbours. */
static void join(struct allocator *a, int32_t first, int32_t second) {
  struct block *block = &a->blocks[first];
  block->size += a->blocks[second].size;
  block->after = a->blocks[second].after;
  if (block->after != NONE) a->blocks[block->after].before = first;
  drop_block(a, second);
}

void release_block(struct allocator *a, int32_t number) {
  a->allocated -= a->blocks[number].size;
  int32_t before = a->blocks[number].before, after = a->blocks[number].after;
  if (claim(a, after)) join(a, number, after);
  if (claim(a, before)) {
    join(a, before, number);
    number = before;
  }
  put_in(a, number);
}

void empty_cache(struct allocator *a) {
  for (int i = 0; i < 2 * NUM_STREAMS; i++) {
    struct pool *pool = &a->pools[i];
    for (int64_t place = pool->count - 1; place >= 0; place--) {
      int32_t number = pool->blocks[place];
      const struct block *block = &a->blocks[number];
      if (block->before != NONE || block->after != NONE) continue;
      a->reserved -= block->size;
      if (!a->is_by_age) return_addresses(a->addresses, (uintptr_t)block->address, (size_t)block->size);
      take_out(pool, place);
      drop_block(a, number);
    }
  }
}

struct allocator *new_allocator(enum address_order order) {
  static const uintptr_t BOTTOM = 32 << 20; /* an address is never 0 */
  struct allocator *a = calloc(1, sizeof *a);
  if (!a) return NULL;
  a->unused = NONE;
  a->addresses = new_address_space(BOTTOM, (uintptr_t)INT64_MAX, order);
  if (a->addresses) return a;
  free(a);
  return NULL;
}

void delete_allocator(struct allocator *a) {
  for (int i = 0; i < 2 * NUM_STREAMS; i++) free(a->pools[i].blocks);
  free(a->blocks);
  delete_address_space(a->addresses);
  free(a);
}
