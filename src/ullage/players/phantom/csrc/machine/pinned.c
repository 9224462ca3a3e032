/* Pinned host memory: where it is, and how much of it there was when.
 *
 * PyTorch's allocator of pinned memory gives none back, and a freed block to nobody before the events of its copies have
 * happened. These happen as late as can be here (completion.c), so that what is pinned is an upper end. Were they to happen
 * at once, there would be, of each size, as many blocks as were in use together. The driver is not told which are in use:
 * the allocator's own function is replaced by one that calls it, and that knows when each block is freed. It is the third
 * of a c10::Allocator's table, after two destructors, and returns a c10::DataPtr: the address, what frees, and for whom.
 */
#include "host.h"
#include "libc10.h"
#include "levels.h"
#include "memory.h"
#include "phantom.h"
#include "ranges.h"
#include "room.h"

#include <dlfcn.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_ROWS = 1 << 18, MAX_SIZES = 256, ALLOCATE = 2, CUDA = 1 };

struct pinned_range {
  uintptr_t start;
  size_t bytes;
  bool is_owned;  /* else it is the program's, and only registered */
  bool is_cached; /* by PyTorch's allocator */
};

struct level {
  uint64_t position, bytes, low;
};

/* Blocks of one size of PyTorch's allocator: how many are in use, and how many there would be. */
struct size {
  size_t bytes;
  uint64_t in_use, blocks;
};

struct data_ptr {
  void *data;
  void (*deleter)(void *);
  void *context;
  uint16_t device;
};

/* A block in use, by what its deleter is given. */
struct loan {
  void *context;
  void (*deleter)(void *);
  struct size *size;
  size_t asked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *pinned; /* tsearch tree of ranges */
static void *loans;  /* likewise, by context */
static uint64_t now_bytes, peak_bytes;
static uint64_t cached_now_bytes, at_once_bytes, low_peak_bytes; /* at once: with events that happen at once */
static uint64_t asked_bytes, asked_peak_bytes;
static struct size sizes[MAX_SIZES];
static struct data_ptr (*allocate_next)(void *, size_t);
static _Thread_local bool is_for_loan;
static struct level *levels;
static uint64_t num_levels, level_room;

static struct pinned_range *holder(uintptr_t address) { return range_at(&pinned, address); }

static int by_context(const void *a, const void *b) {
  const struct loan *x = a, *y = b;
  return (x->context > y->context) - (x->context < y->context);
}

static void note_now(void) {
  uint64_t low = now_bytes - cached_now_bytes + at_once_bytes;
  raise_to(&peak_bytes, now_bytes);
  raise_to(&low_peak_bytes, low);
  raise_to(&asked_peak_bytes, now_bytes - cached_now_bytes + asked_bytes);
  if (num_levels && levels[num_levels - 1].bytes == now_bytes && levels[num_levels - 1].low == low) return;
  if (has_room_for_row(&levels, &level_room, num_levels, sizeof *levels, MAX_ROWS))
    levels[num_levels++] = (struct level){event_position(), now_bytes, low};
}

static struct size *size_for(size_t bytes) {
  for (size_t i = 0; i < MAX_SIZES; i++) {
    if (!sizes[i].bytes) sizes[i].bytes = bytes;
    if (sizes[i].bytes == bytes) return &sizes[i];
  }
  return NULL;
}

static void set_blocks(struct size *size, uint64_t blocks) {
  at_once_bytes += (blocks - size->blocks) * size->bytes;
  size->blocks = blocks;
}

static void remember_pinned(void *p, size_t bytes, bool owned) {
  struct pinned_range *a = calloc(1, sizeof *a);
  if (!a) return;
  *a = (struct pinned_range){.start = (uintptr_t)p, .bytes = bytes, .is_owned = owned};
  pthread_mutex_lock(&lock);
  tsearch(a, &pinned, by_range);
  now_bytes += bytes;
  a->is_cached = is_for_loan && size_for(bytes);
  cached_now_bytes += a->is_cached ? bytes : 0;
  note_now();
  pthread_mutex_unlock(&lock);
  host_pinned(p, bytes);
}

static struct pinned_range *forget_pinned(void *p, bool is_owned) {
  pthread_mutex_lock(&lock);
  struct pinned_range *a = holder((uintptr_t)p);
  if (a && a->start == (uintptr_t)p && a->is_owned == is_owned) {
    tdelete(a, &pinned, by_range);
    now_bytes -= a->bytes;
    if (a->is_cached) {
      /* The cache is emptied: nothing of this size is kept beyond what is in use. */
      struct size *size = size_for(a->bytes);
      cached_now_bytes -= a->bytes;
      set_blocks(size, size->in_use);
    }
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
  if (p == MAP_FAILED) return is_for_loan = false, NULL; /* PyTorch throws */
  remember_pinned(p, bytes ? bytes : 1, true);
  return p;
}

static bool end_pinned(void *p, bool is_owned) {
  struct pinned_range *a = forget_pinned(p, is_owned);
  if (!a) return false;
  host_unpinned(p);
  if (is_owned) munmap(p, a->bytes);
  free(a);
  return true;
}

bool deallocate_pinned(void *p) { return end_pinned(p, true); }
bool unregister_pinned(void *p) { return end_pinned(p, false); }

bool register_pinned(void *p, size_t bytes) {
  if (is_pinned_address(p) || (bytes && is_pinned_address((char *)p + bytes - 1))) return false;
  remember_pinned(p, bytes, false);
  return true;
}

bool is_pinned_address(const void *p) {
  pthread_mutex_lock(&lock);
  bool is_pinned = holder((uintptr_t)p) != NULL;
  pthread_mutex_unlock(&lock);
  return is_pinned;
}

/* ---- PyTorch's allocator ------------------------------------------------------------------------------------------ */

static void end_loan(void *context) {
  pthread_mutex_lock(&lock);
  struct loan **place = tfind(&(struct loan){.context = context}, &loans, by_context), *loan = *place;
  tdelete(loan, &loans, by_context);
  loan->size->in_use--;
  asked_bytes -= loan->asked;
  pthread_mutex_unlock(&lock);
  loan->deleter(context);
  free(loan);
}

static struct data_ptr allocate_for_loan(void *allocator, size_t bytes) {
  is_for_loan = true;
  struct data_ptr got = allocate_next(allocator, bytes);
  is_for_loan = false;
  pthread_mutex_lock(&lock);
  struct pinned_range *range = holder((uintptr_t)got.data);
  bool is_known = range && range->is_cached && range->start == (uintptr_t)got.data && got.context && got.deleter;
  struct loan *loan = is_known ? calloc(1, sizeof *loan) : NULL;
  if (loan) {
    struct size *size = size_for(range->bytes);
    *loan = (struct loan){got.context, got.deleter, size, bytes};
    tsearch(loan, &loans, by_context);
    got.deleter = end_loan;
    if (++size->in_use > size->blocks) set_blocks(size, size->in_use);
    asked_bytes += bytes;
    note_now();
  }
  pthread_mutex_unlock(&lock);
  return got;
}

/* For the recorder, once torch is imported. False: this torch has no such allocator. */
API int ullage_watch_pinned(void) {
  void *(*find)(int8_t) = (void *(*)(int8_t))in_library("libtorch_cpu.so", "_ZN2at16getHostAllocatorEN3c1010DeviceTypeE");
  void *(*find_old)(void) = (void *(*)(void))in_library("libtorch_cuda.so", "_ZN2at4cuda23getCachingHostAllocatorEv");
  if (allocate_next || !dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) || (!find && !find_old)) return false;
  void **table = *(void ***)(find_old ? find_old() : find(CUDA));
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)&table[ALLOCATE] / page * page;
  if (mprotect((void *)start, page, PROT_READ | PROT_WRITE)) return false;
  allocate_next = (struct data_ptr (*)(void *, size_t))table[ALLOCATE];
  table[ALLOCATE] = (void *)allocate_for_loan;
  return true;
}

API uint64_t ullage_pinned_peak_bytes(void) { return peak_bytes; }
API uint64_t ullage_pinned_low_peak_bytes(void) { return low_peak_bytes; }
API uint64_t ullage_pinned_asked_peak_bytes(void) { return asked_peak_bytes; }

API uint64_t ullage_num_pinned(void) { return num_levels; }

API void ullage_pinned(uint64_t i, int64_t row[3]) {
  row[0] = (int64_t)levels[i].position;
  row[1] = (int64_t)levels[i].bytes;
  row[2] = (int64_t)levels[i].low;
}
