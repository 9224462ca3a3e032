/* The event hook: the allocator's events in a process with a real GPU.
 *
 * PyTorch's allocator reports every block it gives or takes back to the profiler, through one C++ function of libc10 that
 * libc10_cuda calls by way of its procedure linkage table. The hook puts its own function into that table's slot, notes
 * the event and passes it on. So it can be put in and taken out while the program runs, and nothing is preloaded.
 *
 * Events are kept in a ring. What an overwritten event leaves live is kept in a table, so that the record can begin with
 * the blocks that were there. players/inside/library.py reads all this by the names that the phantom's own recorder has
 * (players/phantom/csrc/machine/basis.c, levels.c); modules are those of scope.c, which both share.
 */
#include "copies.h"
#include "handed.h"
#include "libc10.h"
#include "phantom.h"
#include "scope.h"
#include "slots.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA = 1, BLOCK = 0, OUT_OF_MEMORY = 1, WITH_GRAPH = 2, FIRST_ROOM = 4096, LATELY = 512 };

#define REPORT_USAGE "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define REPORT_OOM "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"

struct event {
  int64_t address, bytes, reserved;
  int32_t scope;
  uint8_t device, kind;
};

struct before { /* a block whose event was overwritten; address 0: none, 1: was taken out */
  uint64_t number;
  struct event event;
};

struct peak {
  uint64_t allocated, reserved;
};

/* c10::Device: device type in the low byte, index in the next. */
typedef uint16_t c10_device;
typedef void (*report_usage)(void *, int64_t, size_t, size_t, c10_device);
typedef void (*report_oom)(int64_t, size_t, size_t, c10_device);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *events;
static uint64_t num_noted, room, capacity = 1 << 20;
static struct before *table;
static uint64_t table_room, table_used, num_before;
static struct peak peaks[MAX_DEVICES];
static bool is_noting, has_graph_flag;
static report_usage next_usage;
static report_oom next_oom;
static bool (*is_graph_enabled)(void);

/* ---- The ring and what was there before it ----------------------------------------------------------------------- */

static struct before *slot_of(int64_t address, uint8_t device) {
  uint64_t hash = ((uint64_t)address >> 9) * 0x9e3779b97f4a7c15u + device;
  struct before *gone = NULL;
  for (uint64_t i = hash % table_room;; i = (i + 1) % table_room) {
    struct before *b = &table[i];
    if (!b->event.address) return gone ? gone : b;
    if (b->event.address == 1) gone = gone ? gone : b;
    else if (b->event.address == address && b->event.device == device) return b;
  }
}

static bool widen_table(void) {
  if (table_room && table_used * 2 < table_room) return true;
  struct before *old = table;
  uint64_t old_room = table_room, wanted = num_before * 4 < FIRST_ROOM ? FIRST_ROOM : num_before * 4;
  struct before *larger = calloc(wanted, sizeof *larger);
  if (!larger) return false;
  table = larger;
  table_room = wanted;
  table_used = num_before;
  for (uint64_t i = 0; i < old_room; i++)
    if (old[i].event.address > 1) *slot_of(old[i].event.address, old[i].event.device) = old[i];
  free(old);
  return true;
}

/* The oldest event leaves the ring: the block that it brought may stay. */
static void leave_ring(uint64_t number, const struct event *e) {
  if ((e->kind & OUT_OF_MEMORY) || !widen_table()) return;
  struct before *b = slot_of(e->address, e->device);
  bool is_there = b->event.address > 1;
  if (e->bytes > 0) {
    table_used += !b->event.address;
    num_before += !is_there;
    *b = (struct before){number, *e};
  } else if (is_there) {
    b->event.address = 1;
    num_before--;
  }
}

static bool grow(void) {
  uint64_t wanted = room ? room * 2 : FIRST_ROOM;
  if (wanted > capacity) wanted = capacity;
  struct event *larger = realloc(events, wanted * sizeof *larger);
  if (!larger) return false;
  events = larger;
  room = wanted;
  return true;
}

static void note_event(struct event e, uint64_t allocated) {
  pthread_mutex_lock(&lock);
  if (num_noted >= room && room < capacity && !grow()) capacity = room; /* the host has no more */
  if (room) {
    struct event *place = &events[num_noted % room];
    if (num_noted >= room) leave_ring(num_noted - room, place);
    *place = e;
  }
  __atomic_store_n(&num_noted, num_noted + 1, __ATOMIC_RELAXED);
  struct peak *p = &peaks[e.device % MAX_DEVICES];
  if (allocated > p->allocated) p->allocated = allocated;
  if ((uint64_t)e.reserved > p->reserved) p->reserved = (uint64_t)e.reserved;
  pthread_mutex_unlock(&lock);
}

/* ---- In front of libc10 ------------------------------------------------------------------------------------------ */

static void note_usage(void *block, int64_t bytes, size_t allocated, size_t reserved, c10_device where) {
  if (is_noting && bytes < 0) note_freed((int64_t)(uintptr_t)block);
  if (is_noting && (where & 0xff) == CUDA)
    note_event((struct event){(int64_t)(uintptr_t)block, bytes, (int64_t)reserved, bytes > 0 ? current_scope() : NO_SCOPE,
                              (uint8_t)(where >> 8),
                              (uint8_t)(BLOCK | (has_graph_flag && is_graph_enabled() ? WITH_GRAPH : 0))},
               allocated);
  next_usage(block, bytes, allocated, reserved, where);
}

static void note_oom(int64_t bytes, size_t allocated, size_t reserved, c10_device where) {
  if (is_noting && (where & 0xff) == CUDA)
    note_event((struct event){0, bytes, (int64_t)reserved, current_scope(), (uint8_t)(where >> 8), OUT_OF_MEMORY}, allocated);
  next_oom(bytes, allocated, reserved, where);
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* Begins to note events, in a ring of `bytes`; answers whether libc10_cuda could be hooked. */
API int ullage_hook(uint64_t bytes) {
  next_usage = (report_usage)function_of(REPORT_USAGE);
  next_oom = (report_oom)function_of(REPORT_OOM);
  is_graph_enabled = (bool (*)(void))in_libc10("_ZN3c108GradMode10is_enabledEv");
  has_graph_flag = is_graph_enabled != NULL;
  if (!next_usage || !next_oom) return 0;
  pthread_mutex_lock(&lock);
  capacity = bytes / sizeof *events < FIRST_ROOM ? FIRST_ROOM : bytes / sizeof *events;
  pthread_mutex_unlock(&lock);
  is_noting = true;
  const struct replacement list[] = {{REPORT_USAGE, (const void *)note_usage}, {REPORT_OOM, (const void *)note_oom}, {0}};
  size_t num_slots = replace_calls("libc10_cuda.so", list);
  watch_libraries();
  watch_copies();
  return num_slots > 0;
}

/* Puts back what was in the slots, and forgets the events. */
API void ullage_unhook(void) {
  is_noting = false;
  restore_calls();
  forget_handed();
  forget_copies();
  pthread_mutex_lock(&lock);
  free(events);
  free(table);
  events = NULL;
  table = NULL;
  room = num_noted = table_room = table_used = num_before = 0;
  memset(peaks, 0, sizeof peaks);
  pthread_mutex_unlock(&lock);
}

/* A block that was live before the hook: as if it were allocated now. */
API void ullage_note_block(int index, int64_t address, int64_t bytes, int64_t reserved) {
  static uint64_t allocated[MAX_DEVICES];
  uint64_t *sum = &allocated[index % MAX_DEVICES];
  if (!num_noted) memset(allocated, 0, sizeof allocated);
  *sum += (uint64_t)bytes;
  note_event((struct event){address, bytes, reserved, NO_SCOPE, (uint8_t)index, BLOCK}, *sum);
}

/* In a forked child nothing is noted. */
API void ullage_stop_noting(void) {
  is_noting = false;
  stop_copies();
}

uint64_t event_position(void) { return __atomic_load_n(&num_noted, __ATOMIC_RELAXED); }
API uint64_t ullage_position(void) { return event_position(); }
static uint64_t first_in_ring(void) { return num_noted > room ? num_noted - room : 0; }
API uint64_t ullage_first_position(void) { return first_in_ring(); }
API uint64_t ullage_num_rows(void) { return num_before + (num_noted > room ? room : num_noted); }

/* Live blocks do not overlap: of the blocks that have held p, the last one does. */
int64_t block_that_holds(int64_t p) {
  pthread_mutex_lock(&lock);
  uint64_t first = first_in_ring();
  if (num_noted > LATELY && first < num_noted - LATELY) first = num_noted - LATELY;
  for (uint64_t number = num_noted; room && number > first; number--) {
    const struct event *e = &events[(number - 1) % room];
    if (e->bytes <= 0 || (e->kind & OUT_OF_MEMORY) || p < e->address || p >= e->address + e->bytes) continue;
    p = e->address;
    break;
  }
  pthread_mutex_unlock(&lock);
  return p;
}

static int by_number(const void *a, const void *b) {
  uint64_t x = ((const struct before *)a)->number, y = ((const struct before *)b)->number;
  return (x > y) - (x < y);
}

struct columns {
  int64_t *address, *bytes, *reserved;
  int32_t *scope;
  uint8_t *device, *kind;
};

static void put(const struct columns *c, uint64_t row, const struct event *e) {
  c->address[row] = e->address;
  c->bytes[row] = e->bytes;
  c->reserved[row] = e->reserved;
  c->scope[row] = e->scope;
  c->device[row] = e->device;
  c->kind[row] = e->kind;
}

/* Copies into columns of `rows` entries the blocks that were there before the ring, then the ring; `births` has the
 * positions of the former. Answers with the position of the first of the ring's, and in `counts` with the number of
 * both. UINT64_MAX: there are more rows by now. */
API uint64_t ullage_ring(uint64_t rows, uint64_t counts[2], uint64_t *births, int64_t *address, int64_t *bytes, int64_t *reserved,
                         int32_t *scope, uint8_t *dev, uint8_t *kind) {
  const struct columns c = {address, bytes, reserved, scope, dev, kind};
  pthread_mutex_lock(&lock);
  uint64_t first = first_in_ring(), row = 0;
  struct before *sorted = malloc((num_before + 1) * sizeof *sorted);
  if (!sorted || rows < num_before + num_noted - first) {
    pthread_mutex_unlock(&lock);
    free(sorted);
    return UINT64_MAX;
  }
  for (uint64_t i = 0; i < table_room; i++)
    if (table[i].event.address > 1) sorted[row++] = table[i];
  qsort(sorted, row, sizeof *sorted, by_number);
  for (uint64_t i = 0; i < row; i++) {
    births[i] = sorted[i].number;
    put(&c, i, &sorted[i].event);
  }
  counts[0] = row;
  counts[1] = num_noted - first;
  for (uint64_t number = first; number < num_noted; number++) put(&c, row++, &events[number % room]);
  pthread_mutex_unlock(&lock);
  free(sorted);
  return first;
}

/* The highest of a device since this was last called: allocated, reserved. */
API void ullage_take_peak(int index, uint64_t level[2]) {
  pthread_mutex_lock(&lock);
  level[0] = peaks[index % MAX_DEVICES].allocated;
  level[1] = peaks[index % MAX_DEVICES].reserved;
  memset(&peaks[index % MAX_DEVICES], 0, sizeof *peaks);
  pthread_mutex_unlock(&lock);
}
