/* Trees of ranges of addresses, for tsearch(): each range begins with these two members. Overlapping ranges compare as equal,
 * so one tree serves exact look-ups and "what holds this address" (ranges.c). */
#ifndef ULLAGE_RANGES_H
#define ULLAGE_RANGES_H

#include <stddef.h>
#include <stdint.h>

struct range {
  uintptr_t start;
  size_t bytes;
};

int by_range(const void *a, const void *b);
void *range_at(void *const *tree, uintptr_t address); /* NULL: none holds it */

#endif
