/* Feeds PyTorch's caching allocator with the requests of a trace, under an order of its segments. */
#include "allocator.h"

#include <stdlib.h>

/* Operations as programs/allocator_replay.py has them: 0 <= op < n allocates block op, n <= op < 2n frees block op - n,
 * and -op is one of these kinds + 8 * argument; others are not known here. */
enum { EMPTY_CACHE = 1, ATTEMPT = 3 };

/* Allocates so many bytes on the default stream, and frees them. */
static void attempt(struct allocator *a, int64_t bytes) {
  int32_t number = allocate_block(a, (bytes + LEAST - 1) / LEAST * LEAST, 0);
  if (number != NONE) release_block(a, number);
}

static bool carry_out(struct allocator *a, const int64_t *ops, int64_t num_ops, const int64_t *sizes,
                      const uint8_t *streams, int32_t *blocks, int64_t num_blocks) {
  for (int64_t i = 0; i < num_ops && !a->has_failed; i++) {
    int64_t op = ops[i];
    if (op >= num_blocks)
      release_block(a, blocks[op - num_blocks]);
    else if (op >= 0)
      blocks[op] = allocate_block(a, sizes[op], streams[op]);
    else if (-op == EMPTY_CACHE)
      empty_cache(a);
    else if ((-op & 7) == ATTEMPT)
      attempt(a, -op >> 3);
    else
      return false;
  }
  return !a->has_failed;
}

/* order: LINUX_ORDER, WINDOWS_ORDER, or 2 for that of age. sizes: of blocks, rounded as the allocator does, in bytes.
 * found: the peaks of reserved and of allocated bytes. Returns 0 where an operation is not known, or there is no memory. */
EXPORT int replay_requests(int order, const int64_t *sizes, const uint8_t *streams, int64_t num_blocks,
                           const int64_t *ops, int64_t num_ops, int64_t found[2]) {
  struct allocator *a = new_allocator(order ? WINDOWS_ORDER : LINUX_ORDER);
  if (!a) return 0;
  a->is_by_age = order == 2;
  int32_t *blocks = malloc(((size_t)num_blocks + 1) * sizeof *blocks);
  bool is_done = blocks && carry_out(a, ops, num_ops, sizes, streams, blocks, num_blocks);
  found[0] = a->reserved_peak;
  found[1] = a->allocated_peak;
  free(blocks);
  delete_allocator(a);
  return is_done;
}
