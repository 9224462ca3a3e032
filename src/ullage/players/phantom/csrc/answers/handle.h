/* A library's handle: functions that make and destroy it, and pairs that set and get a field of it. The file that includes
 * this has the MAGIC of its handles and the library's status codes. */
#ifndef ULLAGE_PHANTOM_HANDLE_H
#define ULLAGE_PHANTOM_HANDLE_H

#include "phantom.h"

#include <stdlib.h>

struct handle {
  uint32_t magic;
  void *stream;
  int math_mode, pointer_mode, atomics_mode, deterministic_mode, sm_count_target, block_dim, pinning_mode;
};

/* NULL: it is none of these. */
static inline struct handle *handle_of(void *h, uint32_t magic) {
  struct handle *handle = h;
  return handle && handle->magic == magic ? handle : NULL;
}

/* ... are the fields that do not begin as 0. */
#define HANDLE(create, destroy, ...)                                                 \
  API int create(void **h) {                                                         \
    struct handle *handle = h ? calloc(1, sizeof *handle) : NULL;                    \
    if (!handle) return h ? ALLOC_FAILED : INVALID_VALUE;                            \
    *handle = (struct handle){.magic = MAGIC, __VA_ARGS__};                           \
    return *h = handle, SUCCESS;                                                     \
  }                                                                                  \
  API int destroy(void *h) {                                                         \
    struct handle *handle = handle_of(h, MAGIC);                                     \
    if (!handle) return NOT_INITIALIZED;                                             \
    handle->magic = 0;                                                               \
    free(handle);                                                                    \
    return SUCCESS;                                                                  \
  }

#define FIELD_FOLLOWED_BY(follow, setter, getter, type, field)                       \
  API int setter(void *h, type value) {                                              \
    struct handle *handle = handle_of(h, MAGIC);                                          \
    if (handle) follow(handle->field = value);                                       \
    return handle ? SUCCESS : NOT_INITIALIZED;                                       \
  }                                                                                  \
  API int getter(void *h, type *value) {                                             \
    struct handle *handle = handle_of(h, MAGIC);                                          \
    return handle ? ANSWER(value, handle->field, INVALID_VALUE) : NOT_INITIALIZED;   \
  }
#define FIELD(setter, getter, type, field) FIELD_FOLLOWED_BY(, setter, getter, type, field)
#define STREAM(setter, getter) FIELD_FOLLOWED_BY(follow_stream, setter, getter, void *, stream)

#endif
