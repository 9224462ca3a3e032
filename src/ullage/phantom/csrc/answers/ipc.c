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

#include <search.h>
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
};

static void *all_opened; /* tsearch tree by what is opened */

static int by_handle(const void *a, const void *b) { return memcmp(a, b, sizeof(struct handle)); }

API int cudaIpcGetMemHandle(struct handle *handle, void *p) {
  uintptr_t start;
  size_t bytes;
  /* Memory behind reserved addresses has no handle of this kind. */
  if (!handle || is_mapped(p) || !allocation_of(p, &start, &bytes)) return fail(INVALID_VALUE);
  int file = share_values(start, bytes);
  if (file < 0) return fail(OUT_OF_MEMORY);
  *handle = (struct handle){.process = getpid(), .place = place_of(device_of_address(p)), .file = file, .start = start, .bytes = bytes};
  memcpy(handle->magic, MAGIC, sizeof MAGIC);
  return SUCCESS;
}
ALIAS(cuIpcGetMemHandle, cudaIpcGetMemHandle);

API int cudaIpcOpenMemHandle(void **p, struct handle handle, unsigned flags) {
  (void)flags;
  if (!p || memcmp(handle.magic, MAGIC, sizeof MAGIC)) return fail(INVALID_VALUE);
  struct opened **found = tfind(&handle, &all_opened, by_handle), *o = found ? *found : NULL;
  if (!o) {
    int index = device_at(handle.place);
    if (index < 0) return fail(INVALID_DEVICE);
    open_context(index);
    void *start = reserve_address_range(index, handle.bytes);
    if (!start || !open_values(handle.process, handle.file, (uintptr_t)start, handle.bytes)) {
      if (start) deallocate(start);
      return fail(INVALID_HANDLE); /* the owner has ended */
    }
    if (!(o = calloc(1, sizeof *o))) return fail(OUT_OF_MEMORY);
    *o = (struct opened){handle, start, 0};
    tsearch(o, &all_opened, by_handle);
  }
  o->count++;
  *p = o->p;
  return SUCCESS;
}
ALIAS(cuIpcOpenMemHandle, cudaIpcOpenMemHandle);
ALIAS(cuIpcOpenMemHandle_v2, cudaIpcOpenMemHandle);

static const void *closed;
static struct opened *to_close;

static void find_closed(const void *node, VISIT visit, int depth) {
  (void)depth;
  struct opened *o = *(struct opened *const *)node;
  if ((visit == postorder || visit == leaf) && o->p == closed) to_close = o;
}

API int cudaIpcCloseMemHandle(void *p) {
  closed = p;
  to_close = NULL;
  twalk(all_opened, find_closed);
  if (!to_close) return fail(INVALID_VALUE);
  if (--to_close->count) return SUCCESS;
  tdelete(to_close, &all_opened, by_handle);
  free(to_close);
  close_values((uintptr_t)p);
  deallocate(p);
  return SUCCESS;
}
ALIAS(cuIpcCloseMemHandle, cudaIpcCloseMemHandle);

API int cudaIpcGetEventHandle(struct handle *handle, const void *event) {
  if (!handle || !event) return fail(INVALID_VALUE);
  *handle = (struct handle){.process = getpid(), .start = (uintptr_t)event};
  memcpy(handle->magic, MAGIC, sizeof MAGIC);
  return SUCCESS;
}
ALIAS(cuIpcGetEventHandle, cudaIpcGetEventHandle);

API int cudaIpcOpenEventHandle(void **event, struct handle handle) {
  enum { DISABLE_TIMING = 2, INTERPROCESS = 4 };
  return memcmp(handle.magic, MAGIC, sizeof MAGIC) ? fail(INVALID_VALUE) : create_event(event, DISABLE_TIMING | INTERPROCESS);
}
ALIAS(cuIpcOpenEventHandle, cudaIpcOpenEventHandle);
