/* Values of memory that several processes map (CUDA IPC): one file without a name holds them, and all processes map it. The
 * one that has allocated the memory makes the file; the others find it by that process's number and the file's. */
#include "shared_values.h"
#include "phantom.h"

#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *ranges; /* tsearch tree */

static bool add(uintptr_t start, size_t bytes, int file) {
  struct shared_values *s = calloc(1, sizeof *s);
  void *p = s && file >= 0 ? mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0) : MAP_FAILED;
  if (p == MAP_FAILED) {
    free(s);
    if (file >= 0) close(file);
    return false;
  }
  *s = (struct shared_values){{start, bytes}, p, (unsigned char *)p + bytes, file};
  tsearch(s, &ranges, by_range);
  return true;
}

int shared_file(uintptr_t start, size_t bytes) {
  struct shared_values *s = range_at(&ranges, start);
  if (s) return s->file;
  int file = (int)syscall(SYS_memfd_create, "ullage", 1u); /* closed on exec; glibc has a function from 2.27 on */
  if (file >= 0 && ftruncate(file, (off_t)(2 * bytes))) close(file), file = -1;
  return add(start, bytes, file) ? file : -1;
}

bool map_shared_file(int process, int number, uintptr_t start, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
  return add(start, bytes, open(path, O_RDWR | O_CLOEXEC));
}

/* The mapping stays: a block may still point into it. */
void stop_sharing(uintptr_t start) {
  struct shared_values *s = range_at(&ranges, start);
  if (!s) return;
  tdelete(s, &ranges, by_range);
  close(s->file);
  free(s);
}

struct shared_values *shared_values_of(uintptr_t start, size_t bytes) {
  struct shared_values *s = ranges ? range_at(&ranges, start) : NULL;
  return s && start + bytes <= s->range.start + s->range.bytes ? s : NULL;
}

/* A hole in the file reads as zeros: unknown. */
void forget_shared_values(const struct shared_values *s, uintptr_t start, size_t bytes) {
  off_t offset = (off_t)(s->range.bytes + start - s->range.start);
  (void)!fallocate(s->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)bytes);
}
