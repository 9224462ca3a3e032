/* Tells NVML programs outside what this process uses of the devices.
 *
 * ULLAGE_NVML names the directory. The file (published.h) is made when the process first uses a device, complete before
 * it has its name. A forked process is not the one that the file is of: it tells nothing before it allocates itself.
 */
#include "publish.h"
#include "published.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { UNTRIED, OFF, ON };

static int state;
static struct published *own;
static char own_path[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void withdraw(void) {
  if (own && own->pid == (uint32_t)getpid()) unlink(own_path);
}

static void begin_anew(void) {
  if (own) munmap(own, sizeof *own);
  own = NULL;
  state = UNTRIED;
  pthread_mutex_init(&lock, NULL);
}

static struct published *map_file(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return NULL;
  /* Room on the disk first: a page for which there is none would end the program when it is written. */
  void *mapped = posix_fallocate(file, 0, sizeof(struct published)) ? MAP_FAILED
      : mmap(NULL, sizeof(struct published), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? NULL : mapped;
}

static struct published *make_file(const char *directory) {
  char draft[sizeof own_path];
  unsigned pid = (unsigned)getpid();
  if (snprintf(own_path, sizeof own_path, "%s/%u%s", directory, pid, PUBLISHED_SUFFIX) >= (int)sizeof own_path) return NULL;
  if (snprintf(draft, sizeof draft, "%s/.%u.new", directory, pid) >= (int)sizeof draft) return NULL;
  struct published *made = map_file(draft);
  if (!made) return NULL;
  *made = (struct published){.version = PUBLISHED_VERSION, .pid = pid, .start_ticks = start_ticks_of(pid)};
  for (int i = 0; i < MAX_DEVICES; i++)
    made->devices[i].load_percent = made->devices[i].memory_load_percent = LOAD_UNKNOWN;
  if (!rename(draft, own_path)) return made;
  munmap(made, sizeof *made);
  return NULL;
}

static void begin(void) {
  static bool is_told;
  const char *directory = getenv("ULLAGE_NVML");
  pthread_mutex_lock(&lock);
  if (state == UNTRIED) {
    own = directory && *directory ? make_file(directory) : NULL;
    if (own && !is_told) {
      pthread_atfork(NULL, NULL, begin_anew);
      atexit(withdraw);
      is_told = true;
    }
    __atomic_store_n(&state, own ? ON : OFF, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
}

static struct published_device *published_device(int device) {
  int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  if (now == OFF) return NULL;
  if (now == UNTRIED) begin();
  int place = place_of(device);
  return own && place >= 0 && place < MAX_DEVICES ? &own->devices[place] : NULL;
}

void publish_used_bytes(int device, uint64_t bytes) {
  struct published_device *to = published_device(device);
  if (!to) return;
  __atomic_store_n(&to->used_bytes, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&to->is_used, 1, __ATOMIC_RELEASE);
}

/* For the virtual clock: what a device did in the last second, in percent. */
API void ullage_publish_load(int device, int percent, int memory_percent) {
  struct published_device *to = published_device(device);
  if (!to) return;
  __atomic_store_n(&to->memory_load_percent, memory_percent, __ATOMIC_RELAXED);
  __atomic_store_n(&to->load_percent, percent, __ATOMIC_RELEASE);
}
