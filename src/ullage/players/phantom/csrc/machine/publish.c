/* Tells the other processes of the run, and NVML programs outside, what this process uses of the devices.
 *
 * ULLAGE_RUN_DIR names the directory of the run, ULLAGE_NVML that of a machine, if there is one. The files (published.h)
 * are made when the process first uses a device, complete before they have their names. A forked process is not the one
 * that they are of: it tells nothing before it allocates itself.
 */
#include "publish.h"
#include "published.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OF_RUN, OF_MACHINE, NUM_FILES };

static const char *const DIRECTORIES[NUM_FILES] = {"ULLAGE_RUN_DIR", "ULLAGE_NVML"};
static bool has_begun;
static struct published *files[NUM_FILES];
static char run_directory[4000], path_of_machine[4096];
static int locked = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void withdraw(void) {
  if (files[OF_MACHINE] && files[OF_MACHINE]->pid == (uint32_t)getpid()) unlink(path_of_machine);
}

static void begin_anew(void) {
  for (int i = 0; i < NUM_FILES; i++) {
    if (files[i]) munmap(files[i], sizeof *files[i]);
    files[i] = NULL;
  }
  has_begun = false;
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

static struct published *make_file(const char *directory, char *path) {
  char draft[sizeof path_of_machine];
  unsigned pid = (unsigned)getpid();
  if (snprintf(path, sizeof path_of_machine, "%s/%u%s", directory, pid, PUBLISHED_SUFFIX) >= (int)sizeof path_of_machine)
    return NULL;
  if (snprintf(draft, sizeof draft, "%s/.%u.new", directory, pid) >= (int)sizeof draft) return NULL;
  struct published *made = map_file(draft);
  if (!made) return NULL;
  *made = (struct published){.version = PUBLISHED_VERSION, .pid = pid, .start_ticks = start_ticks_of(pid)};
  for (int i = 0; i < MAX_DEVICES; i++)
    made->devices[i].load_percent = made->devices[i].memory_load_percent = LOAD_UNKNOWN;
  if (!rename(draft, path)) return made;
  munmap(made, sizeof *made);
  return NULL;
}

static void begin(void) {
  static bool is_told;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < NUM_FILES && !has_begun; i++) {
    char path[sizeof path_of_machine];
    const char *directory = getenv(DIRECTORIES[i]);
    files[i] = directory && *directory ? make_file(directory, path) : NULL;
    if (files[i] && i == OF_MACHINE) strcpy(path_of_machine, path);
    if (!files[i] || i == OF_MACHINE) continue;
    snprintf(run_directory, sizeof run_directory, "%s", directory);
  }
  if (!is_told) {
    pthread_atfork(NULL, NULL, begin_anew);
    atexit(withdraw);
    is_told = true;
  }
  __atomic_store_n(&has_begun, true, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
}

static struct published_device *published_device(int file, int device) {
  if (!__atomic_load_n(&has_begun, __ATOMIC_ACQUIRE)) begin();
  int place = place_of(device);
  return files[file] && place >= 0 && place < MAX_DEVICES ? &files[file]->devices[place] : NULL;
}

void publish_used_bytes(int device, uint64_t bytes) {
  for (int i = 0; i < NUM_FILES; i++) {
    struct published_device *to = published_device(i, device);
    if (!to) continue;
    __atomic_store_n(&to->used_bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&to->is_used, 1, __ATOMIC_RELEASE);
  }
}

/* The directory is open while it is locked alone: no file of ours stays open in the program. */
void lock_devices_of_run(bool is_locked) {
  if (!__atomic_load_n(&has_begun, __ATOMIC_ACQUIRE)) begin();
  if (is_locked) locked = files[OF_RUN] ? open(run_directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (locked >= 0 && is_locked) flock(locked, LOCK_EX);
  if (locked >= 0 && !is_locked) close(locked);
}

/* A program may have emptied its environment since it first used a device. */
bool find_in_directory(const char *name, char *path, size_t room) {
  const char *directory = *run_directory ? run_directory : getenv(DIRECTORIES[OF_RUN]);
  return directory && snprintf(path, room, "%s/%s", directory, name) < (int)room;
}

/* A copy of this process that no handler of forks has seen is a run of its own. */
API void ullage_begin_anew(void) { begin_anew(); }

/* For the virtual clock: what a device did in the last second, in percent. */
API void ullage_publish_load(int device, int percent, int memory_percent) {
  struct published_device *to = published_device(OF_MACHINE, device);
  if (!to) return;
  __atomic_store_n(&to->memory_load_percent, memory_percent, __ATOMIC_RELAXED);
  __atomic_store_n(&to->load_percent, percent, __ATOMIC_RELEASE);
}
