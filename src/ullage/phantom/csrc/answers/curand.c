/* cuRAND's host API: generators. PyTorch draws its numbers in kernels of its own and needs none of this. */
#include "phantom.h"

enum { SUCCESS = 0, OUT_OF_RANGE = 104, NOT_SUPPORTED = 103 }; /* cuRAND has no "not supported" */

static int version(void) { return library_version("curand", 10405); } /* 10.4.5 */

API int curandGetVersion(int *value) {
  if (!value) return OUT_OF_RANGE;
  *value = version();
  return SUCCESS;
}

API int curandGetProperty(int type, int *value) {
  if (!value || type < 0 || type > 2) return OUT_OF_RANGE;
  *value = type == 0 ? version() / 1000 : type == 1 ? version() / 100 % 10 : version() % 100;
  return SUCCESS;
}

API int curandCreateGenerator(void **generator, int kind) {
  (void)kind;
  if (!generator) return OUT_OF_RANGE;
  *generator = new_handle();
  return SUCCESS;
}

API int curandSetStream(void *generator, void *stream) { return (void)generator, follow_stream(stream), SUCCESS; }

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/curand.inc"
