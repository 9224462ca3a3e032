/* Pinned host memory: where it is, and how much of it there was when. */
#include "host.h"
#include "levels.h"
#include "memory.h"
#include "phantom.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAX_ROWS = 1 << 18 };

struct range {
  uintptr_t start;
  size_t bytes;
  bool is_owned; /* else it is the program's, and only registered */
};

struct level {
  uint64_t position, bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *pinned; /* tsearch tree, ordered by address */
static uint64_t now_bytes, peak_bytes;
static struct level *levels;
static uint64_t num_levels, level_room;

/* Overlapping ranges compare as equal. */
static int by_address(const void *a, const void *b) {
  const struct range *x = a, *y = b;
  if (x->start + x->bytes <= y->start) return -1;
  return x->start >= y->start + y->bytes;
}

static struct range *holder(uintptr_t address) {
  struct range key = {.start = address, .bytes = 1};
  struct range **found = tfind(&key, &pinned, by_address);
  return found ? *found : NULL;
}

static void note_now(void) {
  if (num_levels == level_room && num_levels < MAX_ROWS) {
    uint64_t room = level_room ? level_room * 2 : 256;
    struct level *larger = realloc(levels, room * sizeof *larger);
    if (!larger) return;
    levels = larger;
    level_room = room;
  }
  if (num_levels < level_room) levels[num_levels++] = (struct level){event_position(), now_bytes};
}

static void remember_pinned(void *p, size_t bytes, bool owned) {
  struct range *a = calloc(1, sizeof *a);
  if (!a) return;
  *a = (struct range){.start = (uintptr_t)p, .bytes = bytes, .is_owned = owned};
  pthread_mutex_lock(&lock);
  tsearch(a, &pinned, by_address);
  now_bytes += bytes;
  if (now_bytes > peak_bytes) peak_bytes = now_bytes;
  note_now();
  pthread_mutex_unlock(&lock);
  host_pinned(p, bytes);
}

static struct range *forget_pinned(void *p) {
  pthread_mutex_lock(&lock);
  struct range *a = holder((uintptr_t)p);
  if (a && a->start == (uintptr_t)p) {
    tdelete(a, &pinned, by_address);
    now_bytes -= a->bytes;
    note_now();
  } else {
    a = NULL;
  }
  pthread_mutex_unlock(&lock);
  return a;
}

/* Anonymous pages, untouched: pinned memory that nobody fills costs no host memory here. */
void *allocate_pinned(size_t bytes) {
  void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  remember_pinned(p, bytes ? bytes : 1, true);
  return p;
}

bool deallocate_pinned(void *p) {
  struct range *a = forget_pinned(p);
  if (!a) return false;
  host_unpinned(p);
  if (a->is_owned) munmap(p, a->bytes);
  free(a);
  return true;
}

void register_pinned(void *p, size_t bytes) { remember_pinned(p, bytes, false); }

bool is_pinned_address(const void *p) {
  pthread_mutex_lock(&lock);
  bool is_pinned = holder((uintptr_t)p) != NULL;
  pthread_mutex_unlock(&lock);
  return is_pinned;
}

API uint64_t ullage_pinned_peak_bytes(void) { return peak_bytes; }

API uint64_t ullage_num_pinned(void) { return num_levels; }

API void ullage_pinned(uint64_t i, int64_t row[2]) {
  row[0] = (int64_t)levels[i].position;
  row[1] = (int64_t)levels[i].bytes;
}
