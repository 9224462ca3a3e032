/* Replays a trace of the allocator over the blocks that were there before it: what size each block really got.
 *
 * A trace says what was asked for. The block that is given begins a free range; what is left of the range is split off
 * where the allocator's rule says so, else the block has it all. Free neighbours are one range. So every block lies in
 * a chain of neighbours, in the order of their addresses, and is found by its address or by its end.
 */
#include "rules.h"
#include "seed.h"

#include <stdlib.h>
#include <string.h>

enum action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP };
enum problem { FINE, NO_MEMORY, NOT_FREE, TOO_SMALL, NOT_LIVE, NO_SEGMENT, OVERLAP, TOO_SCATTERED, NO_SIZE };
#define NOBODY 0u
#define GONE UINT32_MAX
#define MAX_SEARCHED ((uint64_t)1 << 32)

/* Of the ranges that are free and of the blocks that are not. Number 0 is nobody. */
struct range {
  int64_t address, size;
  uint32_t before, after;
  bool is_live, splits_all;
};

/* Numbers of ranges by a place in memory. NOBODY is an empty entry, GONE one that was taken away. The hash is seeded, so
 * that no file can be made to collide. */
struct index {
  int64_t *places;
  uint32_t *numbers;
  uint64_t room, used, seed;
};

struct replay {
  struct range *ranges;
  uint64_t num_ranges, room;
  uint32_t unused; /* a list of ranges that are no more, by `after` */
  struct index by_begin, by_end;
  const struct allocator_settings *settings;
  uint64_t num_searched;
  bool has_memory;
};

static int64_t end_of(int64_t address, int64_t size) { return (int64_t)((uint64_t)address + (uint64_t)size); }

/* Where a place is, or else the first entry where it could be. */
static uint64_t seek(const struct index *index, int64_t place) {
  unsigned __int128 product = (unsigned __int128)((uint64_t)place ^ index->seed) * 0x9e3779b97f4a7c15u;
  uint64_t i = ((uint64_t)product ^ (uint64_t)(product >> 64)) & (index->room - 1), gone = UINT64_MAX;
  for (; index->numbers[i] != NOBODY; i = (i + 1) & (index->room - 1)) {
    if (index->numbers[i] == GONE)
      gone = gone == UINT64_MAX ? i : gone;
    else if (index->places[i] == place)
      return i;
  }
  return gone == UINT64_MAX ? i : gone;
}

static bool grow(struct index *index) {
  uint64_t live = 0;
  for (uint64_t i = 0; i < index->room; i++) live += index->numbers[i] != NOBODY && index->numbers[i] != GONE;
  struct index larger = {NULL, NULL, 1024, 0, index->seed};
  while (larger.room < live * 4) larger.room *= 2;
  larger.places = malloc(larger.room * sizeof *larger.places);
  larger.numbers = calloc(larger.room, sizeof *larger.numbers);
  if (!larger.places || !larger.numbers) {
    free(larger.places);
    free(larger.numbers);
    return false;
  }
  for (uint64_t i = 0; i < index->room; i++) {
    if (index->numbers[i] == NOBODY || index->numbers[i] == GONE) continue;
    uint64_t to = seek(&larger, index->places[i]);
    larger.places[to] = index->places[i];
    larger.numbers[to] = index->numbers[i];
    larger.used++;
  }
  free(index->places);
  free(index->numbers);
  *index = larger;
  return true;
}

static void enter(struct replay *r, struct index *index, int64_t place, uint32_t number) {
  if (index->used * 2 >= index->room && !grow(index)) {
    r->has_memory = false;
    return;
  }
  uint64_t i = seek(index, place);
  index->used += index->numbers[i] == NOBODY;
  index->places[i] = place;
  index->numbers[i] = number;
}

static uint32_t look_up(const struct index *index, int64_t place) {
  uint32_t number = index->numbers[seek(index, place)];
  return number == GONE ? NOBODY : number;
}

static void forget(struct index *index, int64_t place) {
  uint64_t i = seek(index, place);
  if (index->numbers[i] != NOBODY) index->numbers[i] = GONE;
}

static uint32_t add_range(struct replay *r, int64_t address, int64_t size, bool is_live, bool splits_all) {
  uint32_t number = r->unused;
  if (number) {
    r->unused = r->ranges[number].after;
  } else {
    if (r->num_ranges == r->room) {
      uint64_t room = r->room ? r->room * 2 : 1024;
      struct range *grown = realloc(r->ranges, room * sizeof *grown);
      if (!grown) {
        r->has_memory = false;
        return NOBODY;
      }
      r->ranges = grown;
      r->room = room;
    }
    number = (uint32_t)r->num_ranges++;
  }
  r->ranges[number] = (struct range){address, size, NOBODY, NOBODY, is_live, splits_all};
  enter(r, &r->by_begin, address, number);
  enter(r, &r->by_end, end_of(address, size), number);
  return number;
}

static void remove_range(struct replay *r, uint32_t number) {
  struct range *range = &r->ranges[number];
  if (range->before) r->ranges[range->before].after = NOBODY;
  if (range->after) r->ranges[range->after].before = NOBODY;
  forget(&r->by_begin, range->address);
  forget(&r->by_end, end_of(range->address, range->size));
  range->after = r->unused;
  r->unused = number;
}

static void link_ranges(struct replay *r, uint32_t before, uint32_t after) {
  if (before) r->ranges[before].after = after;
  if (after) r->ranges[after].before = before;
}

/* Cuts a range in two; returns the second. */
static uint32_t split(struct replay *r, uint32_t number, int64_t size) {
  struct range whole = r->ranges[number];
  forget(&r->by_end, end_of(whole.address, whole.size));
  r->ranges[number].size = size;
  enter(r, &r->by_end, end_of(whole.address, size), number);
  uint32_t rest = add_range(r, end_of(whole.address, size), whole.size - size, false, whole.splits_all);
  if (!rest) return NOBODY;
  link_ranges(r, rest, whole.after);
  link_ranges(r, number, rest);
  return rest;
}

/* Makes one of two free neighbours. */
static void merge(struct replay *r, uint32_t first, uint32_t second) {
  if (!first || !second || r->ranges[first].is_live || r->ranges[second].is_live) return;
  struct range taken = r->ranges[second];
  remove_range(r, second);
  forget(&r->by_end, end_of(r->ranges[first].address, r->ranges[first].size));
  r->ranges[first].size = end_of(r->ranges[first].size, taken.size);
  enter(r, &r->by_end, end_of(r->ranges[first].address, r->ranges[first].size), first);
  link_ranges(r, first, taken.after);
}

static enum problem allocate(struct replay *r, int64_t address, int64_t size, int64_t *block_bytes) {
  uint32_t number = look_up(&r->by_begin, address);
  if (!number || r->ranges[number].is_live) return NOT_FREE;
  struct range *range = &r->ranges[number];
  int64_t rounded = round_size(r->settings, size);
  if (rounded < 0) return NO_SIZE;
  if (range->size < rounded) return TOO_SMALL;
  if (is_split(r->settings, range->splits_all, rounded, range->size - rounded)) split(r, number, rounded);
  r->ranges[number].is_live = true;
  *block_bytes = r->ranges[number].size;
  return FINE;
}

static enum problem release(struct replay *r, int64_t address, int64_t *block_bytes) {
  uint32_t number = look_up(&r->by_begin, address);
  if (!number || !r->ranges[number].is_live) return NOT_LIVE;
  *block_bytes = r->ranges[number].size;
  r->ranges[number].is_live = false;
  merge(r, number, r->ranges[number].after);
  merge(r, r->ranges[number].before, number);
  return FINE;
}

static enum problem add_segment(struct replay *r, int64_t address, int64_t size, bool splits_all, bool is_mapped) {
  int64_t end = end_of(address, size);
  if (look_up(&r->by_begin, address) || look_up(&r->by_end, end)) return OVERLAP;
  uint32_t before = is_mapped ? look_up(&r->by_end, address) : NOBODY;
  uint32_t after = is_mapped ? look_up(&r->by_begin, end) : NOBODY;
  uint32_t number = add_range(r, address, size, false, splits_all);
  if (!number) return NO_MEMORY;
  link_ranges(r, before, number);
  link_ranges(r, number, after);
  merge(r, number, after);
  merge(r, before, number);
  return FINE;
}

/* The free range that an address lies within. Looked for only in an expandable segment, and seldom. */
static uint32_t find_around(struct replay *r, int64_t address) {
  for (uint32_t i = 1; i < r->num_ranges; i++, r->num_searched++) {
    struct range *range = &r->ranges[i];
    if (!range->is_live && range->address < address && address < end_of(range->address, range->size) &&
        look_up(&r->by_begin, range->address) == i)
      return i;
  }
  return NOBODY;
}

static enum problem remove_segment(struct replay *r, int64_t address, int64_t size) {
  uint32_t number = look_up(&r->by_begin, address);
  if (!number) {
    if (r->num_searched > MAX_SEARCHED) return TOO_SCATTERED;
    uint32_t around = find_around(r, address);
    if (around) number = split(r, around, address - r->ranges[around].address);
  }
  if (!number || r->ranges[number].is_live || r->ranges[number].size < size) return NO_SEGMENT;
  if (r->ranges[number].size > size) split(r, number, size);
  remove_range(r, number);
  return FINE;
}

static enum problem step(struct replay *r, int action, int64_t address, int64_t size, bool splits_all,
                         int64_t *block_bytes) {
  bool has_size = action == ALLOC || (action >= SEGMENT_ALLOC && action <= SEGMENT_UNMAP);
  if (has_size && size < 0) return NO_SIZE;
  switch (action) {
  case ALLOC: return allocate(r, address, size, block_bytes);
  case FREE_COMPLETED: return release(r, address, block_bytes);
  case SEGMENT_ALLOC: return add_segment(r, address, size, splits_all, false);
  case SEGMENT_MAP: return add_segment(r, address, size, true, true);
  case SEGMENT_FREE: case SEGMENT_UNMAP: return remove_segment(r, address, size);
  default: return FINE;
  }
}

/* Lays out the ranges before the first event: in the order of their addresses, each with the segment it is part of. */
static bool lay_out(struct replay *r, uint64_t num, const int64_t *address, const int64_t *size, const uint8_t *is_live,
                    const uint8_t *splits_all, const int64_t *segment) {
  uint32_t before = NOBODY;
  for (uint64_t i = 0; i < num && r->has_memory; i++) {
    uint32_t number = add_range(r, address[i], size[i], is_live[i], splits_all[i]);
    if (before && segment[i] == segment[i - 1]) link_ranges(r, before, number);
    before = number;
  }
  return r->has_memory;
}

/* Replays num_events after ranges whose sizes are not negative. block_bytes gets the size of each block that came or
 * went, 0 of other events. Returns how many events went through; of the next, *problem says what is wrong with it. */
EXPORT uint64_t replay_trace(uint64_t num_ranges, const int64_t *range_address, const int64_t *range_size,
                             const uint8_t *range_is_live, const uint8_t *range_splits_all,
                             const int64_t *range_segment, uint64_t num_events, const uint8_t *action,
                             const int64_t *address, const int64_t *size, const uint8_t *splits_all,
                             const struct allocator_settings *settings, int64_t *block_bytes, int *problem) {
  struct replay r = {.has_memory = true, .settings = settings};
  r.by_begin.seed = r.by_end.seed = make_seed(&r);
  uint64_t i = 0;
  *problem = NO_MEMORY;
  if (grow(&r.by_begin) && grow(&r.by_end)) {
    r.ranges = calloc(r.room = 1024, sizeof *r.ranges);
    r.num_ranges = 1; /* nobody */
    if (r.ranges &&
        lay_out(&r, num_ranges, range_address, range_size, range_is_live, range_splits_all, range_segment)) {
      *problem = FINE;
      for (; i < num_events && *problem == FINE; i++) {
        *problem = (int)step(&r, action[i], address[i], size[i], splits_all[i], &block_bytes[i]);
        if (!r.has_memory) *problem = NO_MEMORY;
        if (*problem != FINE) break;
      }
    }
  }
  free(r.ranges);
  free(r.by_begin.places);
  free(r.by_begin.numbers);
  free(r.by_end.places);
  free(r.by_end.numbers);
  return i;
}
