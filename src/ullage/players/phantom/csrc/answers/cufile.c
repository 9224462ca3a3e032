/* cuFile (GPUDirect Storage): files are read and written, through host memory.
 *
 * A read of up to 1 MiB brings its values; of a larger one only the length counts, as no values of that size are kept.
 * A write puts into the file what a copy to the host would show: zeros where a kernel wrote.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { SUCCESS = 0, PLATFORM_NOT_SUPPORTED = 5007, INVALID_VALUE = 5022 };
enum { CHUNK_BYTES = 1 << 20, ALIGNMENT = 4096 }; /* the alignment that O_DIRECT wants */

/* CUfileError_t: cuFile's own status and the driver's. */
struct status {
  int error, driver;
};
struct file {
  int fd;
};
struct file_description {
  int type;
  union {
    int fd;
    void *pointer;
  } file;
  const void *operations;
};

static struct status answer(int error) { return (struct status){error, 0}; }

API struct status cuFileHandleRegister(void **handle, const struct file_description *description) {
  struct file *file = handle && description ? malloc(sizeof *file) : NULL;
  if (!file) return answer(INVALID_VALUE);
  file->fd = description->file.fd;
  *handle = file;
  return answer(SUCCESS);
}

API void cuFileHandleDeregister(void *handle) { free(handle); }

/* How much of the file is left from offset on, up to bytes; -1 with errno set. */
static ssize_t length_from(int fd, size_t bytes, off_t offset) {
  struct stat file;
  if (fstat(fd, &file)) return -1;
  if (!S_ISREG(file.st_mode) || offset >= file.st_size) return 0;
  off_t rest = file.st_size - offset;
  return (size_t)rest < bytes ? rest : (ssize_t)bytes;
}

API ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_offset, off_t device_offset) {
  const struct file *file = handle;
  char *target = (char *)base + device_offset;
  if (!file || !base) return -INVALID_VALUE;
  ssize_t length = length_from(file->fd, bytes, file_offset);
  if (length <= 0 || length > CHUNK_BYTES) {
    forget(target);
    return length;
  }
  void *chunk = aligned_alloc(ALIGNMENT, CHUNK_BYTES);
  if (!chunk) return -1;
  size_t whole = ((size_t)length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  ssize_t got = pread(file->fd, chunk, whole, file_offset);
  if (got > length) got = length;
  if (got > 0) copy_values(target, chunk, (size_t)got);
  free(chunk);
  return got;
}

API ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t file_offset, off_t device_offset) {
  const struct file *file = handle;
  if (!file || !base) return -INVALID_VALUE;
  void *chunk = aligned_alloc(ALIGNMENT, CHUNK_BYTES);
  if (!chunk) return -1;
  size_t done = 0;
  while (done < bytes) {
    size_t part = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
    copy_values(chunk, (const char *)base + device_offset + done, part);
    ssize_t put = pwrite(file->fd, chunk, part, file_offset + (off_t)done);
    if (put <= 0) break;
    done += (size_t)put;
  }
  free(chunk);
  return done || !bytes ? (ssize_t)done : -1;
}

API long cuFileUseCount(void) { return 0; }

API struct status cuFileGetVersion(int *version) {
  if (!version) return answer(INVALID_VALUE);
  *version = library_version("cufile", 1200); /* 1.20 */
  return answer(SUCCESS);
}

#define DO(name) API struct status name(void) { return answer(SUCCESS); }
#define DO_VOID(name) API void name(void) {}
#define REFUSE(name) API struct status name(void) { return answer(refuse(#name, PLATFORM_NOT_SUPPORTED)); }
/* Returns a number of bytes: negative, an error. */
#define REFUSE_BYTES(name) API ssize_t name(void) { return -refuse(#name, PLATFORM_NOT_SUPPORTED); }
#include "tables/cufile.inc"
