/* The CUDA driver's memory calls: plain allocations, and virtual memory (addresses and physical handles apart), on which
 * PyTorch's expandable segments stand. */
#include "cuda.h"
#include "levels.h"
#include "memory.h"
#include "transfers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

API int cuMemAlloc_v2(void **p, size_t bytes) {
  note_outside(current_device());
  return (*p = allocate(current_device(), bytes)) ? SUCCESS : OUT_OF_MEMORY;
}
ALIAS(cuMemAlloc, cuMemAlloc_v2);
API int cuMemAllocManaged(void **p, size_t bytes, unsigned flags) { return (void)flags, cuMemAlloc_v2(p, bytes); }

API int cuMemFree_v2(void *p) {
  if (is_device_address(p)) note_outside(device_of_address(p));
  close_values((uintptr_t)p);
  return deallocate(p) ? SUCCESS : INVALID_VALUE;
}
ALIAS(cuMemFree, cuMemFree_v2);
API int cuMemHostAlloc(void **p, size_t bytes, unsigned flags) { return (void)flags, (*p = allocate_pinned(bytes)) ? SUCCESS : OUT_OF_MEMORY; }
API int cuMemAllocHost_v2(void **p, size_t bytes) { return cuMemHostAlloc(p, bytes, 0); }
API int cuMemFreeHost(void *p) { return deallocate_pinned(p) ? SUCCESS : INVALID_VALUE; }
API int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) { return (void)flags, register_pinned(p, bytes) ? SUCCESS : HOST_MEMORY_REGISTERED; }
API int cuMemHostUnregister(void *p) { return unregister_pinned(p) ? SUCCESS : HOST_MEMORY_NOT_REGISTERED; }
API int cuMemHostGetDevicePointer_v2(void **dev, void *host, unsigned flags) { return (void)flags, *dev = host, SUCCESS; }

API int cuMemGetInfo_v2(size_t *free_out, size_t *total_out) {
  open_context(current_device());
  *free_out = free_bytes(current_device());
  *total_out = total_bytes(current_device());
  return SUCCESS;
}
ALIAS(cuMemGetInfo, cuMemGetInfo_v2);

API int cuMemGetAddressRange_v2(uintptr_t *start, size_t *bytes, const void *p) {
  uintptr_t first;
  size_t size;
  if (!allocation_of(p, &first, &size)) return NOT_FOUND;
  if (start) *start = first;
  if (bytes) *bytes = size;
  return SUCCESS;
}

/* ---- Virtual memory ----------------------------------------------------------------------------------------------- */

/* Physical memory: given back when its handle is released and nothing maps it any more. */
struct physical {
  size_t bytes;
  int device, references;
  int file; /* of the process that made it, which counts it, with the values; -1: made here */
  uintptr_t address;
};

struct allocation_properties { /* CUmemAllocationProp, as far as it is read */
  int type, handle_types;
  struct { int type, id; } location;
};

struct mapping {
  uintptr_t address;
  struct physical *physical;
  struct mapping *next;
};

enum { BUCKETS = 4096 };
static struct mapping *mappings[BUCKETS];
static int lock;

static void acquire(void) {
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
  }
}

static void unlock(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static size_t bucket_of(uintptr_t address) { return address / PAGE_BYTES % BUCKETS; }

static void drop_reference(struct physical *physical) {
  if (--physical->references) return;
  if (physical->file < 0) discharge(physical->device, physical->bytes);
  else close(physical->file);
  free(physical);
}

API int cuMemGetAllocationGranularity(size_t *bytes, const struct allocation_properties *p, int option) {
  (void)p, (void)option;
  return *bytes = PAGE_BYTES, SUCCESS;
}

API int cuMemAddressReserve(void **p, size_t bytes, size_t alignment, void *hint, unsigned long long flags) {
  (void)alignment, (void)hint, (void)flags;
  return (*p = reserve_address_range(current_device(), bytes)) ? SUCCESS : OUT_OF_MEMORY;
}

API int cuMemAddressFree(void *p, size_t bytes) { return (void)bytes, deallocate(p) ? SUCCESS : INVALID_VALUE; }

API int cuMemCreate(struct physical **handle, size_t bytes, const struct allocation_properties *p, unsigned long long flags) {
  enum { ON_DEVICE = 1, FABRIC = 8 };
  (void)flags;
  if (p && p->handle_types & FABRIC) return NOT_SUPPORTED; /* without IMEX: PyTorch then asks for file descriptors */
  int index = p && p->location.type == ON_DEVICE ? p->location.id : current_device();
  if (index < 0 || index >= num_devices()) return INVALID_DEVICE;
  if (bytes % PAGE_BYTES) return INVALID_VALUE;
  if (!charge(index, bytes)) return OUT_OF_MEMORY;
  struct physical *physical = malloc(sizeof *physical);
  if (!physical) return OUT_OF_MEMORY;
  *physical = (struct physical){bytes, index, 1, -1, 0};
  *handle = physical;
  return SUCCESS;
}

API int cuMemRelease(struct physical *handle) {
  acquire();
  drop_reference(handle);
  unlock();
  return SUCCESS;
}

API int cuMemMap(uintptr_t address, size_t bytes, size_t offset, struct physical *handle, unsigned long long flags) {
  (void)bytes, (void)offset, (void)flags;
  struct mapping *m = malloc(sizeof *m);
  if (!m) return OUT_OF_MEMORY;
  acquire();
  handle->references++;
  handle->address = address;
  *m = (struct mapping){address, handle, mappings[bucket_of(address)]};
  mappings[bucket_of(address)] = m;
  unlock();
  if (handle->file >= 0) open_values(getpid(), handle->file, address, handle->bytes);
  return SUCCESS;
}

/* Unmaps what was mapped at an address in the range: whole mappings, as the driver demands. */
API int cuMemUnmap(uintptr_t address, size_t bytes) {
  acquire();
  for (uintptr_t at = address; at < address + bytes; at += PAGE_BYTES)
    for (struct mapping **m = &mappings[bucket_of(at)]; *m;) {
      struct mapping *found = *m;
      if (found->address != at) {
        m = &found->next;
        continue;
      }
      *m = found->next;
      close_values(at); /* the address may stand for other memory next */
      drop_reference(found->physical);
      free(found);
    }
  unlock();
  return SUCCESS;
}

bool is_mapped(const void *p) {
  uintptr_t page = (uintptr_t)p / PAGE_BYTES * PAGE_BYTES;
  acquire();
  const struct mapping *m = mappings[bucket_of(page)];
  while (m && m->address != page) m = m->next;
  unlock();
  return m;
}

/* Physical memory in another process, by the file of its values, which ends with what it is. */
API int cuMemExportToShareableHandle(int *file, const struct physical *handle, int type, unsigned long long flags) {
  enum { FILE_DESCRIPTOR = 1 };
  struct physical told = {handle->bytes, place_of(handle->device), 1, 0, 0};
  (void)flags;
  if (type != FILE_DESCRIPTOR) return NOT_SUPPORTED;
  *file = dup(share_values(handle->address, handle->bytes));
  return pwrite(*file, &told, sizeof told, (off_t)(2 * handle->bytes)) == sizeof told ? SUCCESS : OUT_OF_MEMORY;
}

API int cuMemImportFromShareableHandle(struct physical **handle, void *file, int type) {
  struct physical *p = malloc(sizeof *p);
  int number = dup((int)(intptr_t)file);
  (void)type;
  off_t end = lseek(number, 0, SEEK_END) - (off_t)sizeof *p;
  if (!p || pread(number, p, sizeof *p, end) != sizeof *p || device_at(p->device) < 0) return free(p), close(number), INVALID_VALUE;
  p->device = device_at(p->device);
  p->file = number;
  open_context(p->device);
  *handle = p;
  return SUCCESS;
}

API int cuMemSetAccess(uintptr_t address, size_t bytes, const void *access, size_t count) {
  (void)address, (void)bytes, (void)access, (void)count;
  return SUCCESS;
}

/* ---- What an address is ------------------------------------------------------------------------------------------- */

API int cuPointerGetAttribute(void *value, int attribute, const void *p) {
  enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, IS_MANAGED = 8, DEVICE_ORDINAL = 9, START = 11, BYTES = 12 };
  bool on_device = is_device_address(p);
  uintptr_t start = 0;
  size_t bytes = 0;
  if (!on_device && !is_pinned_address(p)) return INVALID_VALUE;
  if (on_device) allocation_of(p, &start, &bytes);
  switch (attribute) {
    case CONTEXT: *(uintptr_t *)value = 0x10000 + 16 * (uintptr_t)(on_device ? device_of_address(p) : 0); return SUCCESS;
    case MEMORY_TYPE: *(unsigned *)value = on_device ? 2 : 1; return SUCCESS;
    case DEVICE_POINTER: *(const void **)value = p; return SUCCESS;
    case HOST_POINTER: *(const void **)value = on_device ? NULL : p; return SUCCESS;
    case IS_MANAGED: *(unsigned *)value = 0; return SUCCESS;
    case DEVICE_ORDINAL: *(int *)value = on_device ? device_of_address(p) : 0; return SUCCESS;
    case START: *(uintptr_t *)value = start; return SUCCESS;
    case BYTES: *(size_t *)value = bytes; return SUCCESS;
  }
  return refuse("cuPointerGetAttribute", NOT_SUPPORTED);
}

API int cuPointerSetAttribute(const void *value, int attribute, const void *p) { return (void)value, (void)attribute, (void)p, SUCCESS; }

/* ---- Copies and fills --------------------------------------------------------------------------------------------- */

static int copy(void *dst, const void *src, size_t bytes, const void *stream, bool is_waited_for) {
  note_copy(dst, src, bytes, stream, is_waited_for);
  copy_values(dst, src, bytes);
  note_copy_work(dst, src, bytes, stream, is_waited_for);
  return SUCCESS;
}

API int cuMemcpy(void *dst, const void *src, size_t bytes) { return copy(dst, src, bytes, NULL, true); }
ALIAS(cuMemcpyHtoD_v2, cuMemcpy);
ALIAS(cuMemcpyDtoH_v2, cuMemcpy);
ALIAS(cuMemcpyDtoD_v2, cuMemcpy);
API int cuMemcpyAsync(void *dst, const void *src, size_t bytes, void *stream) { return copy(dst, src, bytes, stream, false); }
ALIAS(cuMemcpyHtoDAsync_v2, cuMemcpyAsync);
ALIAS(cuMemcpyDtoHAsync_v2, cuMemcpyAsync);
ALIAS(cuMemcpyDtoDAsync_v2, cuMemcpyAsync);
API int cuMemsetD8_v2(void *p, unsigned char value, size_t count) { return note_fill_work(count, NULL), fill_values(p, value, count), SUCCESS; }
API int cuMemsetD8Async(void *p, unsigned char value, size_t count, void *s) { return note_fill_work(count, s), fill_values(p, value, count), SUCCESS; }

/* Wider fills keep their value only when all bytes are alike. */
static int fill_words(void *p, unsigned value, unsigned width, size_t count, const void *stream) {
  note_fill_work(count * width, stream);
  bool alike = (value & 0xff) * (width == 4 ? 0x01010101u : 0x0101u) == value;
  if (alike) fill_values(p, (int)(value & 0xff), count * width);
  else forget(p);
  return SUCCESS;
}

API int cuMemsetD32_v2(void *p, unsigned value, size_t count) { return fill_words(p, value, 4, count, NULL); }
API int cuMemsetD32Async(void *p, unsigned value, size_t count, void *s) { return fill_words(p, value, 4, count, s); }
API int cuMemsetD16_v2(void *p, unsigned short value, size_t count) { return fill_words(p, value, 2, count, NULL); }
API int cuMemsetD16Async(void *p, unsigned short value, size_t count, void *s) { return fill_words(p, value, 2, count, s); }
