/* The addresses of a sequence of allocations, one after the other: what a test or a benchmark asks address_space.c. */
#include "allocator.h"

/* takes[i] bytes are taken where that is positive; else `returns[i]` names an earlier one of which the bytes from
 * offsets[i] on, -takes[i] of them, are given back. addresses: of each that takes. Returns 0 where there is none left. */
EXPORT int play_addresses(int order, uint64_t bottom, uint64_t top, const int64_t *takes, const int64_t *returns,
                          const int64_t *offsets, int64_t count, uint64_t *addresses) {
  struct address_space *space = new_address_space(bottom, top, order ? WINDOWS_ORDER : LINUX_ORDER);
  bool is_done = space != NULL;
  for (int64_t i = 0; i < count && is_done; i++) {
    if (takes[i] > 0)
      is_done = (addresses[i] = take_addresses(space, (size_t)takes[i])) != 0;
    else
      return_addresses(space, addresses[returns[i]] + (uint64_t)offsets[i], (size_t)-takes[i]);
  }
  delete_address_space(space);
  return is_done;
}
