/* Feeds PyTorch's caching allocator, by its rules, with what a played program asks for.
 *
 * The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings: best fit in one of two pools of a
 * stream, a new segment where nothing fits, the rest of a block split off where it is large enough, free neighbours
 * merged. Nothing is given back to the driver.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NONE (-1)

enum { SMALL = 1 << 20, SMALL_SEGMENT = 2 << 20, LARGE_SEGMENT = 20 << 20, OWN_SEGMENT = 10 << 20, LEAST = 512 };
enum { NUM_STREAMS = 256 };

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

/* A played log: a row for each storage. One that dies more often than it was made, as a layer's output does that the
 * next layer lets go, has an heir that is freed instead. */
struct replay {
  const int64_t *sizes;
  const uint8_t *streams;
  int32_t *oldest, *newest;
  const int32_t *heirs;
  struct block *blocks;
  int64_t room;
  int32_t num_blocks, unused; /* a list, by `after` */
  struct pool pools[2 * NUM_STREAMS];
  int64_t allocated, reserved, peak;
  bool has_failed;
};

static int32_t add_block(struct replay *r, int64_t address, int64_t size, int32_t pool) {
  int32_t number = r->unused;
  if (number != NONE) {
    r->unused = r->blocks[number].after;
  } else {
    if (r->num_blocks == r->room) {
      int64_t room = r->room ? r->room * 2 : 1024;
      struct block *grown = room > INT32_MAX ? NULL : realloc(r->blocks, (size_t)room * sizeof *grown);
      if (!grown) {
        r->has_failed = true;
        return NONE;
      }
      r->blocks = grown;
      r->room = room;
    }
    number = r->num_blocks++;
  }
  r->blocks[number] = (struct block){address, size, NONE, NONE, NONE, NONE, pool, false};
  return number;
}

static void drop_block(struct replay *r, int32_t number) {
  r->blocks[number].after = r->unused;
  r->unused = number;
}

/* Where in a pool the first block is that is not before this size and address. */
static int64_t seek(const struct replay *r, const struct pool *pool, int64_t size, int64_t address) {
  int64_t low = 0, high = pool->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const struct block *block = &r->blocks[pool->blocks[middle]];
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

static void put_in(struct replay *r, int32_t number) {
  struct block *block = &r->blocks[number];
  struct pool *pool = &r->pools[block->pool];
  if (pool->count == pool->room) {
    int64_t room = pool->room ? pool->room * 2 : 256;
    int32_t *grown = realloc(pool->blocks, (size_t)room * sizeof *grown);
    if (!grown) {
      r->has_failed = true;
      return;
    }
    pool->blocks = grown;
    pool->room = room;
  }
  int64_t place = seek(r, pool, block->size, block->address);
  memmove(&pool->blocks[place + 1], &pool->blocks[place], (size_t)(pool->count - place) * sizeof *pool->blocks);
  pool->blocks[place] = number;
  pool->count++;
  block->is_free = true;
}

/* Takes a free block out of its pool; false where it is none. */
static bool claim(struct replay *r, int32_t number) {
  if (number == NONE || !r->blocks[number].is_free) return false;
  struct block *block = &r->blocks[number];
  struct pool *pool = &r->pools[block->pool];
  take_out(pool, seek(r, pool, block->size, block->address));
  return true;
}

static int32_t reserve(struct replay *r, int64_t size, int32_t pool) {
  int64_t length = size;
  if (size <= SMALL)
    length = SMALL_SEGMENT;
  else if (size < OWN_SEGMENT)
    length = LARGE_SEGMENT;
  else if (size <= INT64_MAX - SMALL_SEGMENT)
    length = (size + SMALL_SEGMENT - 1) / SMALL_SEGMENT * SMALL_SEGMENT;
  if (length > INT64_MAX - r->reserved) {
    r->has_failed = true;
    return NONE;
  }
  int32_t number = add_block(r, r->reserved, length, pool); /* segments follow each other */
  r->reserved += length;
  return number;
}

static void split(struct replay *r, int32_t number, int64_t size) {
  struct block whole = r->blocks[number];
  int32_t rest = add_block(r, whole.address + size, whole.size - size, whole.pool);
  if (rest == NONE) return;
  r->blocks[rest].before = number;
  r->blocks[rest].after = whole.after;
  if (whole.after != NONE) r->blocks[whole.after].before = rest;
  r->blocks[number].after = rest;
  r->blocks[number].size = size;
  put_in(r, rest);
}

static int32_t allocate(struct replay *r, int64_t size, uint8_t stream) {
  bool is_small = size <= SMALL;
  struct pool *pool = &r->pools[2 * stream + is_small];
  int64_t place = seek(r, pool, size, 0);
  int32_t number;
  if (place < pool->count) {
    number = pool->blocks[place];
    take_out(pool, place);
    r->blocks[number].is_free = false;
  } else {
    number = reserve(r, size, 2 * stream + is_small);
    if (number == NONE) return NONE;
  }
  int64_t rest = r->blocks[number].size - size;
  if (is_small ? rest >= LEAST : rest > SMALL) split(r, number, size);
  r->allocated += r->blocks[number].size;
  if (r->allocated > r->peak) r->peak = r->allocated;
  return number;
}

/* Makes one of two neighbours. */
static void join(struct replay *r, int32_t first, int32_t second) {
  struct block *block = &r->blocks[first];
  block->size += r->blocks[second].size;
  block->after = r->blocks[second].after;
  if (block->after != NONE) r->blocks[block->after].before = first;
  drop_block(r, second);
}

static void release(struct replay *r, int32_t number) {
  r->allocated -= r->blocks[number].size;
  int32_t before = r->blocks[number].before, after = r->blocks[number].after;
  if (claim(r, after)) join(r, number, after);
  if (claim(r, before)) {
    join(r, before, number);
    number = before;
  }
  put_in(r, number);
}

static void make(struct replay *r, int32_t storage) {
  int32_t number = allocate(r, r->sizes[storage], r->streams[storage]);
  if (number == NONE) return;
  struct block *block = &r->blocks[number];
  block->older = r->newest[storage];
  block->newer = NONE;
  *(block->older == NONE ? &r->oldest[storage] : &r->blocks[block->older].newer) = number;
  r->newest[storage] = number;
}

/* Frees the oldest or the newest block that a storage has. */
static void let_go(struct replay *r, int32_t storage, bool is_newest) {
  int32_t number = is_newest ? r->newest[storage] : r->oldest[storage];
  struct block *block = &r->blocks[number];
  *(block->older == NONE ? &r->oldest[storage] : &r->blocks[block->older].newer) = block->newer;
  *(block->newer == NONE ? &r->newest[storage] : &r->blocks[block->newer].older) = block->older;
  release(r, number);
}

/* Frees the newest block of a storage; where it has none, one of its heir's. */
static void end(struct replay *r, int32_t storage, bool is_newest) {
  int32_t heir = r->heirs[storage];
  if (r->oldest[storage] != NONE)
    let_go(r, storage, true);
  else if (heir != NONE && r->oldest[heir] != NONE)
    let_go(r, heir, is_newest);
}

enum kind { FORWARD, BACKWARD, DROP };

/* Events that are passed through so many times. */
struct run {
  int64_t begin, end, repeats, kind;
};

static void play(struct replay *r, const struct run *run, const int32_t *events) {
  for (int64_t turn = 0; turn < run->repeats; turn++) {
    for (int64_t i = run->begin; i < run->end && !r->has_failed; i++) {
      int32_t storage = events[i] < 0 ? ~events[i] : events[i];
      if (!r->sizes[storage]) continue;
      if (run->kind == DROP) {
        if (r->oldest[storage] != NONE) let_go(r, storage, false);
      } else if (events[i] >= 0) {
        make(r, storage);
      } else {
        end(r, storage, run->kind == BACKWARD);
      }
    }
  }
}

/* Replays runs of a log's events: numbers of storages that are made, complements of those that die; one without bytes
 * is passed over. heirs: of each storage the one that is freed in its place, or -1; dropped: those that a run of kind
 * DROP frees, the oldest block of each. found: bytes reserved, and the most that was in blocks. Returns 0 where there
 * is no memory for it, or more is asked for than there are numbers. */
EXPORT int replay_log(const int64_t *sizes, int64_t num_storages, const uint8_t *streams, const int32_t *events,
                      const int32_t *heirs, const int32_t *dropped, const struct run *runs, int64_t num_runs,
                      int64_t found[2]) {
  struct replay *r = calloc(1, sizeof *r);
  if (!r) return 0;
  r->sizes = sizes;
  r->streams = streams;
  r->heirs = heirs;
  r->unused = NONE;
  r->oldest = malloc(((size_t)num_storages + 1) * sizeof *r->oldest);
  r->newest = malloc(((size_t)num_storages + 1) * sizeof *r->newest);
  r->has_failed = !r->oldest || !r->newest;
  for (int64_t i = 0; i < num_storages && !r->has_failed; i++) r->oldest[i] = r->newest[i] = NONE;
  for (int64_t i = 0; i < num_runs && !r->has_failed; i++) play(r, &runs[i], runs[i].kind == DROP ? dropped : events);
  bool is_done = !r->has_failed;
  found[0] = r->reserved;
  found[1] = r->peak;
  for (int i = 0; i < 2 * NUM_STREAMS; i++) free(r->pools[i].blocks);
  free(r->blocks);
  free(r->oldest);
  free(r->newest);
  free(r);
  return is_done;
}
