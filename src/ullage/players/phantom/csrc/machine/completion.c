/* When asynchronous work is done: as late as can be.
 *
 * A GPU does its work some time between the launch and the moment at which the host has waited for it. The allocator
 * asks when it reuses a block that another stream has used, so how much memory a program needs may hang on it. Here a
 * piece of work is done when the host has waited for it (a stream, an event, a device, a copy that returns when it is
 * done), which is the upper end of what a GPU can need; what would be needed if all were done at once is worked out
 * afterwards (ullage/explain/whatif).
 *
 * Each stream counts its pieces of work. An event is a list of how far which streams must have got, its own and those
 * that it had waited for; it has happened when the host knows that all of them have.
 *
 * The host cannot run ahead of the GPU without end: a stream holds about QUEUE_LENGTH pieces of work, and whoever gives it
 * one more waits for the oldest. So whatever lies further back is done, with what it waited for.
 *
 * No program waits here for ever: a question that is asked MAX_IN_A_ROW times with nothing launched or allocated between,
 * or MAX_ALTOGETHER times, counts as a wait. A thread that never gave the device any work only looks on (the thread that
 * pins a DataLoader's batches) and asks by the clock: it is told that all is done, and what it asks changes nothing, so
 * that two runs of a program are alike. The allocator asks for whoever allocates: a thread's first block may come before
 * its first kernel.
 *
 * PyTorch's watchdog of collectives asks by the clock, too, but its answers decide when the tensors of a collective are
 * let go of, if the program does not wait for the collective itself. It sees what was done at the last collective, and
 * at each collective that finds more done it looks at once (watchdog.c); the clock plays no part in that.
 */
#define _GNU_SOURCE
#include "completion.h"
#include "blocks.h"
#include "capture.h"
#include "kept.h"
#include "levels.h"
#include "phantom.h"
#include "room.h"
#include "watchdog.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* QUEUE_LENGTH: "each stream can launch 1000 kernels", after which a launch takes as long as a kernel
 * (forums.developer.nvidia.com/t/68937, stackoverflow.com/questions/53970187); rounded up to a power of two. */
enum { MAX_LANES = 4096, MAX_IN_A_ROW = 100, MAX_ALTOGETHER = 1000000, QUEUE_LENGTH = 1024 };

/* The pieces of a stream from `next` on come after the mark. */
struct dependency {
  uint64_t next;
  struct mark mark;
};

/* A stream, as far as time goes. */
struct lane {
  uint64_t given, done;  /* pieces of work */
  uint64_t seen;         /* done, as the watchdogs know it */
  uint64_t unseen;       /* the first collective that they have not seen done; 0: none */
  uint64_t last;         /* the last collective */
  uint64_t fed;          /* the last piece before which the stream was told to wait */
  struct frontier waits; /* what must be done before the next piece */
  struct frontier end;   /* what must be done for the host to find nothing left */
  struct dependency *dependencies; /* in order: `first` to `first + count` */
  size_t first, count, room;
  int device;
  bool is_taken;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lane lanes[MAX_LANES];
static int num_lanes = NUM_FIXED_LANES;
static uint64_t num_not_yet;
static _Thread_local bool has_given_work;

/* A collective that this thread gives with news for the watchdogs, from its call to whatever the thread does next: once
 * its end is marked, PyTorch lets go of what was kept for those before. */
static _Thread_local enum { NO_COLLECTIVE, GIVEN, ENDED } collective;

/* The first of the asynchronous collectives that this thread gives as one; position 0: none. Their stream is not the
 * thread's, so that it waits for the thread's before each. */
static _Thread_local struct mark asynchronous;

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

/* A lane of a stream that is gone may serve again once its work is done. With all taken, the last is shared. */
int new_lane(int device) {
  pthread_mutex_lock(&lock);
  int i = NUM_FIXED_LANES;
  while (i < num_lanes && (lanes[i].is_taken || lanes[i].given != lanes[i].done)) i++;
  if (i == MAX_LANES) i--;
  if (i == num_lanes) num_lanes++;
  lanes[i].waits.count = 0;
  lanes[i].count = 0;
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
  if (collective == ENDED) collective = NO_COLLECTIVE;
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

/* What is done was not done before what it waited for. */
static void reach_mark(struct mark mark) {
  struct lane *lane = &lanes[mark.lane];
  if (mark.position <= lane->done) return;
  lane->done = mark.position;
  while (lane->count && lane->dependencies[lane->first].next <= lane->done) {
    struct mark before = lane->dependencies[lane->first++].mark;
    lane->count--;
    reach_mark(before);
  }
}

static void add_dependency(struct lane *lane, struct mark mark) {
  uint64_t next = __atomic_load_n(&lane->given, __ATOMIC_RELAXED) + 1;
  for (size_t i = lane->first + lane->count; i-- > lane->first && lane->dependencies[i].next == next;)
    if (lane->dependencies[i].mark.lane == mark.lane) {
      if (mark.position > lane->dependencies[i].mark.position) lane->dependencies[i].mark = mark;
      return;
    }
  if (lane->first > lane->count) {
    memcpy(lane->dependencies, lane->dependencies + lane->first, lane->count * sizeof *lane->dependencies);
    lane->first = 0;
  }
  if (!has_room_for_row(&lane->dependencies, &lane->room, lane->first + lane->count, sizeof *lane->dependencies, SIZE_MAX)) return;
  lane->dependencies[lane->first + lane->count++] = (struct dependency){next, mark};
}

/* What lies further back than a stream holds is done. */
static void leave_full_queues(void) {
  for (int i = 0; i < num_lanes; i++) {
    uint64_t given = __atomic_load_n(&lanes[i].given, __ATOMIC_RELAXED);
    if (given > lanes[i].done + QUEUE_LENGTH) reach_mark((struct mark){i, given - QUEUE_LENGTH});
  }
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
  if (collective == GIVEN) collective = ENDED;
  pthread_mutex_lock(&lock);
  list_end(lane, to);
  to->asked = to->asked_in_a_row = to->watched_in_a_row = 0;
  to->watched_ns = 0;
  pthread_mutex_unlock(&lock);
}

void wait_before(int lane, const struct frontier *frontier) {
  pthread_mutex_lock(&lock);
  leave_full_queues();
  lanes[lane].fed = __atomic_load_n(&lanes[lane].given, __ATOMIC_RELAXED) + 1;
  drop_past(&lanes[lane].waits);
  add_marks(&lanes[lane].waits, frontier);
  for (size_t i = 0; i < frontier->count; i++)
    if (!is_past(frontier->marks[i])) add_dependency(&lanes[lane], frontier->marks[i]);
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

/* A watchdog looks again and again while its group ends, and some time before a collective counts as hung (ten minutes,
 * if the program does not say otherwise) it has to see the end of it. */
static bool has_watched_enough(struct frontier *f) {
  static const int64_t IN_A_ROW_NS = 10 * 1000 * 1000, LONG_NS = 300LL * 1000 * 1000 * 1000;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  int64_t now = time.tv_sec * 1000000000LL + time.tv_nsec, passed = now - f->watched_ns;
  if (!f->watched_ns) f->first_watched_ns = now;
  f->watched_in_a_row = passed < IN_A_ROW_NS ? f->watched_in_a_row + 1 : 0;
  f->watched_ns = now;
  return f->watched_in_a_row >= MAX_IN_A_ROW || now - f->first_watched_ns > LONG_NS;
}

/* Watchdogs ask with captures of their own thread alone in mind, so that the program's do not forbid it. */
bool is_watchdog(void) { return !has_given_work && is_mode_thread_local(); }

static bool is_seen(const struct frontier *f) {
  size_t i = 0;
  while (i < f->count && f->marks[i].position <= lanes[f->marks[i].lane].seen) i++;
  return i == f->count;
}

static enum answer ask(struct frontier *f, const void *caller) {
  if (is_watchdog()) return is_seen(f) || has_watched_enough(f);
  leave_full_queues();
  if (is_reached(f) || is_done_at_once()) return HAPPENED;
  bool by_allocator = is_allocator(caller);
  if (!has_given_work && !by_allocator) return HAPPENED;
  bool is_done = has_asked_enough(f);
  if (is_done) reach_marks(f);
  else num_not_yet += by_allocator;
  return !is_done ? NOT_YET : by_allocator ? HAPPENED : WAITED_FOR;
}

enum answer has_happened(struct frontier *frontier, const void *caller) {
  pthread_mutex_lock(&lock);
  enum answer answer = ask(frontier, caller);
  pthread_mutex_unlock(&lock);
  return answer;
}

enum answer is_lane_done(int lane, const void *caller) {
  pthread_mutex_lock(&lock);
  list_end(lane, &lanes[lane].end);
  enum answer answer = ask(&lanes[lane].end, caller);
  pthread_mutex_unlock(&lock);
  return answer;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* Whether more is done than the watchdogs have seen; they have from now on. */
static bool show_done(void) {
  bool at_once = is_done_at_once(), has_news = false;
  leave_full_queues();
  for (int i = 0; i < num_lanes; i++) {
    struct lane *lane = &lanes[i];
    uint64_t done = at_once ? __atomic_load_n(&lane->given, __ATOMIC_RELAXED) : lane->done;
    lane->seen = done;
    if (!lane->unseen || lane->unseen > done) continue;
    has_news = true;
    lane->unseen = lane->last > done ? done + 1 : 0;
    drop_seen((struct mark){i, done});
  }
  return has_news;
}

/* PyTorch lets go of what its watchdogs have seen done when it has given the stream the next collective. */
void note_lane_collective(int lane) {
  pthread_mutex_lock(&lock);
  bool has_news = show_done();
  pthread_mutex_unlock(&lock);
  note_lane_work(lane);
  if (has_news) {
    let_watchdogs_look();
    collective = GIVEN;
  }
  pthread_mutex_lock(&lock);
  lanes[lane].last = end_of(lane).position;
  if (lanes[lane].fed == lanes[lane].last) asynchronous = end_of(lane);
  else if (asynchronous.lane != lane) asynchronous.position = 0;
  if (!lanes[lane].unseen) lanes[lane].unseen = lanes[lane].last;
  pthread_mutex_unlock(&lock);
}

void keep_operand(const void *p) { keep_for_collective(asynchronous, p); }

struct mark end_collective(int lane) {
  struct mark ended = asynchronous;
  if (ended.lane != lane) ended.position = 0;
  else asynchronous.position = 0;
  return ended;
}

bool was_kept_for_collective(const void *block, int64_t bytes) {
  bool is_freed = bytes < 0;
  if (!is_freed && collective == ENDED) collective = NO_COLLECTIVE;
  /* As a watchdog has seen the end, or with the group itself. */
  if (!is_freed || (collective != ENDED && !is_operand(block, (size_t)-bytes))) return false;
  __atomic_add_fetch(&num_not_yet, 1, __ATOMIC_RELAXED);
  return true;
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* How often the allocator was answered "not yet", and how many blocks went back only when a watchdog had seen the end of
 * their collective: 0 means that no block hung on when work is done. */
API uint64_t ullage_num_not_yet(void) { return num_not_yet; }
