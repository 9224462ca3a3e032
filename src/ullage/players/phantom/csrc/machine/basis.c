/* What the report is told: calls that were refused, sizes that were assumed, scratch memory that was handed over.
 *
 * And the observer: PyTorch's allocator reports every block it gives or takes back to the profiler, through one C++
 * function of libc10. The phantom stands in front of it, notes the event, and passes it on. So the record holds every
 * event whatever the program does with torch's own history, and each fact found later (an address, a phase) can be tied
 * to a position in the event sequence at the cost of reading a counter.
 *
 * How much is allocated and reserved stands in levels.c.
 */
#include "blocks.h"
#include "completion.h"
#include "levels.h"
#include "libc10.h"
#include "phantom.h"
#include "room.h"
#include "scope.h"
#include "uses.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EVENTS = 1 << 25, MAX_REFUSED = 512, MAX_ASSUMED = 128, CUDA = 1, SEVERAL = 255 };

/* Kinds of events, and what may be added to them. */
enum { BLOCK = 0, OUT_OF_MEMORY = 1, WITH_GRAPH = 2, WAS_KEPT = 4, DONE_WITHOUT = 8 };

struct event {
  int64_t address, bytes, reserved;
  int32_t scope;
  uint8_t device, kind;
  uint8_t precision; /* of the numbers in what it brought: PRECISIONS of log/record_schema.py; SEVERAL, which tells nothing */
};

struct workspace {
  uint64_t position;
  int64_t address, bytes;
  int32_t device, library;
};

struct sized {
  uint64_t position;
  const char *what;
  int64_t address, low, answered, high;
  int32_t device;
};

struct refused {
  const char *name;
  uint64_t count;
};

struct assumed {
  char what[96];
  uint64_t count, low, answered, high;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *events;
static uint64_t num_events, event_room;
static struct workspace *workspaces;
static uint64_t num_workspaces, workspace_room;
static struct sized *sized;
static uint64_t num_sized, sized_room;
static struct refused refusals[MAX_REFUSED];
static struct assumed assumptions[MAX_ASSUMED];
static size_t num_refusals, num_assumptions;

/* Answers with the number of the event. */
static uint64_t note_event(struct event e, uint64_t allocated) {
  pthread_mutex_lock(&lock);
  uint64_t number = next_position();
  if (has_room_for_row(&events, &event_room, num_events, sizeof *events, MAX_EVENTS)) events[num_events++] = e;
  note_levels(e.device, allocated, (uint64_t)e.reserved, e.kind == OUT_OF_MEMORY);
  pthread_mutex_unlock(&lock);
  return number;
}

#define REPORT_USAGE _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define REPORT_OOM _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)

/* c10::Device: device type in the low byte, index in the next. */
typedef uint16_t c10_device;

/* Whether autograd notes what this thread runs: in backward, that it recomputes. */
static bool is_recording_graph(void) {
  static bool (*is_enabled)(void);
  if (!is_enabled) is_enabled = (bool (*)(void))in_libc10("_ZN3c108GradMode10is_enabledEv");
  return is_enabled && is_enabled();
}

/* What ullage itself does in the program takes memory of the host that no profile of the program's sees. */
static _Thread_local int num_hiding;

API void ullage_hide_host_memory(int more) { num_hiding += more; }

API void REPORT_USAGE(void *block, int64_t bytes, size_t allocated, size_t reserved, c10_device where) {
  static void (*next)(void *, int64_t, size_t, size_t, c10_device);
  if (!next) next = (void (*)(void *, int64_t, size_t, size_t, c10_device))in_libc10(NAME_OF(REPORT_USAGE));
  if ((where & 0xff) == CUDA && is_device_address(block)) {
    if (bytes < 0) block_freed((uintptr_t)block);
    uint64_t number = note_event((struct event){(int64_t)(uintptr_t)block, bytes, (int64_t)reserved,
                                                bytes > 0 ? current_scope() : NO_SCOPE, (uint8_t)(where >> 8),
                                                BLOCK | (is_recording_graph() ? WITH_GRAPH : 0) |
                                                    (was_kept_for_collective(block, bytes) ? WAS_KEPT : 0),
                                                0},
                                 allocated);
    if (bytes > 0) block_allocated((uintptr_t)block, (size_t)bytes, number);
  }
  if (next && (!num_hiding || (where & 0xff) == CUDA)) next(block, bytes, allocated, reserved, where);
}

API void REPORT_OOM(int64_t bytes, size_t allocated, size_t reserved, c10_device where) {
  static void (*next)(int64_t, size_t, size_t, c10_device);
  if (!next) next = (void (*)(int64_t, size_t, size_t, c10_device))in_libc10(NAME_OF(REPORT_OOM));
  if ((where & 0xff) == CUDA) note_event((struct event){0, bytes, (int64_t)reserved, current_scope(), (uint8_t)(where >> 8), OUT_OF_MEMORY, 0}, allocated);
  if (next) next(bytes, allocated, reserved, where);
}

/* ---- What the libraries say -------------------------------------------------------------------------------------- */

int refuse(const char *name, int status) {
  pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < num_refusals && strcmp(refusals[i].name, name)) i++;
  if (i == num_refusals && num_refusals < MAX_REFUSED) refusals[num_refusals++].name = name;
  if (i < num_refusals) refusals[i].count++;
  pthread_mutex_unlock(&lock);
  return status;
}

void assume_bytes(const char *what, size_t low, size_t answered, size_t high) {
  pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < num_assumptions && strcmp(assumptions[i].what, what)) i++;
  if (i == num_assumptions && num_assumptions < MAX_ASSUMED) {
    snprintf(assumptions[num_assumptions].what, sizeof assumptions->what, "%s", what);
    num_assumptions++;
  }
  if (i < num_assumptions) {
    struct assumed *a = &assumptions[i];
    if (!a->count++ || high > a->high) {
      a->low = low;
      a->answered = answered;
      a->high = high;
    }
  }
  pthread_mutex_unlock(&lock);
}

static void note_handed(enum library library, const void *p, size_t bytes) {
  if (!mark_workspace((uintptr_t)p)) return;
  pthread_mutex_lock(&lock);
  if (has_room_for_row(&workspaces, &workspace_room, num_workspaces, sizeof *workspaces, SIZE_MAX))
    workspaces[num_workspaces++] = (struct workspace){event_position(), (int64_t)(uintptr_t)p, (int64_t)bytes,
                                                      device_of_address(p), (int32_t)library};
  pthread_mutex_unlock(&lock);
}

void saw_workspace(enum library library, const void *p, size_t bytes) {
  if (!bytes || !is_device_address(p)) return;
  forget(p);
  note_handed(library, p, bytes);
}

void saw_scratch(enum library library, const void *p, const struct scratch *scratch) {
  if (p) saw_workspace(library, p, scratch->answered);
  if (scratch->high <= scratch->low || (p && !is_device_address(p))) return;
  pthread_mutex_lock(&lock);
  if (has_room_for_row(&sized, &sized_room, num_sized, sizeof *sized, SIZE_MAX))
    sized[num_sized++] = (struct sized){event_position(), scratch->what, (int64_t)(uintptr_t)p, (int64_t)scratch->low,
                                        (int64_t)scratch->answered, (int64_t)scratch->high,
                                        p ? device_of_address(p) : current_device()};
  pthread_mutex_unlock(&lock);
}

void saw_choice(const void *p) {
  pthread_mutex_lock(&lock);
  uint64_t end = num_events - (p && num_events);
  while (end && events[end - 1].kind == OUT_OF_MEMORY) events[--end].kind = DONE_WITHOUT;
  pthread_mutex_unlock(&lock);
}

void saw_communication(const void *p) {
  if (!is_device_address(p)) return;
  note_handed(LIBRARY_NCCL, p, 0);
  keep_operand(p);
}

/* A tensor in the block that holds p has numbers of this type. */
API void ullage_note_precision(const void *p, int precision) {
  uint64_t birth = birth_of((uintptr_t)p);
  pthread_mutex_lock(&lock);
  if (birth < num_events) {
    uint8_t *known = &events[birth].precision;
    *known = !precision || (*known && *known != precision) ? SEVERAL : (uint8_t)precision;
  }
  pthread_mutex_unlock(&lock);
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

API uint64_t ullage_position(void) { return event_position(); }
API uint64_t ullage_num_events(void) { return num_events; }

/* Copies the events into columns of ullage_num_events() entries. */
API void ullage_events(uint64_t count, int64_t *address, int64_t *bytes, int64_t *reserved, int32_t *scope,
                       uint8_t *dev, uint8_t *kind, uint8_t *precision) {
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < count && i < num_events; i++) {
    address[i] = events[i].address;
    bytes[i] = events[i].bytes;
    reserved[i] = events[i].reserved;
    scope[i] = events[i].scope;
    dev[i] = events[i].device;
    kind[i] = events[i].kind;
    precision[i] = events[i].precision == SEVERAL ? 0 : events[i].precision;
  }
  pthread_mutex_unlock(&lock);
}

API uint64_t ullage_num_workspaces(void) { return num_workspaces; }

API void ullage_workspace(uint64_t i, int64_t row[5]) {
  const struct workspace *w = &workspaces[i];
  row[0] = (int64_t)w->position;
  row[1] = w->device;
  row[2] = w->address;
  row[3] = w->bytes;
  row[4] = w->library;
}

API uint64_t ullage_num_scratch(void) { return num_sized; }

API const char *ullage_scratch(uint64_t i, int64_t row[6]) {
  const struct sized *s = &sized[i];
  row[0] = (int64_t)s->position;
  row[1] = s->device;
  row[2] = s->address;
  row[3] = s->low;
  row[4] = s->answered;
  row[5] = s->high;
  return s->what;
}

API const char *ullage_refused(uint64_t i, uint64_t *count) {
  if (i >= num_refusals) return NULL;
  *count = refusals[i].count;
  return refusals[i].name;
}

API const char *ullage_assumed(uint64_t i, uint64_t row[4]) {
  if (i >= num_assumptions) return NULL;
  row[0] = assumptions[i].count;
  row[1] = assumptions[i].low;
  row[2] = assumptions[i].answered;
  row[3] = assumptions[i].high;
  return assumptions[i].what;
}

/* The last use of what each of the first `count` events brought; 0 where it brought nothing, or nothing used it. */
API void ullage_last_uses(uint64_t count, uint32_t *found) {
  note_live_uses();
  copy_last_uses(count, found);
}
