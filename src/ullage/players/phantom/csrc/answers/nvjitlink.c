/* nvJitLink: links nothing, and hands out an image that nobody reads: the phantom's driver takes any. The names that
 * carry a version are refused: nobody has been met who calls by them. */
#include "phantom.h"

#include <string.h>

enum { SUCCESS = 0, INTERNAL = 6, NULL_INPUT = 10, IMAGE_BYTES = 64 }; /* it has no "not supported": internal error */

API int nvJitLinkVersion(unsigned *major, unsigned *minor) {
  int version = library_version("nvjitlink", library_version("cudart", 13020));
  if (!major || !minor) return NULL_INPUT;
  *major = (unsigned)version / 1000;
  *minor = (unsigned)version / 10 % 100;
  return SUCCESS;
}

API int nvJitLinkCreate(void **linker, uint32_t num_options, const char **options) {
  (void)num_options, (void)options;
  return linker ? (*linker = new_handle(), SUCCESS) : NULL_INPUT;
}

API int nvJitLinkGetLinkedCubinSize(void *linker, size_t *bytes) {
  (void)linker;
  return bytes ? (*bytes = IMAGE_BYTES, SUCCESS) : NULL_INPUT;
}

API int nvJitLinkGetLinkedCubin(void *linker, void *image) {
  (void)linker;
  return image ? (memset(image, 0, IMAGE_BYTES), SUCCESS) : NULL_INPUT;
}

/* The logs are empty: the end of a text alone. */
static int give_log_size(size_t *bytes) { return bytes ? (*bytes = 1, SUCCESS) : NULL_INPUT; }
static int give_log(char *log) { return log ? (*log = '\0', SUCCESS) : NULL_INPUT; }
API int nvJitLinkGetErrorLogSize(void *linker, size_t *bytes) { return (void)linker, give_log_size(bytes); }
API int nvJitLinkGetInfoLogSize(void *linker, size_t *bytes) { return (void)linker, give_log_size(bytes); }
API int nvJitLinkGetErrorLog(void *linker, char *log) { return (void)linker, give_log(log); }
API int nvJitLinkGetInfoLog(void *linker, char *log) { return (void)linker, give_log(log); }

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, INTERNAL); }
#include "tables/nvjitlink.inc"
