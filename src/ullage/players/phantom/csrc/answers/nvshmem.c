/* NVSHMEM: present and not initialised. Initialising fails, so that PyTorch's symmetric memory says that it is not there;
 * the rest exists to be linked against. */
#include "phantom.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 0, NOT_SUPPORTED = 3, OPENSHMEM_MAJOR = 1, OPENSHMEM_MINOR = 3 };

/* Variables of the library that programs link against. */
API int nvshmem_selected_device_transport, nvshmem_debug_level, nvshmem_options, nvshmem_nvtx_options;

API int nvshmemid_init_status(void) { return NOT_INITIALIZED; }
API int nvshmemx_init_status(void) { return NOT_INITIALIZED; }

API void nvshmem_info_get_version(int *major, int *minor) {
  if (major) *major = OPENSHMEM_MAJOR; /* of the interface; NVSHMEM itself has its own count */
  if (minor) *minor = OPENSHMEM_MINOR;
}

API void *nvshmem_malloc(size_t bytes) {
  (void)bytes;
  refuse("nvshmem_malloc", NOT_SUPPORTED);
  return NULL;
}

API void nvshmem_free(void *p) { (void)p; }

/* Returns a pointer, or nothing at all. */
#define NO_POINTER(name) API void *name(void) { return refuse(#name, NOT_SUPPORTED), NULL; }
#define DO(name) API int name(void) { return SUCCESS; }
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
/* A value from another device: zero of its type. */
#define REFUSE_FLOAT(name) API float name(void) { return refuse(#name, NOT_SUPPORTED), 0.0f; }
#define REFUSE_DOUBLE(name) API double name(void) { return refuse(#name, NOT_SUPPORTED), 0.0; }
#define REFUSE_INTEGER(name) API long long name(void) { return refuse(#name, NOT_SUPPORTED), 0; }
#include "tables/nvshmem.inc"
