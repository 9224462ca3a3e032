/* The log of work: what each stream of the device is given, in the order in which the host gives it.
 *
 * The clock (clock/simulation.py) makes times of it afterwards: this file measures nothing. Equal pieces of work are kept
 * once, and the log holds their numbers. It holds the last steps alone: the recorder says where one ends, and what came
 * before the last few is dropped. What a capture collects stays, since its graph may run at any time.
 *
 * What a kernel moves is not known, but which of the allocator's blocks its arguments point into is: see_operand.
 */
#include "work_log.h"
#include "activity.h"
#include "capture.h"
#include "cuda.h"
#include "graph.h"
#include "levels.h"
#include "phantom.h"
#include "room.h"
#include "scope.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum entry_kind { GIVEN, RECORDED, WAITED, HOST_WAITED_LANE, HOST_WAITED_EVENT, HOST_WAITED_DEVICE, MARKED, CAPTURED, GRAPH };
enum { MAX_OPERANDS = 1 << 16, LISTED_OPERANDS = 8, FIRST_OPERAND = 5, ARGUMENT_BYTES = 1024, MAX_ENTRIES = 1 << 24, STEP = 7 };

struct entry {
  uint64_t other; /* of a wait: which record; of a capture or a graph: which graph; of a mark: its number */
  uint32_t work;  /* of a mark: which */
  int32_t scope;
  uint32_t position; /* events of the allocator before */
  uint16_t lane;
  uint8_t kind, device;
};
_Static_assert(sizeof(struct entry) == 24, "as players/inside/steps/work_log.py reads it");

struct entries {
  struct entry *rows;
  uint64_t count, room, first; /* first: how many were dropped before */
};

struct argument { /* the first of a kernel; NULL: not kept */
  const void *start;
  size_t bytes; /* at most ARGUMENT_BYTES */
};

struct operand {
  uintptr_t start, lowest;
  size_t bytes;
};

bool is_work_logged;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entries entries, captured;
static struct work *works;
static unsigned char **arguments; /* of each piece of work; NULL: not kept */
static uint32_t num_works, work_room, *slots, num_slots;
static _Thread_local struct operand *operands;
static _Thread_local uint64_t num_operands, operand_room;

/* ---- Pieces of work ---------------------------------------------------------------------------------------------- */

static uint32_t slot_of(const struct work *work) {
  uint64_t hash = 0xcbf29ce484222325u;
  const uint64_t *words = (const uint64_t *)work;
  for (size_t i = 0; i < sizeof *work / sizeof *words; i++) hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  uint32_t slot = (uint32_t)hash & (num_slots - 1);
  while (slots[slot] && memcmp(&works[slots[slot] - 1], work, sizeof *work)) slot = (slot + 1) & (num_slots - 1);
  return slot;
}

static bool grow_works(void) {
  uint32_t room = work_room ? work_room * 2 : 4096;
  struct work *larger = realloc(works, room * sizeof *works);
  if (larger) works = larger;
  unsigned char **kept = realloc(arguments, room * sizeof *arguments);
  if (kept) arguments = kept;
  uint32_t *found = calloc(4 * room, sizeof *found);
  if (!larger || !kept || !found) return free(found), false;
  free(slots);
  slots = found;
  num_slots = 4 * room;
  work_room = room;
  for (uint32_t i = 0; i < num_works; i++) slots[slot_of(&works[i])] = i + 1;
  return true;
}

/* The number of a piece of work; UINT32_MAX where there is no room. */
static uint32_t number_of(const struct work *work, struct argument argument) {
  if (num_works == work_room && !grow_works()) return UINT32_MAX;
  uint32_t slot = slot_of(work);
  if (slots[slot]) return slots[slot] - 1;
  works[num_works] = *work;
  arguments[num_works] = argument.start ? calloc(1, ARGUMENT_BYTES) : NULL;
  if (arguments[num_works]) memcpy(arguments[num_works], argument.start, argument.bytes);
  slots[slot] = ++num_works;
  return num_works - 1;
}

/* ---- Entries ------------------------------------------------------------------------------------------------------ */

static uint64_t append(struct entries *to, struct entry entry) {
  if (!has_room_for_row(&to->rows, &to->room, to->count, sizeof *to->rows, MAX_ENTRIES)) return is_work_logged = false, 0;
  to->rows[to->count++] = entry;
  return to->first + to->count;
}

static struct entry entry_of(enum entry_kind kind, int lane, uint64_t other) {
  return (struct entry){.other = other, .scope = NO_SCOPE, .position = (uint32_t)event_position(), .lane = (uint16_t)lane,
                        .kind = (uint8_t)kind, .device = (uint8_t)current_device()};
}

static uint64_t log_entry(struct entry entry) {
  if (!is_work_logged) return 0;
  pthread_mutex_lock(&lock);
  uint64_t number = append(&entries, entry);
  pthread_mutex_unlock(&lock);
  return number;
}

static void tell_profiler(uint64_t number, const struct entry *entry, enum host_call call, const struct work *work,
                          const unsigned *block) {
  if (!is_profiled || !number) return;
  struct activity activity = {.serial = number, .call = call, .lane = entry->lane, .device = entry->device, .is_work = work};
  if (work) activity.work = *work;
  if (block) memcpy(activity.block, block, sizeof activity.block);
  note_activity(&activity);
}

static void log_host_wait(struct entry entry, enum host_call call) {
  tell_profiler(log_entry(entry), &entry, call, NULL, NULL);
}

static void log_with(const void *stream, const struct work *work, const struct given_kernel *kernel, struct argument argument) {
  struct captured in;
  bool is_captured = capture_status(stream, &in) == CAPTURE_ACTIVE;
  struct entry entry = entry_of(is_captured ? CAPTURED : GIVEN, lane_of(stream), 0);
  entry.scope = current_scope();
  if (is_captured) entry.other = in.graph->number;
  pthread_mutex_lock(&lock);
  entry.work = number_of(work, argument);
  uint64_t number = entry.work != UINT32_MAX ? append(is_captured ? &captured : &entries, entry) : 0;
  pthread_mutex_unlock(&lock);
  if (is_captured) return;
  enum host_call call = work->kind == WORK_COPY   ? CALL_COPY
                        : work->kind == WORK_FILL ? CALL_FILL
                        : kernel && kernel->is_by_driver ? CALL_DRIVER_LAUNCH : CALL_LAUNCH;
  tell_profiler(number, &entry, call, work, kernel ? kernel->block : NULL);
}

void log_work(const void *stream, const struct work *work) {
  if (is_work_logged) log_with(stream, work, NULL, (struct argument){0});
}

void log_graph(const void *stream, uint32_t graph) {
  struct entry entry = entry_of(GRAPH, lane_of(stream), graph);
  entry.scope = is_work_logged ? current_scope() : NO_SCOPE;
  struct work work = {WORK_LIBRARY, -1, "CUDA graph", {0}};
  tell_profiler(log_entry(entry), &entry, CALL_GRAPH, &work, NULL);
}

uint64_t log_record(int lane) { return is_work_logged ? log_entry(entry_of(RECORDED, lane, 0)) : 0; }
void log_wait(int lane, uint64_t record) {
  if (record) log_entry(entry_of(WAITED, lane, record));
}
void log_host_wait_for_event(uint64_t record) {
  if (record) log_host_wait(entry_of(HOST_WAITED_EVENT, 0, record), CALL_WAIT_FOR_EVENT);
}
void log_host_wait_for_lane(int lane, enum host_call call) {
  if (is_work_logged) log_host_wait(entry_of(HOST_WAITED_LANE, lane, 0), call);
}
void log_host_wait_for_device(enum host_call call) {
  if (is_work_logged) log_host_wait(entry_of(HOST_WAITED_DEVICE, 0, 0), call);
}

/* ---- Operands ----------------------------------------------------------------------------------------------------- */

void begin_operands(void) { num_operands = 0; }

void see_operand(uintptr_t address, uintptr_t start, size_t bytes) {
  /* Odd: a flag, in a word whose other bytes an earlier call left. */
  if (!is_work_logged || address & 1) return;
  for (size_t i = num_operands; i-- > 0;) {
    if (operands[i].start != start) continue;
    if (address < operands[i].lowest) operands[i].lowest = address;
    return;
  }
  /* A fused optimizer step has five of each parameter: as many as the arguments of a launch, of 32,764 bytes, can name. */
  if (has_room_for_row(&operands, &operand_room, num_operands, sizeof *operands, MAX_OPERANDS))
    operands[num_operands++] = (struct operand){start, address, bytes};
}

/* Bytes from the lowest address in each block to its end: of the first ones, in the order of the arguments, and the sum of
 * the others. */
static int64_t measure_operands(int64_t listed[LISTED_OPERANDS], int64_t *others) {
  int64_t total = 0;
  *others = 0;
  memset(listed, 0, LISTED_OPERANDS * sizeof *listed);
  for (size_t i = 0; i < num_operands; i++) {
    int64_t bytes = (int64_t)(operands[i].start + operands[i].bytes - operands[i].lowest);
    total += bytes;
    if (i < LISTED_OPERANDS) listed[i] = bytes;
    else *others += bytes;
  }
  return total;
}

void log_library_call(const void *stream, const char *name) {
  if (!is_work_logged) return;
  int64_t listed[LISTED_OPERANDS], others;
  struct work work = {WORK_LIBRARY, -1, name, {measure_operands(listed, &others)}};
  log_with(stream, &work, NULL, (struct argument){0});
}

/* The arguments tell a shape: of attention the first ones, as many as the kernel's longest struct may have; of a product
 * of CUTLASS 3 a mode and four sizes, with which its struct begins. */
static size_t kept_bytes(const char *name) {
  if (!name) return 0;
  if (strstr(name, "flash") || strstr(name, "fmha") || strstr(name, "Attention")) return ARGUMENT_BYTES;
  return strstr(name, "cutlass_3x_gemm") || strstr(name, "GemmUniversalIN4cute5tupleIJiiiiEEE") ? 5 * sizeof(int32_t) : 0;
}

void log_kernel(const void *stream, const struct given_kernel *kernel) {
  if (!is_work_logged) return;
  const unsigned *grid = kernel->grid, *block = kernel->block;
  struct work work = {WORK_KERNEL, -1, kernel->name,
                      {grid[0], grid[1], grid[2], (int64_t)block[0] * block[1] * block[2], (int64_t)num_operands}};
  measure_operands(&work.numbers[FIRST_OPERAND], &work.numbers[FIRST_OPERAND + LISTED_OPERANDS]);
  size_t bytes = kept_bytes(kernel->name);
  if (kernel->first_bytes < bytes) bytes = kernel->first_bytes;
  log_with(stream, &work, kernel, bytes && kernel->params ? (struct argument){kernel->params[0], bytes} : (struct argument){0});
}

/* ---- For the recorder --------------------------------------------------------------------------------------------- */

API void ullage_log_begin(void) { is_work_logged = true; }

/* A moment that the program passes. At the end of a step the log keeps no more than the last `steps` ends of steps. */
API void ullage_log_mark(int which, uint64_t number, int steps) {
  struct entry entry = entry_of(MARKED, 0, number);
  entry.work = (uint32_t)which;
  log_entry(entry);
  if (which != STEP || !is_work_logged) return;
  pthread_mutex_lock(&lock);
  uint64_t from = entries.count;
  for (int found = 0; from && found <= steps;)
    if (entries.rows[--from].kind == MARKED && entries.rows[from].work == STEP) found++;
  if (from) {
    memmove(entries.rows, entries.rows + from, (entries.count - from) * sizeof *entries.rows);
    entries.first += from;
    entries.count -= from;
  }
  pthread_mutex_unlock(&lock);
}

/* What came so far was no step. */
API void ullage_log_clear(void) {
  pthread_mutex_lock(&lock);
  entries.first += entries.count;
  entries.count = 0;
  pthread_mutex_unlock(&lock);
}

API uint64_t ullage_log_first(void) { return entries.first; }
API uint64_t ullage_num_log_entries(int is_captured) { return is_captured ? captured.count : entries.count; }

API void ullage_log_entries(int is_captured, uint64_t count, struct entry *found) {
  pthread_mutex_lock(&lock);
  const struct entries *of = is_captured ? &captured : &entries;
  if (count) memcpy(found, of->rows, (count < of->count ? count : of->count) * sizeof *found);
  pthread_mutex_unlock(&lock);
}

/* Of the entries after the one with a serial number, the first `count`; answers with how many these are. */
API uint64_t ullage_log_after(uint64_t serial, uint64_t count, struct entry *found) {
  pthread_mutex_lock(&lock);
  uint64_t from = serial > entries.first ? serial - entries.first : 0;
  if (from > entries.count) from = entries.count;
  if (count > entries.count - from) count = entries.count - from;
  if (count) memcpy(found, entries.rows + from, count * sizeof *found);
  pthread_mutex_unlock(&lock);
  return count;
}

API uint64_t ullage_log_end(void) { return entries.first + entries.count; }

API uint64_t ullage_num_works(void) { return num_works; }

/* Kind and precision, then the numbers; the function's name, and its first arguments or NULL. */
API const char *ullage_work(uint64_t number, int64_t *row, const unsigned char **kept) {
  pthread_mutex_lock(&lock);
  const struct work *work = &works[number];
  row[0] = work->kind;
  row[1] = work->precision;
  memcpy(row + 2, work->numbers, sizeof work->numbers);
  *kept = arguments[number];
  const char *name = work->name;
  pthread_mutex_unlock(&lock);
  return name;
}
