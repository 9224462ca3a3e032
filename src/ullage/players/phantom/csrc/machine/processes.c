/* The processes that use the devices of a run, or of a machine, from the files that they keep (published.h).
 *
 * A file is mapped once, so that what it says is always of this moment. Whether there are other files is looked at when the
 * directory has changed, and whether a process still runs at most every LIVENESS_NS.
 */
#include "published.h"
#include "room.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct process {
  struct published *file;
  char name[32];
  ino_t inode;
  int64_t checked_ns;
  bool is_running, is_listed;
};

/* The kernel's clock of files moves in ticks: a directory that has just changed may have changed again. */
static const int64_t LIVENESS_NS = 20 * 1000 * 1000, TICK_NS = 50 * 1000 * 1000;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct process *processes;
static size_t num_processes, room_for;
static struct timespec changed;

static int64_t nanoseconds(struct timespec time) { return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec; }

static int64_t now_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return nanoseconds(time);
}

/* A file that is too short, or of another version of ullage, says nothing. */
static struct published *map_file(int directory, const char *name, ino_t *inode) {
  struct stat status;
  int file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return NULL;
  bool is_whole = !fstat(file, &status) && status.st_size >= (off_t)sizeof(struct published);
  void *mapped = is_whole ? mmap(NULL, sizeof(struct published), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) return NULL;
  *inode = status.st_ino;
  if (((struct published *)mapped)->version == PUBLISHED_VERSION) return mapped;
  munmap(mapped, sizeof(struct published));
  return NULL;
}

static void list_file(int directory, const struct dirent *entry) {
  const char *suffix = strrchr(entry->d_name, '.');
  if (!suffix || strcmp(suffix, PUBLISHED_SUFFIX) || strlen(entry->d_name) >= sizeof processes->name) return;
  for (size_t i = 0; i < num_processes; i++)
    if (!strcmp(processes[i].name, entry->d_name) && processes[i].inode == entry->d_ino) {
      processes[i].is_listed = true;
      return;
    }
  if (!has_room_for_row(&processes, &room_for, num_processes, sizeof *processes, SIZE_MAX)) return;
  struct process added = {.is_listed = true};
  added.file = map_file(directory, entry->d_name, &added.inode);
  strcpy(added.name, entry->d_name);
  if (added.file) processes[num_processes++] = added;
}

static int by_number(const void *a, const void *b) {
  uint32_t x = ((const struct process *)a)->file->pid, y = ((const struct process *)b)->file->pid;
  return x < y ? -1 : x > y;
}

static void list_files(DIR *directory) {
  for (size_t i = 0; i < num_processes; i++) processes[i].is_listed = false;
  for (struct dirent *entry; (entry = readdir(directory));) list_file(dirfd(directory), entry);
  size_t rest = 0;
  for (size_t i = 0; i < num_processes; i++)
    if (processes[i].is_listed) processes[rest++] = processes[i];
    else munmap(processes[i].file, sizeof(struct published));
  num_processes = rest;
  if (rest) qsort(processes, rest, sizeof *processes, by_number);
}

static void refresh(void) {
  char path[4096];
  struct stat status;
  if (!find_in_directory(".", path, sizeof path) || stat(path, &status)) {
    num_processes = 0;
    return;
  }
  bool is_fresh = now_ns(CLOCK_REALTIME) - nanoseconds(status.st_mtim) < TICK_NS;
  if (!is_fresh && nanoseconds(changed) == nanoseconds(status.st_mtim)) return;
  DIR *directory = opendir(path);
  if (!directory) return;
  list_files(directory);
  closedir(directory);
  changed = is_fresh ? (struct timespec){0} : status.st_mtim;
}

static bool is_running(struct process *process) {
  int64_t now = now_ns(CLOCK_MONOTONIC);
  if (!process->checked_ns || now - process->checked_ns > LIVENESS_NS) {
    process->is_running = start_ticks_of(process->file->pid) == process->file->start_ticks;
    process->checked_ns = now;
  }
  return process->is_running;
}

/* What the i-th process has of a device; NULL: it does not use it, or is gone. */
static const struct published_device *use_of(size_t i, int place) {
  const struct published_device *use = &processes[i].file->devices[place];
  return __atomic_load_n(&use->is_used, __ATOMIC_ACQUIRE) && is_running(&processes[i]) ? use : NULL;
}

static uint64_t bytes_of(const struct published_device *use) { return __atomic_load_n(&use->used_bytes, __ATOMIC_RELAXED); }

/* ---- published.h -------------------------------------------------------------------------------------------------- */

uint64_t used_by_processes(int place, unsigned but) {
  uint64_t used = 0;
  pthread_mutex_lock(&lock);
  refresh();
  for (size_t i = 0; i < num_processes; i++) {
    const struct published_device *use = processes[i].file->pid != but ? use_of(i, place) : NULL;
    if (use) used += bytes_of(use);
  }
  pthread_mutex_unlock(&lock);
  return used;
}

size_t list_processes_on(int place, struct process_use *uses, size_t room) {
  size_t length = 0;
  pthread_mutex_lock(&lock);
  refresh();
  for (size_t i = 0; i < num_processes; i++) {
    const struct published_device *use = use_of(i, place);
    if (use && length < room) uses[length] = (struct process_use){processes[i].file->pid, bytes_of(use)};
    length += use != NULL;
  }
  pthread_mutex_unlock(&lock);
  return length;
}

void look_at_processes_again(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_processes; i++) processes[i].checked_ns = 0;
  pthread_mutex_unlock(&lock);
}

static int at_most_100(int percent) { return percent < 100 ? percent : 100; }

/* A device that nobody uses is known to rest. Of processes that take turns each adds its share. */
bool load_of(int place, int *percent, int *memory_percent) {
  bool is_known = true;
  *percent = *memory_percent = 0;
  pthread_mutex_lock(&lock);
  refresh();
  for (size_t i = 0; i < num_processes && is_known; i++) {
    const struct published_device *use = use_of(i, place);
    int load = use ? __atomic_load_n(&use->load_percent, __ATOMIC_ACQUIRE) : 0;
    int memory = use ? __atomic_load_n(&use->memory_load_percent, __ATOMIC_RELAXED) : 0;
    is_known = load >= 0 && memory >= 0;
    *percent = at_most_100(*percent + load);
    *memory_percent = at_most_100(*memory_percent + memory);
  }
  pthread_mutex_unlock(&lock);
  return is_known;
}
