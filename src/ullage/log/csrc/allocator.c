/* The rules of PyTorch's caching allocator, as it decides: best fit in one of two pools of a stream, a new segment where
 * nothing fits, the rest of a block split off where it is large enough, free neighbours merged.
 *
 * An expandable segment is a range of addresses for a pool. A block of it may be without memory (is_unmapped): pages of
 * 2 MiB, or the size of a large segment, are mapped where a request needs them, and unmapped where the cache is emptied.
 *
 * Where the device has no room, cached segments go back before the request is made again: first, of those that are not
 * split (max_split), as many as it needs; then all. A collection of garbage may come before that.
 *
 * Not modelled: pools with an allocator of their own, pools that do not split or that others fall back on, graph capture.
 * Source: c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15; ties by pytorch#183591. Checked against that very code,
 * event by event, in tests/phantom/test_allocator.py.
 */
#include "allocator.h"

#include <stdlib.h>
#include <string.h>

const struct allocator_settings default_settings = {
    .max_split = INT64_MAX,
    .max_unused = LARGE_SEGMENT,
    .large_segment = LARGE_SEGMENT,
    .device_bytes = INT64_MAX,
    .allowed_bytes = INT64_MAX,
    .range_bytes = (int64_t)1 << 50,
    .order = WINDOWS_ORDER,
    .tie = BY_AGE,
};

static bool is_small_pool(int32_t pool) { return pool & 1; }

static int32_t add_block(struct allocator *a, struct block block) {
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
  a->blocks[number] = block;
  return number;
}

static void drop_block(struct allocator *a, int32_t number) {
  a->blocks[number].pool = NONE;
  a->blocks[number].after = a->unused;
  a->unused = number;
}

/* ---- Lists of blocks ------------------------------------------------------------------------------------------- */

static bool is_before(const struct allocator *a, const struct block *block, const struct block *key) {
  if (!key->is_unmapped) {
    if (block->size != key->size) return block->size < key->size;
    if (a->settings.tie == BY_AGE && block->age != key->age) return block->age < key->age;
  }
  return block->address < key->address;
}

/* Where in a list the first block is that is not before this one. */
static int64_t seek(const struct allocator *a, const struct list *list, const struct block *key) {
  int64_t low = 0, high = list->count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (is_before(a, &a->blocks[list->blocks[middle]], key))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static int64_t seek_size(const struct allocator *a, const struct list *list, int64_t size) {
  struct block key = {.size = size, .age = -1, .address = -1};
  return seek(a, list, &key);
}

static struct list *list_of(struct allocator *a, const struct block *block) {
  struct pool *pool = &a->pools[block->pool];
  return block->is_unmapped ? &pool->unmapped : &pool->free;
}

/* Enters a block that is not in use into the list of its kind. */
static void put_in(struct allocator *a, int32_t number) {
  struct block *block = &a->blocks[number];
  struct list *list = list_of(a, block);
  if (list->count == list->room) {
    int64_t room = list->room ? list->room * 2 : 256;
    int32_t *grown = realloc(list->blocks, (size_t)room * sizeof *grown);
    if (!grown) {
      a->has_failed = true;
      return;
    }
    list->blocks = grown;
    list->room = room;
  }
  block->is_free = true;
  block->searches = a->num_searches;
  int64_t place = seek(a, list, block);
  memmove(&list->blocks[place + 1], &list->blocks[place], (size_t)(list->count - place) * sizeof *list->blocks);
  list->blocks[place] = number;
  list->count++;
}

static void take_out(struct allocator *a, int32_t number) {
  struct block *block = &a->blocks[number];
  struct list *list = list_of(a, block);
  int64_t place = seek(a, list, block);
  list->count--;
  memmove(&list->blocks[place], &list->blocks[place + 1], (size_t)(list->count - place) * sizeof *list->blocks);
  block->is_free = false;
}

/* ---- Neighbours in a segment ----------------------------------------------------------------------------------- */

/* Cuts a block, which is in no list; the second part, which is in none either. */
static int32_t split(struct allocator *a, int32_t number, int64_t size) {
  struct block second = a->blocks[number];
  second.address += size;
  second.size -= size;
  second.before = number;
  int32_t rest = add_block(a, second);
  if (rest == NONE) return NONE;
  if (second.after != NONE) a->blocks[second.after].before = rest;
  a->blocks[number].after = rest;
  a->blocks[number].size = size;
  return rest;
}

/* Makes one of two neighbours that are in no list. */
static void join(struct allocator *a, int32_t first, int32_t second) {
  struct block *block = &a->blocks[first];
  block->size += a->blocks[second].size;
  block->after = a->blocks[second].after;
  if (block->after != NONE) a->blocks[block->after].before = first;
  drop_block(a, second);
}

/* Joins a block, which is in no list, with those of its neighbours that are as free and as mapped, and enters it. */
static int32_t put_back(struct allocator *a, int32_t number) {
  bool is_unmapped = a->blocks[number].is_unmapped;
  int32_t before = a->blocks[number].before, after = a->blocks[number].after;
  if (after != NONE && a->blocks[after].is_free && a->blocks[after].is_unmapped == is_unmapped) {
    take_out(a, after);
    join(a, number, after);
  }
  if (before != NONE && a->blocks[before].is_free && a->blocks[before].is_unmapped == is_unmapped) {
    take_out(a, before);
    join(a, before, number);
    number = before;
  }
  put_in(a, number);
  return number;
}

/* ---- What is asked of the driver ------------------------------------------------------------------------------- */

/* Whether the driver has so many bytes more. */
static bool reserve(struct allocator *a, int64_t size) {
  if (size > a->settings.device_bytes - a->reserved) return false;
  a->reserved += size;
  if (a->reserved > a->reserved_peak) a->reserved_peak = a->reserved;
  a->num_device_allocs++;
  return true;
}

static int32_t add_range(struct allocator *a, int64_t size, int32_t pool) {
  uintptr_t address = take_addresses(a->addresses, (size_t)size);
  if (!address || a->num_ages == INT32_MAX) {
    a->has_failed = true;
    return NONE;
  }
  int64_t start = (int64_t)address;
  return add_block(a, (struct block){start, size, start, 0, 0, NONE, NONE, NONE, NONE, pool, a->num_ages++, false, false});
}

static int32_t add_segment(struct allocator *a, int64_t size, int32_t pool) {
  return reserve(a, size) ? add_range(a, size, pool) : NONE;
}

static int64_t page_of(const struct allocator *a, int32_t pool) {
  return is_small_pool(pool) ? PAGE : a->settings.large_segment;
}

/* Gives memory to the beginning of a block that has none; the free block that it is part of then, or NONE. */
static int32_t map_pages(struct allocator *a, int32_t number, int64_t size) {
  struct block *block = &a->blocks[number];
  int64_t length = round_up(size < block->size ? size : block->size, page_of(a, block->pool));
  if (!reserve(a, length)) return NONE;
  take_out(a, number);
  if (length < block->size) {
    int32_t rest = split(a, number, length);
    if (rest == NONE) return NONE;
    put_in(a, rest);
  }
  a->blocks[number].is_unmapped = false;
  return put_back(a, number);
}

/* Whether a block and what follows it are not in use for so many bytes. */
static bool has_room(const struct allocator *a, int32_t number, int64_t size) {
  for (; size > 0 && number != NONE && a->blocks[number].is_free; number = a->blocks[number].after)
    size -= a->blocks[number].size;
  return size <= 0;
}

/* Where the lowest addresses are that have memory or can get it: a block without memory, or the free one before it. */
static int32_t find_room(struct allocator *a, int32_t pool, int64_t size) {
  const struct list *unmapped = &a->pools[pool].unmapped;
  for (int64_t i = 0; i < unmapped->count; i++) {
    int32_t number = unmapped->blocks[i], before = a->blocks[number].before;
    if (before != NONE && a->blocks[before].is_free) number = before;
    if (has_room(a, number, size)) return number;
  }
  int64_t length = round_up(a->settings.range_bytes, page_of(a, pool));
  int32_t range = size > length ? NONE : add_range(a, length, pool); /* a range is larger than the device */
  if (range == NONE) return NONE;
  a->blocks[range].is_unmapped = true;
  put_in(a, range);
  return range;
}

/* Where the driver has too little, what was mapped until then stays. */
static int32_t expand(struct allocator *a, int32_t pool, int64_t size) {
  int32_t number = find_room(a, pool, size);
  if (number != NONE && a->blocks[number].is_unmapped) number = map_pages(a, number, size);
  while (number != NONE && a->blocks[number].size < size) {
    int32_t after = a->blocks[number].after;
    number = after == NONE ? NONE : map_pages(a, after, size - a->blocks[number].size);
  }
  if (number != NONE) take_out(a, number);
  return number;
}

static int32_t ask_driver(struct allocator *a, int32_t pool, int64_t size) {
  int64_t length = segment_size(&a->settings, size);
  if (length > a->settings.allowed_bytes - a->reserved) return NONE;
  return a->settings.is_expandable ? expand(a, pool, size) : add_segment(a, length, pool);
}

/* ---- What is given back to the driver -------------------------------------------------------------------------- */

static bool is_whole_segment(const struct block *block) { return block->before == NONE && block->after == NONE; }

/* A block is no more, and its addresses are free. */
static void return_range(struct allocator *a, int32_t number) {
  struct block *block = &a->blocks[number];
  take_out(a, number);
  return_addresses(a->addresses, (uintptr_t)block->address, (size_t)block->size);
  drop_block(a, number);
}

static int64_t return_segment(struct allocator *a, int32_t number) {
  int64_t size = a->blocks[number].size;
  return_range(a, number);
  a->reserved -= size;
  return size;
}

/* Gives back the whole pages of a free block; what is left of it stays. */
static void unmap_pages(struct allocator *a, int32_t number) {
  const struct block block = a->blocks[number];
  int64_t page = page_of(a, block.pool), start = block.start;
  int64_t begin = start + round_up(block.address - start, page);
  int64_t end = start + (block.address + block.size - start) / page * page;
  if (begin >= end) return;
  take_out(a, number);
  int32_t middle = number;
  if (begin > block.address) {
    middle = split(a, number, begin - block.address);
    if (middle == NONE) return;
    put_in(a, number);
  }
  if (end < block.address + block.size) {
    int32_t rest = split(a, middle, end - begin);
    if (rest == NONE) return;
    put_in(a, rest);
  }
  a->reserved -= end - begin;
  a->blocks[middle].is_unmapped = true;
  middle = put_back(a, middle);
  if (is_whole_segment(&a->blocks[middle])) return_range(a, middle);
}

static void empty_pool(struct allocator *a, const struct list *free_blocks) {
  /* What is unmapped leaves parts in the list: so of those that are in it now. */
  int64_t count = free_blocks->count;
  int32_t *numbers = count ? malloc((size_t)count * sizeof *numbers) : NULL;
  if (count && !numbers) a->has_failed = true;
  for (int64_t i = 0; i < count && numbers; i++) numbers[i] = free_blocks->blocks[i];
  for (int64_t i = 0; i < count && numbers; i++) {
    if (a->settings.is_expandable)
      unmap_pages(a, numbers[i]);
    else if (is_whole_segment(&a->blocks[numbers[i]]))
      return_segment(a, numbers[i]);
  }
  free(numbers);
}

void empty_cache(struct allocator *a) {
  bool is_released = !a->active || a->settings.is_released_in_pool;
  for (int32_t group = 0; group < a->num_groups; group++) {
    if (group ? !a->groups[group].is_dropped : !is_released) continue;
    for (int32_t i = 0; i < 2 * NUM_STREAMS; i++) empty_pool(a, &a->pools[group * 2 * NUM_STREAMS + i].free);
  }
}

/* Of the blocks that are not split, gives back the smallest that is large enough, or else the largest ones until these are
 * enough; whether they were. */
static bool release_unsplit(struct allocator *a, int32_t pool, int64_t size) {
  struct list *free = &a->pools[pool].free;
  int64_t max_split = a->settings.max_split, released = 0;
  if (max_split == INT64_MAX || a->settings.is_expandable) return false;
  int64_t wanted = size < max_split ? max_split : size;
  int64_t place = seek_size(a, free, wanted);
  if (place < free->count) {
    return_segment(a, free->blocks[place]);
    return true;
  }
  while (--place >= 0 && released < wanted && a->blocks[free->blocks[place]].size >= max_split)
    released += return_segment(a, free->blocks[place]);
  return released >= wanted;
}

/* Above a share of what the process may take, gives back segments that were not used for longer than the average. */
static void collect_garbage(struct allocator *a) {
  int64_t most = (int64_t)(a->settings.collection_share * (double)a->settings.allowed_bytes);
  int64_t excess = a->reserved - most, num_whole = 0;
  uint64_t age = 0;
  if (excess <= 0) return;
  for (int32_t i = 0; i < 2 * NUM_STREAMS; i += 2)
    for (int64_t place = 0; place < a->pools[i].free.count; place++) {
      const struct block *block = &a->blocks[a->pools[i].free.blocks[place]];
      if (!is_whole_segment(block)) continue;
      age += (uint64_t)(a->num_searches - block->searches);
      num_whole++;
    }
  for (bool is_any = true; excess > 0 && is_any && num_whole;) {
    double average = (double)age / (double)num_whole;
    is_any = false;
    for (int32_t i = 0; i < 2 * NUM_STREAMS; i += 2)
      for (int64_t place = a->pools[i].free.count - 1; place >= 0; place--) {
        int32_t number = a->pools[i].free.blocks[place];
        int64_t own = a->num_searches - a->blocks[number].searches;
        if (!is_whole_segment(&a->blocks[number]) || (double)own < average) continue;
        is_any = true;
        age -= (uint64_t)own;
        num_whole--;
        excess -= return_segment(a, number);
      }
  }
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* What a block could grow to. */
static int64_t size_with_room(const struct allocator *a, int32_t number) {
  const struct block *block = &a->blocks[number];
  bool can_grow = block->after != NONE && a->blocks[block->after].is_unmapped;
  return block->size + (can_grow ? a->blocks[block->after].size : 0);
}

static int32_t find_free(struct allocator *a, int32_t pool, int64_t size) {
  const struct allocator_settings *s = &a->settings;
  const struct list *free = &a->pools[pool].free;
  int64_t place = seek_size(a, free, size);
  if (place == free->count) return NONE;
  /* Of an expandable segment the size that a block can grow to counts. */
  while (s->is_expandable && place + 1 < free->count &&
         size_with_room(a, free->blocks[place + 1]) < size_with_room(a, free->blocks[place]))
    place++;
  int32_t number = free->blocks[place];
  int64_t found = a->blocks[number].size;
  if (size < s->max_split && found >= s->max_split) return NONE;
  if (size >= s->max_split && found - size >= s->max_unused) return NONE;
  take_out(a, number);
  return number;
}

int32_t allocate_block(struct allocator *a, int64_t requested, uint8_t stream) {
  int64_t size = round_size(&a->settings, requested);
  if (size < 0) {
    a->has_failed = true;
    return NONE;
  }
  int32_t pool = 2 * (a->active * NUM_STREAMS + stream) + (size <= SMALL);
  bool is_collected = a->settings.allowed_bytes < INT64_MAX && a->settings.collection_share > 0;
  if (is_collected && !a->active && size > SMALL) a->num_searches++;
  int32_t number = find_free(a, pool, size);
  if (number == NONE && is_collected) collect_garbage(a);
  if (number == NONE) number = ask_driver(a, pool, size);
  if (number == NONE && release_unsplit(a, pool, size)) number = ask_driver(a, pool, size);
  if (number == NONE && (!a->active || a->settings.is_released_in_pool)) {
    empty_cache(a);
    a->num_retries++;
    number = ask_driver(a, pool, size);
  }
  if (number == NONE || a->has_failed) return NONE;
  if (is_split(&a->settings, is_small_pool(pool) || a->settings.is_expandable, size, a->blocks[number].size - size)) {
    int32_t rest = split(a, number, size);
    if (rest == NONE) return NONE;
    put_in(a, rest);
  }
  a->blocks[number].requested = requested;
  a->requested += requested;
  a->allocated += a->blocks[number].size;
  if (a->requested > a->requested_peak) a->requested_peak = a->requested;
  if (a->allocated > a->allocated_peak) a->allocated_peak = a->allocated;
  return number;
}

void release_block(struct allocator *a, int32_t number) {
  a->requested -= a->blocks[number].requested;
  a->allocated -= a->blocks[number].size;
  put_back(a, number);
}

/* ---- Private pools ----------------------------------------------------------------------------------------------- */

static int32_t add_group(struct allocator *a, int64_t name) {
  int32_t count = a->num_groups + 1;
  struct group *groups = realloc(a->groups, (size_t)count * sizeof *groups);
  if (groups) a->groups = groups;
  struct pool *pools = realloc(a->pools, (size_t)count * 2 * NUM_STREAMS * sizeof *pools);
  if (pools) a->pools = pools;
  if (!groups || !pools || count > INT32_MAX / (2 * NUM_STREAMS)) {
    a->has_failed = true;
    return 0;
  }
  memset(&pools[(size_t)a->num_groups * 2 * NUM_STREAMS], 0, 2 * NUM_STREAMS * sizeof *pools);
  groups[a->num_groups] = (struct group){name, false};
  return a->num_groups++;
}

void enter_pool(struct allocator *a, int64_t name) {
  for (int32_t i = 0; i < a->num_groups; i++)
    if (a->groups[i].name == name && !a->groups[i].is_dropped) {
      a->active = i;
      return;
    }
  a->active = add_group(a, name);
}

void drop_pool(struct allocator *a, int64_t name) {
  a->active = 0;
  for (int32_t i = 1; i < a->num_groups; i++)
    if (a->groups[i].name == name) a->groups[i].is_dropped = true;
}

struct allocator *new_allocator(const struct allocator_settings *settings) {
  static const uintptr_t BOTTOM = 32 << 20; /* an address is never 0 */
  struct allocator *a = calloc(1, sizeof *a);
  if (!a) return NULL;
  a->settings = *settings;
  a->unused = NONE;
  a->addresses = new_address_space(BOTTOM, (uintptr_t)INT64_MAX, settings->order ? WINDOWS_ORDER : LINUX_ORDER);
  add_group(a, 0);
  if (a->addresses && !a->has_failed) return a;
  delete_allocator(a);
  return NULL;
}

void delete_allocator(struct allocator *a) {
  for (int32_t i = 0; i < 2 * NUM_STREAMS * a->num_groups; i++) {
    free(a->pools[i].free.blocks);
    free(a->pools[i].unmapped.blocks);
  }
  free(a->pools);
  free(a->groups);
  free(a->blocks);
  delete_address_space(a->addresses);
  free(a);
}
