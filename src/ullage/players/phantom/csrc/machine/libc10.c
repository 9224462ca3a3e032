/* They were loaded by Python's import, out of reach of RTLD_NEXT. */
#include "libc10.h"

#include <dlfcn.h>
#include <stddef.h>

void *in_library(const char *library, const char *name) {
  void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle ? dlsym(handle, name) : NULL;
}

void *in_libc10(const char *name) { return in_library("libc10.so", name); }
