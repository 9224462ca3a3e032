/* cuRAND's host API: generators. PyTorch draws its numbers in kernels of its own and needs none of this. */
#include "phantom.h"

enum { SUCCESS = 0, OUT_OF_RANGE = 104, NOT_SUPPORTED = 103 }; /* cuRAND has no "not supported" */

static int version(void) { return library_version("curand", 10405); } /* 10.4.5 */

API int curandGetVersion(int *value) { return ANSWER(value, version(), OUT_OF_RANGE); }

API int curandGetProperty(int type, int *value) { return version_part(version(), 1000, type, value) ? SUCCESS : OUT_OF_RANGE; }

API int curandCreateGenerator(void **generator, int kind) {
  return (void)kind, ANSWER(generator, new_handle(), OUT_OF_RANGE);
}

API int curandSetStream(void *generator, void *stream) { return (void)generator, follow_stream(stream), SUCCESS; }

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/curand.inc"
