/* libc10 was loaded by Python's import, out of reach of RTLD_NEXT. */
#include "libc10.h"

#include <dlfcn.h>
#include <stddef.h>

void *in_libc10(const char *name) {
  void *handle = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  return handle ? dlsym(handle, name) : NULL;
}
