/* Values of memory that several processes map (shared_values.c). */
#ifndef ULLAGE_SHARED_VALUES_H
#define ULLAGE_SHARED_VALUES_H

#include "ranges.h"

#include <stdbool.h>

struct shared_values {
  struct range range;
  unsigned char *data, *known; /* as in a block; known is behind data in the file */
  int file;
};

int shared_file(uintptr_t start, size_t bytes);                               /* -1: none can be made */
bool map_shared_file(int process, int number, uintptr_t start, size_t bytes); /* false: that process has ended */
void stop_sharing(uintptr_t start);
struct shared_values *shared_values_of(uintptr_t start, size_t bytes);       /* NULL: others do not map all of it */
void forget_shared_values(const struct shared_values *s, uintptr_t start, size_t bytes);

#endif
