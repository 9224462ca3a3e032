/* When asynchronous work is done: as late as can be.
 *
 * A GPU does its work some time between the launch and the moment at which the host has waited for it. The allocator
 * asks when it reuses a block that another stream has used, so how much memory a program needs may hang on it. Here a
 * piece of work is done when the host has waited for it (a stream, an event, a device, a copy that returns when it is
 * done), which is the upper end of what a GPU can need; what would be needed if all were done at once is worked out
 * afterwards (ullage/whatif).
 *
 * Each stream counts its pieces of work. An event is a list of how far which streams must have got, its own and those
 * that it had waited for; it has happened when the host knows that all of them have.
 *
 * No program waits here for ever: a question that is asked MAX_IN_A_ROW times with nothing launched or allocated between,
 * or MAX_ALTOGETHER times, counts as a wait. A thread that never gave the device any work only looks on (NCCL's watchdog,
 * the thread that pins a DataLoader's batches) and asks by the clock: it is told that all is done, and what it asks
 * changes nothing, so that two runs of a program are alike. The allocator asks for whoever allocates: a thread's first
 * block may come before its first kernel.
 */
#define _GNU_SOURCE
#include "completion.h"
#include "blocks.h"
#include "levels.h"
#include "phantom.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LANES = 4096, MAX_IN_A_ROW = 100, MAX_ALTOGETHER = 1000000 };

/* A stream, as far as time goes. */
struct lane {
  uint64_t given, done;  /* pieces of work */
  struct frontier waits; /* what must be done before the next piece */
  struct frontier end;   /* what must be done for the host to find nothing left */
  int device;
  bool is_taken;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lane lanes[MAX_LANES];
static int num_lanes = NUM_FIXED_LANES;
static uint64_t num_not_yet;
static _Thread_local bool has_given_work;

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

/* A lane of a stream that is gone may serve again once its work is done. With all taken, the last is shared. */
int new_lane(int device) {
  pthread_mutex_lock(&lock);
  int i = NUM_FIXED_LANES;
  while (i < num_lanes && (lanes[i].is_taken || lanes[i].given != lanes[i].done)) i++;
  if (i == MAX_LANES) i--;
  if (i == num_lanes) num_lanes++;
  lanes[i].waits.count = 0;
  lanes[i].device = device;
  lanes[i].is_taken = true;
  pthread_mutex_unlock(&lock);
  return i;
}

void drop_lane(int lane) {
  pthread_mutex_lock(&lock);
  lanes[lane].is_taken = false;
  pthread_mutex_unlock(&lock);
}

static int device_of(int lane) { return lane < NUM_FIXED_LANES ? lane % NUM_DEVICES : lanes[lane].device; }

void note_lane_work(int lane) {
  has_given_work = true;
  __atomic_add_fetch(&lanes[lane].given, 1, __ATOMIC_RELAXED);
}

/* ---- Frontiers: under the lock ----------------------------------------------------------------------------------- */

static bool is_past(struct mark mark) { return mark.position <= lanes[mark.lane].done; }

static void add_mark(struct frontier *to, struct mark mark) {
  if (is_past(mark)) return;
  for (size_t i = 0; i < to->count; i++)
    if (to->marks[i].lane == mark.lane) {
      if (mark.position > to->marks[i].position) to->marks[i].position = mark.position;
      return;
    }
  if (to->count == to->room) {
    size_t room = to->room ? 2 * to->room : 4;
    struct mark *larger = realloc(to->marks, room * sizeof *larger);
    if (!larger) return;
    to->marks = larger;
    to->room = room;
  }
  to->marks[to->count++] = mark;
}

static void add_marks(struct frontier *to, const struct frontier *from) {
  for (size_t i = 0; i < from->count; i++) add_mark(to, from->marks[i]);
}

static void drop_past(struct frontier *f) {
  size_t kept = 0;
  for (size_t i = 0; i < f->count; i++)
    if (!is_past(f->marks[i])) f->marks[kept++] = f->marks[i];
  f->count = kept;
}

static void reach_mark(struct mark mark) {
  struct lane *lane = &lanes[mark.lane];
  if (mark.position > lane->done) lane->done = mark.position;
}

static void reach_marks(const struct frontier *f) {
  for (size_t i = 0; i < f->count; i++) reach_mark(f->marks[i]);
}

static struct mark end_of(int lane) {
  return (struct mark){lane, __atomic_load_n(&lanes[lane].given, __ATOMIC_RELAXED)};
}

static void list_end(int lane, struct frontier *to) {
  drop_past(&lanes[lane].waits);
  to->count = 0;
  add_marks(to, &lanes[lane].waits);
  add_mark(to, end_of(lane));
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

void mark_end(int lane, struct frontier *to) {
  pthread_mutex_lock(&lock);
  list_end(lane, to);
  to->asked = to->asked_in_a_row = 0;
  pthread_mutex_unlock(&lock);
}

void wait_before(int lane, const struct frontier *frontier) {
  pthread_mutex_lock(&lock);
  drop_past(&lanes[lane].waits);
  add_marks(&lanes[lane].waits, frontier);
  pthread_mutex_unlock(&lock);
}

void drop_frontier(struct frontier *frontier) {
  pthread_mutex_lock(&lock);
  free(frontier->marks);
  *frontier = (struct frontier){0};
  pthread_mutex_unlock(&lock);
}

void reach(const struct frontier *frontier) {
  pthread_mutex_lock(&lock);
  reach_marks(frontier);
  pthread_mutex_unlock(&lock);
}

static void reach_end(int lane) {
  reach_marks(&lanes[lane].waits);
  reach_mark(end_of(lane));
}

void reach_lane(int lane) {
  pthread_mutex_lock(&lock);
  reach_end(lane);
  pthread_mutex_unlock(&lock);
}

void reach_device(int device) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_lanes; i++)
    if (device_of(i) == device) reach_end(i);
  pthread_mutex_unlock(&lock);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* PyTorch's allocator, which asks for whoever allocates, at one place in its code. */
static bool is_allocator(const void *caller) {
  static const void *known;
  Dl_info found;
  if (caller == known) return true;
  if (!dladdr(caller, &found) || !found.dli_fname || !strstr(found.dli_fname, "libc10_cuda")) return false;
  known = caller;
  return true;
}

/* Grows with whatever is launched or allocated. */
static uint64_t progress(void) {
  uint64_t sum = event_position();
  for (int i = 0; i < num_lanes; i++) sum += __atomic_load_n(&lanes[i].given, __ATOMIC_RELAXED);
  return sum;
}

static bool has_asked_enough(struct frontier *f) {
  uint64_t now = progress();
  f->asked_in_a_row = f->progress == now ? f->asked_in_a_row + 1 : 1;
  f->progress = now;
  return f->asked_in_a_row >= MAX_IN_A_ROW || ++f->asked >= MAX_ALTOGETHER;
}

static bool is_reached(const struct frontier *frontier) {
  size_t i = 0;
  while (i < frontier->count && is_past(frontier->marks[i])) i++;
  return i == frontier->count;
}

/* For tests: what a GPU that is infinitely fast would do. */
static bool is_done_at_once(void) {
  static int is_set = -1;
  if (is_set < 0) is_set = getenv("ULLAGE_COMPLETION") && !strcmp(getenv("ULLAGE_COMPLETION"), "at_once");
  return is_set;
}

static bool ask(struct frontier *f, const void *caller) {
  if (is_reached(f) || is_done_at_once()) return true;
  bool by_allocator = is_allocator(caller);
  if (!has_given_work && !by_allocator) return true;
  bool is_done = has_asked_enough(f);
  if (is_done) reach_marks(f);
  else num_not_yet += by_allocator;
  return is_done;
}

bool has_happened(struct frontier *frontier, const void *caller) {
  pthread_mutex_lock(&lock);
  bool is_done = ask(frontier, caller);
  pthread_mutex_unlock(&lock);
  return is_done;
}

bool is_lane_done(int lane, const void *caller) {
  pthread_mutex_lock(&lock);
  list_end(lane, &lanes[lane].end);
  bool is_done = ask(&lanes[lane].end, caller);
  pthread_mutex_unlock(&lock);
  return is_done;
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* How often the allocator was answered "not yet": 0 means that no block hung on when work is done. */
API uint64_t ullage_num_not_yet(void) { return num_not_yet; }
