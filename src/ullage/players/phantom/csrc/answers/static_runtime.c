/* Libraries with CUDA's runtime built in (libcudart_static.a), out of the phantom's reach: their calls to it are not
 * calls between libraries. Such a runtime begins by asking the driver for tables of functions that are not documented,
 * and gives up without them. All that can be done is to say so, once a library, and by name.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LIBRARIES = 64, NOT_SUPPORTED = 801 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char said[MAX_LIBRARIES][256];
static size_t num_said;

/* The row of the report for a library; *is_new: it was not there yet. NULL: there are too many. */
static const char *row_of(const char *library, bool *is_new) {
  char row[sizeof *said];
  snprintf(row, sizeof row, "cuGetExportTable, for CUDA's runtime that is built into %s,", library);
  size_t i = 0;
  while (i < num_said && strcmp(said[i], row)) i++;
  *is_new = i == num_said && num_said < MAX_LIBRARIES;
  if (*is_new) memcpy(said[num_said++], row, sizeof row);
  return i < num_said ? said[i] : NULL;
}

API int cuGetExportTable(const void **table, const void *id) {
  (void)id;
  Dl_info caller;
  bool is_found = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname;
  const char *slash = is_found ? strrchr(caller.dli_fname, '/') : NULL;
  const char *library = slash ? slash + 1 : is_found ? caller.dli_fname : "a library";
  if (table) *table = NULL;
  pthread_mutex_lock(&lock);
  bool is_new;
  const char *row = row_of(library, &is_new);
  pthread_mutex_unlock(&lock);
  if (is_new)
    fprintf(stderr,
            "ullage: %s has CUDA's runtime built in, which asks the driver for cuGetExportTable, a function without a "
            "description: what this library does on the GPU fails here; use a build that links libcudart\n",
            library);
  return refuse(row ? row : "cuGetExportTable", NOT_SUPPORTED);
}
