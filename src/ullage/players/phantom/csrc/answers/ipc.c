/* CUDA IPC: memory and events of one process in another.
 *
 * Opened memory has addresses of its own and takes none of the device's bytes. What is known of its values both processes
 * know. Events of other processes have happened. A rank that is played alone finds its own handle in the place of the others':
 * a real process may not open it.
 *
 * Assumes: memory that its owner frees is free, though others may still map it; the driver keeps it until they close it.
 */
#include "cuda.h"
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct handle { /* of 64 bytes, passed by value */
  char magic[8];
  int32_t process, place, file, reserved;
  uint64_t start, bytes;
  char rest[24];
};
_Static_assert(sizeof(struct handle) == 64, "CUDA_IPC_HANDLE_SIZE");
static const char MAGIC[8] = "ullage";

struct opened {
  struct handle handle;
  void *p;
  int count; /* how often this process has opened it */
  struct opened *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *all_opened;

API int cudaIpcGetMemHandle(struct handle *handle, void *p) {
  uintptr_t start;
  size_t bytes;
  /* Memory behind reserved addresses has no handle of this kind. */
  if (!handle || is_mapped(p) || !allocation_of(p, &start, &bytes)) return fail(INVALID_VALUE);
  int file = share_values(start, bytes);
  if (file < 0) return fail(OUT_OF_MEMORY);
  *handle = (struct handle){"ullage", getpid(), place_of(device_of_address(p)), file, 0, start, bytes, {0}};
  return SUCCESS;
}
ALIAS(cuIpcGetMemHandle, cudaIpcGetMemHandle);

static struct opened *open_first(const struct handle *handle, int index) {
  struct opened *o = calloc(1, sizeof *o);
  open_context(index);
  void *start = o ? reserve_address_range(index, handle->bytes) : NULL;
  if (!start || !open_values(handle->process, handle->file, (uintptr_t)start, handle->bytes)) {
    if (start) deallocate(start);
    return free(o), NULL;
  }
  *o = (struct opened){*handle, start, 0, all_opened};
  return all_opened = o;
}

API int cudaIpcOpenMemHandle(void **p, struct handle handle, unsigned flags) {
  int index = device_at(handle.place);
  (void)flags;
  if (!p || memcmp(handle.magic, MAGIC, sizeof MAGIC)) return fail(INVALID_VALUE);
  if (index < 0) return fail(INVALID_DEVICE);
  pthread_mutex_lock(&lock);
  struct opened *o = all_opened;
  while (o && memcmp(&o->handle, &handle, sizeof handle)) o = o->next;
  if (!o) o = open_first(&handle, index);
  if (o) o->count++, *p = o->p;
  pthread_mutex_unlock(&lock);
  return o ? SUCCESS : fail(INVALID_HANDLE); /* the owner has ended */
}
ALIAS(cuIpcOpenMemHandle, cudaIpcOpenMemHandle);
ALIAS(cuIpcOpenMemHandle_v2, cudaIpcOpenMemHandle);

API int cudaIpcCloseMemHandle(void *p) {
  pthread_mutex_lock(&lock);
  struct opened **at = &all_opened;
  while (*at && (*at)->p != p) at = &(*at)->next;
  struct opened *o = *at;
  if (o && !--o->count) {
    *at = o->next;
    free(o);
    close_values((uintptr_t)p);
    deallocate(p);
  }
  pthread_mutex_unlock(&lock);
  return o ? SUCCESS : fail(INVALID_VALUE);
}
ALIAS(cuIpcCloseMemHandle, cudaIpcCloseMemHandle);

API int cudaIpcGetEventHandle(struct handle *handle, const void *event) {
  if (!handle || !event) return fail(INVALID_VALUE);
  *handle = (struct handle){.magic = "ullage", .process = getpid(), .start = (uintptr_t)event};
  return SUCCESS;
}
ALIAS(cuIpcGetEventHandle, cudaIpcGetEventHandle);

API int cudaIpcOpenEventHandle(void **event, struct handle handle) {
  enum { DISABLE_TIMING = 2, INTERPROCESS = 4 };
  return memcmp(handle.magic, MAGIC, sizeof MAGIC) ? fail(INVALID_VALUE) : create_event(event, DISABLE_TIMING | INTERPROCESS);
}
ALIAS(cuIpcOpenEventHandle, cudaIpcOpenEventHandle);
