/* Trees of ranges of addresses. */
#include "ranges.h"

#include <search.h>

int by_range(const void *a, const void *b) {
  const struct range *x = a, *y = b;
  if (x->start + x->bytes <= y->start) return -1;
  return x->start >= y->start + y->bytes;
}

void *range_at(void *const *tree, uintptr_t address) {
  void **found = tfind(&(struct range){address, 1}, tree, by_range);
  return found ? *found : NULL;
}
