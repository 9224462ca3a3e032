/* Device memory: addresses that hold nothing, and how many bytes of each device are taken.
 *
 * One address range is reserved (PROT_NONE: a host access faults, as on a real GPU) and divided into equal parts, one a
 * device; address_space.c says in which order its addresses are given out. Physical memory is counted in pages of 2 MiB,
 * as the driver hands it out; allocations below 1 MiB share pages. The virtual-memory calls (expandable segments) count
 * physical handles, not addresses.
 */
#include "address_space.h"
#include "memory.h"
#include "phantom.h"
#include "publish.h"
#include "published.h"
#include "ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t SMALL = 1 << 20;
static const uintptr_t BASE_HINT = 0x100000000000; /* below where executables and libraries are mapped */
static const uintptr_t UNMAPPABLE = (uintptr_t)1 << 48; /* above all that x86-64 and aarch64 give out unasked */

struct allocation {
  uintptr_t start;
  size_t bytes;       /* asked for, or reserved */
  size_t charged;     /* physical bytes; 0 for a part of a shared page or a bare address range */
  int device;
  struct shared_page *page;
};

/* A 2 MiB page that small allocations share: given back when the last of them goes. */
struct shared_page {
  uintptr_t start;
  size_t next;
  int live;
};

struct books {
  uint64_t used;
  bool has_context;
  uint64_t peak_of_all; /* what all processes of the run used, at its highest; 0: this one was alone */
  struct address_space *addresses;
  struct shared_page *open_page;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT, marked = PTHREAD_ONCE_INIT;
static struct books books[64];
static uintptr_t range_start, range_end;
static size_t bytes_per_device;
static void *allocations; /* tsearch tree of ranges */

static size_t whole_pages(size_t bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

static struct allocation *holder(uintptr_t address) { return range_at(&allocations, address); }

/* 64 TiB where the machine allows it, less where it does not (39-bit address spaces). Under a limit on address space
 * (ulimit -v), numbers that no process can have as addresses, which fault just the same. */
static void reserve_addresses(void) {
  int count = num_devices() ? num_devices() : 1;
  for (size_t bytes = (size_t)1 << 46; bytes >= (size_t)1 << 36; bytes >>= 1) {
    void *p = mmap((void *)BASE_HINT, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    range_start = ((uintptr_t)p + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    range_end = (uintptr_t)p + bytes;
    break;
  }
  if (!range_start) {
    range_start = UNMAPPABLE;
    range_end = range_start + ((size_t)1 << 46);
  }
  bytes_per_device = (range_end - range_start) / (size_t)count / PAGE_BYTES * PAGE_BYTES;
  for (int i = 0; i < count; i++) {
    uintptr_t bottom = range_start + (size_t)i * bytes_per_device;
    books[i].addresses = new_address_space(bottom, bottom + bytes_per_device, device(i)->address_order);
    books[i].used = device(i)->context_bytes;
  }
}

static void ready(void) { pthread_once(&once, reserve_addresses); }

/* Tells `ullage run` that this process uses device memory, whatever becomes of its record. */
static void mark_use(void) {
  const char *directory = getenv("ULLAGE_RUN_DIR");
  char path[4096];
  if (!directory || snprintf(path, sizeof path, "%s/%d.begun", directory, (int)getpid()) >= (int)sizeof path) return;
  int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
}

bool is_device_address(const void *p) { return (uintptr_t)p >= range_start && (uintptr_t)p < range_end; }

int device_of_address(const void *p) {
  return is_device_address(p) ? (int)(((uintptr_t)p - range_start) / bytes_per_device) : -1;
}

/* One process of the run at a time: what one sees is free, no other takes. */
static void enter(void) {
  ready();
  pthread_mutex_lock(&lock);
  lock_devices_of_run(true);
}

static void leave(void) {
  lock_devices_of_run(false);
  pthread_mutex_unlock(&lock);
}

static uint64_t used_by_others(int index) { return used_by_processes(place_of(index), (unsigned)getpid()); }

static void change_used(int index, int64_t bytes) {
  books[index].has_context = true;
  books[index].used += (uint64_t)bytes;
  publish_used_bytes(index, books[index].used);
  uint64_t others = bytes < 0 ? 0 : used_by_others(index), all = books[index].used + others;
  if (others && all > books[index].peak_of_all) books[index].peak_of_all = all;
}

static bool is_free(int index, size_t bytes) {
  uint64_t usable = device(index)->usable_bytes, used = books[index].used + used_by_others(index);
  return bytes <= usable && used <= usable - bytes;
}

static bool has_room(int index, size_t bytes) {
  if (device(index)->unlimited || is_free(index, bytes)) return true;
  look_at_processes_again(); /* one may have ended just now */
  return is_free(index, bytes);
}

static struct allocation *remember(uintptr_t start, size_t bytes, size_t charged, int index) {
  struct allocation *a = calloc(1, sizeof *a);
  if (!a) return NULL;
  *a = (struct allocation){.start = start, .bytes = bytes, .charged = charged, .device = index};
  tsearch(a, &allocations, by_range);
  return a;
}

static void *allocate_pages(int index, size_t bytes) {
  size_t pages = whole_pages(bytes);
  if (pages < bytes || !has_room(index, pages)) return NULL;
  uintptr_t start = take_addresses(books[index].addresses, pages);
  if (!start || !remember(start, pages, pages, index)) return NULL;
  change_used(index, (int64_t)pages);
  return (void *)start;
}

static void *allocate_small(int index, size_t bytes) {
  struct books *b = &books[index];
  size_t rounded = (bytes + 511) / 512 * 512;
  if (!b->open_page || b->open_page->next + rounded > PAGE_BYTES) {
    if (!has_room(index, PAGE_BYTES)) return NULL;
    struct shared_page *page = calloc(1, sizeof *page);
    if (!page || !(page->start = take_addresses(b->addresses, PAGE_BYTES))) {
      free(page);
      return NULL;
    }
    change_used(index, PAGE_BYTES);
    b->open_page = page;
  }
  struct shared_page *page = b->open_page;
  struct allocation *a = remember(page->start + page->next, rounded, 0, index);
  if (!a) return NULL;
  a->page = page;
  page->next += rounded;
  page->live++;
  return (void *)a->start;
}

void *allocate(int index, size_t bytes) {
  pthread_once(&marked, mark_use);
  if (!bytes) bytes = 1;
  enter();
  void *p = bytes < SMALL ? allocate_small(index, bytes) : allocate_pages(index, bytes);
  leave();
  return p;
}

static void release(struct allocation *a) {
  struct books *b = &books[a->device];
  if (a->page) {
    if (--a->page->live == 0 && a->page != b->open_page) {
      change_used(a->device, -(int64_t)PAGE_BYTES);
      return_addresses(b->addresses, a->page->start, PAGE_BYTES);
      free(a->page);
    }
    return;
  }
  change_used(a->device, -(int64_t)a->charged);
  return_addresses(b->addresses, a->start, a->bytes);
}

bool deallocate(void *p) {
  enter();
  struct allocation *a = holder((uintptr_t)p);
  bool ours = a && a->start == (uintptr_t)p;
  if (ours) {
    tdelete(a, &allocations, by_range);
    release(a);
    free(a);
  }
  leave();
  return ours;
}

bool allocation_of(const void *p, uintptr_t *start, size_t *bytes) {
  pthread_mutex_lock(&lock);
  struct allocation *a = holder((uintptr_t)p);
  if (a) {
    *start = a->start;
    *bytes = a->bytes;
  }
  pthread_mutex_unlock(&lock);
  return a != NULL;
}

/* ---- Virtual memory: addresses and physical handles apart ------------------------------------------------------- */

void *reserve_address_range(int index, size_t bytes) {
  ready();
  pthread_mutex_lock(&lock);
  size_t pages = whole_pages(bytes);
  uintptr_t start = pages < bytes ? 0 : take_addresses(books[index].addresses, pages);
  if (start) remember(start, pages, 0, index);
  pthread_mutex_unlock(&lock);
  return (void *)start;
}

bool charge(int index, size_t bytes) {
  pthread_once(&marked, mark_use);
  enter();
  bool room = has_room(index, bytes);
  if (room) change_used(index, (int64_t)bytes);
  leave();
  return room;
}

void discharge(int index, size_t bytes) {
  enter();
  change_used(index, -(int64_t)bytes);
  leave();
}

uint64_t total_bytes(int index) { return device(index)->total_bytes; }

/* As if others held them. */
uint64_t withheld_bytes(int index) { return device(index)->total_bytes - device(index)->usable_bytes; }

uint64_t used_bytes(int index) {
  ready();
  pthread_mutex_lock(&lock);
  uint64_t used = books[index].used;
  pthread_mutex_unlock(&lock);
  return used;
}

bool has_context(int index) { return books[index].has_context; }

void need_context(void) {
  int index = current_device();
  if (num_devices() && !has_context(index)) open_context(index);
}

void open_context(int index) {
  enter();
  change_used(index, 0);
  leave();
}

uint64_t free_bytes(int index) {
  uint64_t used = used_bytes(index) + used_by_others(index), usable = device(index)->usable_bytes;
  return used < usable ? usable - used : 0;
}

/* For the recorder: what all processes of the run used of a device, at its highest; 0: no other used it. */
API uint64_t ullage_peak_of_all(int index) { return books[index % MAX_DEVICES].peak_of_all; }
