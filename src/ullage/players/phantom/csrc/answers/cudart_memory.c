/* The CUDA runtime's memory calls: device, pinned and managed memory, pools, copies, what an address is. */
#include "capture.h"
#include "cuda.h"
#include "levels.h"
#include "memory.h"
#include "transfers.h"
#include "work_log.h"

#include <string.h>

/* What is there is noted before it changes: of memory that PyTorch's allocator does not report, such as tensors without
 * its cache, nobody else says when it was most. */
static void (*on_request)(uint64_t bytes, int has_room);
static int had_no_room;

static int allocate_into(void **p, size_t bytes) {
  if (!p) return fail(INVALID_VALUE);
  if (!num_devices()) return fail(NO_DEVICE);
  note_outside(current_device());
  log_host_wait_for_device(CALL_ALLOCATE); /* as the driver does */
  *p = bytes ? allocate(current_device(), bytes) : NULL;
  if (on_request && bytes && (!*p || had_no_room)) had_no_room = 1, on_request(bytes, *p != NULL);
  return *p || !bytes ? SUCCESS : fail(OUT_OF_MEMORY);
}

/* Called for the first request that has no room, and for each after it. */
API void ullage_on_request(void (*callback)(uint64_t bytes, int has_room)) { on_request = callback; }

API int cudaMalloc(void **p, size_t bytes) {
  int status = refuse_unsafe_call();
  return status ? status : allocate_into(p, bytes);
}

API int cudaMallocManaged(void **p, size_t bytes, unsigned flags) { return (void)flags, cudaMalloc(p, bytes); }

static int free_at(void *p) {
  if (!num_devices()) return fail(NO_DEVICE);
  if (is_device_address(p)) note_outside(device_of_address(p));
  if (p) log_host_wait_for_device(CALL_FREE);
  if (p) close_values((uintptr_t)p);
  return !p || deallocate(p) ? SUCCESS : fail(INVALID_VALUE);
}

API int cudaFree(void *p) {
  int status = p ? refuse_unsafe_call() : SUCCESS;
  if (!p) need_context(); /* how programs ask for one */
  return status ? status : free_at(p);
}

API int cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate_into(p, *pitch * height);
}

API int cudaMemGetInfo(size_t *free_out, size_t *total_out) {
  if (!num_devices()) return fail(NO_DEVICE);
  open_context(current_device());
  *total_out = total_bytes(current_device());
  *free_out = free_bytes(current_device());
  return SUCCESS;
}

/* ---- The driver's own pools (backend:cudaMallocAsync) ------------------------------------------------------------- */

/* The real pool keeps freed memory until a synchronisation and cuts it up by rules of its own: here each allocation is
 * taken and given back by itself, which the report calls assumed. */
static struct pool {
  uint64_t used, peak, freed;
} pools[MAX_DEVICES];

enum { POOL_RESERVED_NOW = 5, POOL_RESERVED_PEAK = 6, POOL_USED_NOW = 7, POOL_USED_PEAK = 8 };

API int cudaMallocAsync(void **p, size_t bytes, void *stream) {
  (void)stream;
  int status = allocate_into(p, bytes);
  uintptr_t start;
  size_t taken;
  if (status || !*p || !allocation_of(*p, &start, &taken)) return status;
  struct pool *pool = &pools[device_of_address(*p) % MAX_DEVICES];
  raise_to(&pool->peak, __atomic_add_fetch(&pool->used, taken, __ATOMIC_RELAXED));
  return SUCCESS;
}
ALIAS(cudaMallocAsync_ptsz, cudaMallocAsync);

API int cudaMallocFromPoolAsync(void **p, size_t bytes, void *pool, void *stream) {
  return (void)pool, cudaMallocAsync(p, bytes, stream);
}
ALIAS(cudaMallocFromPoolAsync_ptsz, cudaMallocFromPoolAsync);

API int cudaFreeAsync(void *p, void *stream) {
  (void)stream;
  uintptr_t start;
  size_t taken;
  if (p && allocation_of(p, &start, &taken)) {
    struct pool *pool = &pools[device_of_address(p) % MAX_DEVICES];
    __atomic_sub_fetch(&pool->used, taken, __ATOMIC_RELAXED);
    uint64_t freed = __atomic_add_fetch(&pool->freed, taken, __ATOMIC_RELAXED);
    assume_bytes("cudaMallocAsync pool: memory kept after a free", 0, 0, freed < pool->peak ? freed : pool->peak);
  }
  return free_at(p);
}
ALIAS(cudaFreeAsync_ptsz, cudaFreeAsync);

API int cudaDeviceGetDefaultMemPool(void **pool, int index) { return *pool = (void *)(uintptr_t)(0x100 + index), SUCCESS; }
API int cudaDeviceGetMemPool(void **pool, int index) { return cudaDeviceGetDefaultMemPool(pool, index); }
API int cudaMemPoolCreate(void **pool, const void *properties) { return (void)properties, *pool = new_handle(), SUCCESS; }

/* A pool of the program's own is taken for the current device's. */
static struct pool *pool_of(void *pool) {
  uintptr_t index = (uintptr_t)pool - 0x100;
  return &pools[index < MAX_DEVICES ? index : (uintptr_t)current_device() % MAX_DEVICES];
}

API int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
  (void)value;
  if (attribute == POOL_USED_PEAK || attribute == POOL_RESERVED_PEAK) pool_of(pool)->peak = pool_of(pool)->used;
  return SUCCESS;
}

API int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
  switch (attribute) {
    case POOL_RESERVED_NOW: case POOL_USED_NOW: *(uint64_t *)value = pool_of(pool)->used; return SUCCESS;
    case POOL_RESERVED_PEAK: case POOL_USED_PEAK: *(uint64_t *)value = pool_of(pool)->peak; return SUCCESS;
    case 4: *(uint64_t *)value = 0; return SUCCESS; /* release threshold */
    case 1: case 2: case 3: *(int *)value = 1; return SUCCESS; /* reuse policies */
  }
  return fail(refuse("cudaMemPoolGetAttribute", NOT_SUPPORTED));
}

/* ---- Pinned host memory ------------------------------------------------------------------------------------------- */

API int cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  (void)flags;
  if (!num_devices()) return fail(NO_DEVICE);
  int status = refuse_unsafe_call();
  if (status) return status;
  need_context();
  *p = allocate_pinned(bytes);
  return *p ? SUCCESS : fail(OUT_OF_MEMORY);
}

API int cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }
API int cudaFreeHost(void *p) { return !p || deallocate_pinned(p) ? SUCCESS : fail(INVALID_VALUE); }
API int cudaHostGetFlags(unsigned *flags, void *p) { return (void)p, *flags = 0, SUCCESS; }
API int cudaHostUnregister(void *p) { return unregister_pinned(p) ? SUCCESS : fail(HOST_MEMORY_NOT_REGISTERED); }

API int cudaHostRegister(void *p, size_t bytes, unsigned flags) {
  return (void)flags, register_pinned(p, bytes) ? SUCCESS : fail(HOST_MEMORY_REGISTERED);
}

/* Unified addressing: the device sees pinned memory at the host's address. */
API int cudaHostGetDevicePointer(void **dev, void *host, unsigned flags) {
  return (void)flags, *dev = host, is_pinned_address(host) ? SUCCESS : fail(INVALID_VALUE);
}

struct pointer_attributes {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};

API int cudaPointerGetAttributes(struct pointer_attributes *a, const void *p) {
  enum { UNREGISTERED = 0, HOST = 1, DEVICE = 2 };
  bool on_device = is_device_address(p), pinned = !on_device && is_pinned_address(p);
  /* The reserved part came with CUDA 13: only what both versions have is written. */
  memset(a, 0, offsetof(struct pointer_attributes, reserved));
  a->type = on_device ? DEVICE : pinned ? HOST : UNREGISTERED;
  a->device = on_device ? device_of_address(p) : pinned ? 0 : -2;
  a->device_pointer = on_device || pinned ? (void *)p : NULL;
  a->host_pointer = on_device ? NULL : (void *)p;
  return SUCCESS;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------- */

static int copy(void *dst, const void *src, size_t bytes, const void *stream, bool is_waited_for) {
  int status = refuse_work(stream);
  if (status) return status;
  note_copy(dst, src, bytes, stream, is_waited_for);
  copy_values(dst, src, bytes);
  note_copy_work(dst, src, bytes, stream, is_waited_for);
  return SUCCESS;
}

API int cudaMemcpy(void *dst, const void *src, size_t bytes, int kind) { return (void)kind, copy(dst, src, bytes, NULL, true); }
ALIAS(cudaMemcpy_ptds, cudaMemcpy);
API int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *stream) { return (void)kind, copy(dst, src, bytes, stream, false); }
ALIAS(cudaMemcpyAsync_ptsz, cudaMemcpyAsync);

API int cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t bytes, void *stream) {
  (void)to, (void)from;
  note_work(stream);
  log_copy(dst, src, bytes, stream);
  return copy_values(dst, src, bytes), SUCCESS;
}

API int cudaMemcpyPeer(void *dst, int to, const void *src, int from, size_t bytes) {
  return cudaMemcpyPeerAsync(dst, to, src, from, bytes, NULL);
}

API int cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                          int kind, void *stream) {
  (void)kind;
  note_copy(dst, src, width * height, stream, false);
  for (size_t row = 0; row < height; row++)
    copy_values((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch, width);
  note_copy_work(dst, src, width * height, stream, false);
  return SUCCESS;
}
ALIAS(cudaMemcpy2DAsync_ptsz, cudaMemcpy2DAsync);

API int cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, int kind) {
  return cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, kind, NULL);
}

/* CUDA 12 has a place for the number of a copy that failed, before the stream. */
API int cudaMemcpyBatchAsync(void *const *dst, const void *const *src, const size_t *bytes, size_t count, const void *attributes,
                             const size_t *places, size_t num_attributes, void *failed_or_stream, void *stream) {
  (void)attributes, (void)places, (void)num_attributes;
  const void *on = library_version("cudart", 13020) < 13000 ? stream : failed_or_stream;
  note_work(on);
  for (size_t i = 0; i < count; i++) log_copy(dst[i], src[i], bytes[i], on), copy_values(dst[i], src[i], bytes[i]);
  return SUCCESS;
}

API int cudaMemset(void *p, int value, size_t bytes) { return note_fill_work(bytes, NULL), fill_values(p, value, bytes), SUCCESS; }
ALIAS(cudaMemset_ptds, cudaMemset);
API int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) { return note_fill_work(bytes, stream), fill_values(p, value, bytes), SUCCESS; }
ALIAS(cudaMemsetAsync_ptsz, cudaMemsetAsync);

API int cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, void *stream) {
  note_fill_work(width * height, stream);
  for (size_t row = 0; row < height; row++) fill_values((char *)p + row * pitch, value, width);
  return SUCCESS;
}

/* ---- Variables of kernels: part of the context's modules, so they take addresses but no bytes --------------------- */

enum { MAX_SYMBOLS = 1024, SYMBOL_BYTES = PAGE_BYTES };
static struct symbol { const void *host; void *dev; } symbols[MAX_SYMBOLS];
static int num_symbols;

API int cudaGetSymbolAddress(void **p, const void *host) {
  for (int i = 0; i < num_symbols; i++)
    if (symbols[i].host == host) return *p = symbols[i].dev, SUCCESS;
  *p = reserve_address_range(current_device(), SYMBOL_BYTES);
  if (num_symbols < MAX_SYMBOLS) symbols[num_symbols++] = (struct symbol){host, *p};
  return *p ? SUCCESS : fail(OUT_OF_MEMORY);
}

API int cudaMemcpyToSymbol(const void *symbol, const void *src, size_t bytes, size_t offset, int kind) {
  void *p;
  (void)kind;
  int status = cudaGetSymbolAddress(&p, symbol);
  if (!status) copy_values((char *)p + offset, src, bytes);
  return status;
}

API int cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t bytes, size_t offset, int kind) {
  void *p;
  (void)kind;
  int status = cudaGetSymbolAddress(&p, symbol);
  if (!status) copy_values(dst, (char *)p + offset, bytes);
  return status;
}

API void __cudaRegisterVar(void) {}
API void __cudaRegisterManagedVar(void) {}
API void __cudaRegisterHostVar(void) {}
