/* Feeds PyTorch's caching allocator with what a played program asks for. Nothing is given back to the driver. */
#include "allocator.h"

#include <stdlib.h>

/* A played log: a row for each storage. One that dies more often than it was made, as a layer's output does that the
 * next layer lets go, has an heir that is freed instead. */
struct replay {
  const int64_t *sizes;
  const uint8_t *streams;
  int32_t *oldest, *newest;
  const int32_t *heirs;
  struct allocator *allocator;
};

static void make(struct replay *r, int32_t storage) {
  int32_t number = allocate_block(r->allocator, r->sizes[storage], r->streams[storage]);
  if (number == NONE) return;
  struct block *block = &r->allocator->blocks[number];
  block->older = r->newest[storage];
  block->newer = NONE;
  *(block->older == NONE ? &r->oldest[storage] : &r->allocator->blocks[block->older].newer) = number;
  r->newest[storage] = number;
}

/* Frees the oldest or the newest block that a storage has. */
static void let_go(struct replay *r, int32_t storage, bool is_newest) {
  int32_t number = is_newest ? r->newest[storage] : r->oldest[storage];
  struct block *block = &r->allocator->blocks[number];
  *(block->older == NONE ? &r->oldest[storage] : &r->allocator->blocks[block->older].newer) = block->newer;
  *(block->newer == NONE ? &r->newest[storage] : &r->allocator->blocks[block->newer].older) = block->older;
  release_block(r->allocator, number);
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
    for (int64_t i = run->begin; i < run->end && !r->allocator->has_failed; i++) {
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
  struct allocator *allocator = new_allocator(&default_settings); /* ties by age, as torch from 2.13 on has it */
  if (!allocator) return 0;
  int32_t *lists = malloc(2 * ((size_t)num_storages + 1) * sizeof *lists);
  allocator->has_failed = !lists;
  for (int64_t i = 0; i < 2 * num_storages && lists; i++) lists[i] = NONE;
  struct replay r = {sizes, streams, lists, lists + num_storages, heirs, allocator};
  for (int64_t i = 0; i < num_runs && !allocator->has_failed; i++)
    play(&r, &runs[i], runs[i].kind == DROP ? dropped : events);
  bool is_done = !allocator->has_failed;
  found[0] = allocator->reserved;
  found[1] = allocator->allocated_peak;
  free(lists);
  delete_allocator(allocator);
  return is_done;
}
