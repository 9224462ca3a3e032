/* A library's handle: pairs of functions that set and get a field of it. The file that includes this has a struct handle,
 * open_handle(), which answers with NULL for what is no handle, and the library's status codes. */
#ifndef ULLAGE_PHANTOM_HANDLE_H
#define ULLAGE_PHANTOM_HANDLE_H

#include "phantom.h"

#define FIELD_FOLLOWED_BY(follow, setter, getter, type, field)                       \
  API int setter(void *h, type value) {                                              \
    struct handle *handle = open_handle(h);                                          \
    if (handle) follow(handle->field = value);                                       \
    return handle ? SUCCESS : NOT_INITIALIZED;                                       \
  }                                                                                  \
  API int getter(void *h, type *value) {                                             \
    struct handle *handle = open_handle(h);                                          \
    return handle ? ANSWER(value, handle->field, INVALID_VALUE) : NOT_INITIALIZED;   \
  }
#define FIELD(setter, getter, type, field) FIELD_FOLLOWED_BY(, setter, getter, type, field)
#define STREAM(setter, getter) FIELD_FOLLOWED_BY(follow_stream, setter, getter, void *, stream)

#endif
