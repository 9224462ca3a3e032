/* What a profiler is told of the work that the device is given, while one records.
 *
 * A call is noted with the row of the log that it makes; what the row took is asked of the virtual clock afterwards, all at
 * once, since the clock plays the log in Python. External ids are kept for each thread as CUPTI keeps them: a stack a kind.
 */
#include "activity.h"
#include "phantom.h"
#include "room.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INVALID_KIND = 21, QUEUE_EMPTY = 18, MAX_DEPTH = 256, MAX_ACTIVITIES = 1 << 23 };

bool is_profiled;
static uint64_t wanted_kinds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct activity *activities;
static size_t num_activities, room, num_timed;
static void (*noted_callback)(void);
static _Thread_local uint64_t external_ids[NUM_EXTERNAL_KINDS][MAX_DEPTH];
static _Thread_local unsigned depths[NUM_EXTERNAL_KINDS];

/* Writes the times of rows of the log, NAN where it does not know them. */
typedef void (*times_callback)(const uint64_t *serials, struct activity_times *times, uint64_t count);
static times_callback clock_times;

API void ullage_on_times(times_callback callback) { clock_times = callback; }

bool has_virtual_clock(void) { return clock_times; }

bool want_activities(uint64_t kinds) {
  if (!clock_times) return false;
  wanted_kinds = kinds;
  is_profiled = kinds && is_work_logged;
  return true;
}

void on_activity(void (*callback)(void)) { noted_callback = callback; }

/* ---- External ids: beyond MAX_DEPTH only the depth is kept --------------------------------------------------------- */

int push_external(unsigned kind, uint64_t id) {
  if (kind >= NUM_EXTERNAL_KINDS) return INVALID_KIND;
  if (depths[kind] < MAX_DEPTH) external_ids[kind][depths[kind]] = id;
  depths[kind]++;
  return 0;
}

static uint64_t top_of(unsigned kind) {
  unsigned depth = depths[kind];
  return depth ? external_ids[kind][(depth < MAX_DEPTH ? depth : MAX_DEPTH) - 1] : 0;
}

int pop_external(unsigned kind, uint64_t *id) {
  if (kind >= NUM_EXTERNAL_KINDS) return INVALID_KIND;
  if (!depths[kind]) return QUEUE_EMPTY;
  if (id) *id = top_of(kind);
  depths[kind]--;
  return 0;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------- */

static uint64_t ticks_now(void) {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc(); /* as c10::getApproximateTime */
#else
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

static bool append(const struct activity *activity) {
  bool has_room = has_room_for_row(&activities, &room, num_activities, sizeof *activities, MAX_ACTIVITIES);
  if (has_room) activities[num_activities++] = *activity;
  return has_room;
}

void note_activity(const struct activity *call) {
  static uint32_t last_correlation;
  struct activity activity = *call;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  activity.ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
  activity.ticks = ticks_now();
  activity.correlation = __atomic_add_fetch(&last_correlation, 1, __ATOMIC_RELAXED);
  activity.thread = (uint32_t)(uintptr_t)pthread_self();
  activity.kinds = wanted_kinds;
  for (unsigned i = 0; i < NUM_CUSTOM_KINDS; i++) activity.external[i] = top_of(FIRST_CUSTOM_KIND + i);
  pthread_mutex_lock(&lock);
  append(&activity);
  pthread_mutex_unlock(&lock);
  if (noted_callback) noted_callback();
}

/* ---- Times --------------------------------------------------------------------------------------------------------- */

static uint64_t *copy_serials(size_t *first, size_t *count) {
  pthread_mutex_lock(&lock);
  *first = num_timed;
  *count = num_activities - num_timed;
  uint64_t *serials = malloc((*count + 1) * sizeof *serials);
  for (size_t i = 0; serials && i < *count; i++) serials[i] = activities[*first + i].serial;
  pthread_mutex_unlock(&lock);
  return serials;
}

/* Without the lock while the clock is asked: it needs the interpreter, and other threads that have it note calls. */
bool time_activities(void) {
  size_t first, count;
  uint64_t *serials = copy_serials(&first, &count);
  struct activity_times *times = malloc((count + 1) * sizeof *times);
  bool is_known = serials && times && clock_times;
  if (is_known && count) clock_times(serials, times, count);
  pthread_mutex_lock(&lock);
  is_known = is_known && num_timed == first;
  for (size_t i = 0; is_known && i < count; i++) activities[first + i].times = times[i];
  if (is_known) num_timed += count;
  pthread_mutex_unlock(&lock);
  free(serials);
  free(times);
  return is_known;
}

static int by_serial(const void *a, const void *b) {
  uint64_t first = ((const struct activity *)a)->serial, second = ((const struct activity *)b)->serial;
  return first < second ? -1 : first > second;
}

struct activity *copy_activities(size_t *count, bool is_taken) {
  pthread_mutex_lock(&lock);
  struct activity *copy = malloc((num_timed + 1) * sizeof *copy);
  *count = 0;
  for (size_t i = 0; copy && i < num_timed; i++)
    if (!isnan(activities[i].times.start)) copy[(*count)++] = activities[i];
  if (is_taken && num_timed) {
    memmove(activities, activities + num_timed, (num_activities - num_timed) * sizeof *activities);
    num_activities -= num_timed;
    num_timed = 0;
  }
  pthread_mutex_unlock(&lock);
  if (copy) qsort(copy, *count, sizeof *copy, by_serial);
  return copy;
}
