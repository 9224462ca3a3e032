/* nvJitLink: present, and links nothing. PyTorch's wheels carry no caller of their own; extensions that check the version
 * find one, extensions that link get an error of the library. */
#include "phantom.h"

enum { SUCCESS = 0, INTERNAL = 6, NULL_INPUT = 10 }; /* nvJitLink has no "not supported": internal error */

API int nvJitLinkVersion(unsigned *major, unsigned *minor) {
  int version = library_version("nvjitlink", library_version("cudart", 13020));
  if (!major || !minor) return NULL_INPUT;
  *major = (unsigned)version / 1000;
  *minor = (unsigned)version / 10 % 100;
  return SUCCESS;
}

#define REFUSE(name) API int name(void) { return refuse(#name, INTERNAL); }
#include "tables/nvjitlink.inc"
