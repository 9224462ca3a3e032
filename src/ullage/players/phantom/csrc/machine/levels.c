/* The event sequence's position, and the levels of each device.
 *
 * They stand in a file that the recorder names, so that others can read them while the program runs, and after it was
 * killed.
 */
#include "levels.h"
#include "phantom.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

/* players/inside/process/levels.py reads this. */
struct levels {
  uint64_t position;
  struct {
    uint64_t allocated, reserved, peak_allocated, peak_reserved, peak_non_torch, num_ooms;
  } devices[MAX_DEVICES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct levels own_levels, *levels = &own_levels;

static void note_non_torch(int index) {
  uint64_t used = used_bytes(index);
  uint64_t torch = device(index)->context_bytes + levels->devices[index % MAX_DEVICES].reserved;
  if (used > torch) raise_to(&levels->devices[index % MAX_DEVICES].peak_non_torch, used - torch);
}

void note_levels(int device_index, uint64_t allocated, uint64_t reserved, bool is_out_of_memory) {
  size_t index = (size_t)device_index % MAX_DEVICES;
  pthread_mutex_lock(&lock);
  levels->devices[index].allocated = allocated;
  levels->devices[index].reserved = reserved;
  raise_to(&levels->devices[index].peak_allocated, allocated);
  raise_to(&levels->devices[index].peak_reserved, reserved);
  levels->devices[index].num_ooms += is_out_of_memory;
  note_non_torch((int)index);
  pthread_mutex_unlock(&lock);
}

void note_outside(int index) {
  pthread_mutex_lock(&lock);
  note_non_torch(index);
  pthread_mutex_unlock(&lock);
}

uint64_t cached_bytes(int index) {
  return levels->devices[index % MAX_DEVICES].reserved - levels->devices[index % MAX_DEVICES].allocated;
}

uint64_t next_position(void) { return __atomic_fetch_add(&levels->position, 1, __ATOMIC_RELAXED); }

uint64_t event_position(void) { return __atomic_load_n(&levels->position, __ATOMIC_RELAXED); }

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

API uint64_t ullage_non_torch_peak(int index) {
  note_outside(index);
  return levels->devices[index % MAX_DEVICES].peak_non_torch;
}

/* A forked process has levels of its own. */
static void keep_to_itself(void) {
  own_levels = *levels;
  levels = &own_levels;
}

/* From now on the levels are in this file, after its first `offset` bytes; false: it could not be had. */
API int ullage_share_levels(const char *path, uint64_t offset) {
  static bool is_told;
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  size_t size = (size_t)offset + sizeof *levels;
  /* Room on the disk first: a page for which there is none would end the program when it is written. */
  void *mapped = posix_fallocate(file, 0, (off_t)size) ? MAP_FAILED
                                                       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return false;
  if (!is_told) pthread_atfork(NULL, NULL, keep_to_itself);
  is_told = true;
  pthread_mutex_lock(&lock);
  struct levels *shared = (struct levels *)((char *)mapped + offset);
  *shared = *levels;
  levels = shared;
  pthread_mutex_unlock(&lock);
  return true;
}
