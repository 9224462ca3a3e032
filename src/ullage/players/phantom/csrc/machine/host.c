/* Host memory: what this process takes here, and what it would take at least on a machine with the GPU.
 *
 * Three kinds of pages stay untouched here that would be filled there: weights whose random numbers nobody reads, large
 * copies from the device (they arrive as untouched pages of zeros), and pinned memory. The blocks they lie in are known:
 * those of PyTorch's CPU allocator from its two functions in libc10, which the phantom stands in front of, and pinned
 * ones from memory.c. At any moment
 *
 *     at least = resident memory + pages of such ranges that are not resident
 *
 * is what a machine with the GPU holds, without what its driver takes for itself. It is looked at when a range is added
 * and before one goes, so its peak is met unless resident memory has one in between; then it is too low, never too high.
 */
#include "host.h"
#include "libc10.h"
#include "phantom.h"
#include "ranges.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t LARGE = 1 << 20;
enum { PAGES_PER_LOOK = 1 << 16 };

struct host_block {
  uintptr_t start;
  size_t bytes;
  uintptr_t low, high; /* the range that would be filled; empty: none */
  bool is_pinned;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *host_blocks; /* tsearch tree of ranges */
static uint64_t absent;   /* bytes of all ranges, less what was resident at the last look: never too low */
static uint64_t needed_peak;
static size_t page;

static struct host_block *block_at(uintptr_t address) { return range_at(&host_blocks, address); }

static uint64_t resident_bytes(void) {
  char text[128] = "";
  unsigned long pages = 0;
  int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  return got > 0 && sscanf(text, "%*u %lu", &pages) == 1 ? pages * page : 0;
}

/* Bytes of whole pages of a range that are not resident. */
static uint64_t absent_bytes(uintptr_t low, uintptr_t high) {
  static unsigned char is_resident[PAGES_PER_LOOK];
  uint64_t count = 0;
  low = (low + page - 1) / page * page;
  high = high / page * page;
  while (low < high) {
    size_t pages = (high - low) / page < PAGES_PER_LOOK ? (high - low) / page : PAGES_PER_LOOK;
    if (mincore((void *)low, pages * page, is_resident)) return count * page;
    for (size_t i = 0; i < pages; i++) count += !(is_resident[i] & 1);
    low += pages * page;
  }
  return count * page;
}

static uint64_t counted;

static void count_absent(const void *node, VISIT visit, int depth) {
  (void)depth;
  if (visit != postorder && visit != leaf) return;
  const struct host_block *b = *(struct host_block *const *)node;
  if (b->low < b->high) counted += absent_bytes(b->low, b->high);
}

/* Under the lock. A look costs a walk over page tables, so only where the peak may have grown by so many bytes. */
static void look(uint64_t growth) {
  if (!absent || resident_bytes() + absent <= needed_peak + growth) return;
  counted = 0;
  twalk(host_blocks, count_absent);
  absent = counted;
  uint64_t needed = resident_bytes() + absent;
  if (needed > needed_peak) needed_peak = needed;
}

static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }

static void get_ready(void) {
  page = (size_t)sysconf(_SC_PAGESIZE);
  pthread_atfork(hold, let_go, let_go); /* another thread may be in here while the program forks */
}

/* False: the addresses lie in a block that is known. */
static bool add_block(uintptr_t start, size_t bytes, bool is_pinned) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct host_block *b = calloc(1, sizeof *b);
  if (!b) return false;
  pthread_once(&once, get_ready);
  *b = (struct host_block){start, bytes, start, start, is_pinned};
  pthread_mutex_lock(&lock);
  struct host_block **kept = tsearch(b, &host_blocks, by_range);
  bool is_new = kept && *kept == b;
  pthread_mutex_unlock(&lock);
  if (!is_new) free(b);
  return is_new;
}

static void remove_block(uintptr_t start, bool is_pinned) {
  pthread_mutex_lock(&lock);
  struct host_block *b = block_at(start);
  if (b && b->start == start && b->is_pinned == is_pinned) {
    if (b->low < b->high) {
      look(0);
      uint64_t gone = absent_bytes(b->low, b->high);
      absent -= gone < absent ? gone : absent;
    }
    tdelete(b, &host_blocks, by_range);
    free(b);
  }
  pthread_mutex_unlock(&lock);
}

void host_filled(const void *p, size_t bytes) {
  uintptr_t low = (uintptr_t)p, high = low + bytes;
  if (bytes < LARGE) return;
  pthread_mutex_lock(&lock);
  struct host_block *b = block_at(low);
  if (b && high <= b->start + b->bytes) {
    uint64_t before = b->high - b->low;
    bool touches = low <= b->high && high >= b->low;
    if (touches) {
      if (low < b->low) b->low = low;
      if (high > b->high) b->high = high;
    } else if (bytes > before) { /* of two ranges the larger: too few bytes, never too many */
      b->low = low;
      b->high = high;
    }
    absent += b->high - b->low > before ? b->high - b->low - before : bytes;
    look(needed_peak / 64);
  }
  pthread_mutex_unlock(&lock);
}

/* Zeros without touching whole pages: a checkpoint of a large model must not need its size in host memory. */
void fill_zeros(void *dst, size_t bytes) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)dst, end = start + bytes;
  uintptr_t first = (start + page - 1) / page * page, last = end / page * page;
  if (bytes < LARGE || first >= last || madvise((void *)first, last - first, MADV_DONTNEED)) {
    memset(dst, 0, bytes);
    return;
  }
  memset(dst, 0, first - start);
  memset((void *)last, 0, end - last);
  host_filled((void *)first, last - first);
}

void host_pinned(const void *p, size_t bytes) {
  if (bytes >= LARGE) add_block((uintptr_t)p, bytes, true);
  host_filled(p, bytes);
}

void host_unpinned(const void *p) { remove_block((uintptr_t)p, true); }

/* ---- PyTorch's CPU allocator: c10::alloc_cpu(size_t), c10::free_cpu(void *) ----------------------------------------- */

API void *_ZN3c109alloc_cpuEm(size_t bytes) {
  static void *(*next)(size_t);
  if (!next) next = (void *(*)(size_t))in_libc10("_ZN3c109alloc_cpuEm");
  void *p = next(bytes);
  if (p && bytes >= LARGE) add_block((uintptr_t)p, bytes, false);
  return p;
}

API void _ZN3c108free_cpuEPv(void *p) {
  static void (*next)(void *);
  if (!next) next = (void (*)(void *))in_libc10("_ZN3c108free_cpuEPv");
  if (p && host_blocks) remove_block((uintptr_t)p, false);
  next(p);
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* The program has filled these bytes, and the filling was put off. */
API void ullage_host_filled(const void *p, uint64_t bytes) { host_filled(p, bytes); }

/* Zeros, without a page of them; of private memory that no file lies behind. */
API void ullage_host_zero(void *p, uint64_t bytes) { fill_zeros(p, bytes); }

static bool is_zero(const unsigned char *p, const unsigned char *end) {
  while (p < end && !*p) p++;
  return p >= end;
}

/* Whether these bytes are zeros because nobody has written them: pages that are not there or, where a file of nothing
 * but holes lies behind them, are the file's. False where the kernel does not say. */
API int ullage_host_is_untouched(const void *p, uint64_t bytes, int is_file) {
  static const uint64_t PRESENT = 1ull << 63, SWAPPED = 1ull << 62, OF_FILE = 1ull << 61;
  uint64_t entries[512];
  uintptr_t start = (uintptr_t)p, end = start + bytes, size = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t first = (start + size - 1) / size * size, last = end / size * size;
  if (first >= last || !is_zero(p, (void *)first) || !is_zero((void *)last, (void *)end)) return 0;
  int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  bool is_untouched = file >= 0;
  for (uintptr_t at = first; at < last && is_untouched;) {
    size_t pages = (last - at) / size < 512 ? (last - at) / size : 512;
    is_untouched = pread(file, entries, pages * 8, (off_t)(at / size * 8)) == (ssize_t)(pages * 8);
    for (size_t i = 0; i < pages && is_untouched; i++)
      is_untouched = !(entries[i] & (PRESENT | SWAPPED)) || (is_file && (entries[i] & OF_FILE));
    at += pages * size;
  }
  if (file >= 0) close(file);
  return is_untouched;
}

/* Peak of host memory on a machine with the GPU, at least; 0: no more than here. */
API uint64_t ullage_host_needed_bytes(void) {
  pthread_mutex_lock(&lock);
  look(0);
  pthread_mutex_unlock(&lock);
  return needed_peak;
}
