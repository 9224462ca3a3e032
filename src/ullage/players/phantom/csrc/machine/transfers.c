/* Copies between host and device: how large, from or to pinned memory or pageable, on which stream, and whether the host
 * waited for them at once.
 *
 * Pageable memory is copied by way of the driver's own pinned buffer, and the call returns only when the source has been
 * read, whatever the program asked for. PyTorch waits for a copy that is not `non_blocking` in the call that follows it.
 */
#include "transfers.h"
#include "levels.h"
#include "phantom.h"
#include "room.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_ROWS = 1 << 18 };
enum { TO_DEVICE = 1, PINNED = 2, WAITED_FOR = 4 };
static const size_t SMALL = 64 << 10; /* scalars, indices, lengths: nobody waits long for them */

struct copy {
  uint64_t position;
  int64_t address, bytes, stream;
  int32_t device, flags;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct copy *copies;
static uint64_t num_copies, copy_room;
static _Thread_local uint64_t last_copy; /* 1 + the row of this thread's last copy, until it does something else */

void note_copy(const void *dst, const void *src, size_t bytes, const void *stream, bool is_waited_for) {
  bool to_device = is_device_address(dst);
  const void *on_device = to_device ? dst : src, *on_host = to_device ? src : dst;
  last_copy = 0;
  if (bytes < SMALL || to_device == is_device_address(src)) return;
  int flags = to_device * TO_DEVICE | is_pinned_address(on_host) * PINNED | is_waited_for * WAITED_FOR;
  int on = device_of_address(on_device);
  pthread_mutex_lock(&lock);
  if (has_room_for_row(&copies, &copy_room, num_copies, sizeof *copies, MAX_ROWS)) {
    copies[num_copies++] = (struct copy){event_position(), (int64_t)(uintptr_t)on_device, (int64_t)bytes,
                                         (int64_t)(uintptr_t)stream, on, flags};
    last_copy = num_copies;
  }
  pthread_mutex_unlock(&lock);
}

void note_launch(void) { last_copy = 0; }

void note_wait(const void *stream) {
  if (!last_copy) return;
  pthread_mutex_lock(&lock);
  struct copy *c = &copies[last_copy - 1];
  if (c->stream == (int64_t)(uintptr_t)stream) c->flags |= WAITED_FOR;
  pthread_mutex_unlock(&lock);
  last_copy = 0;
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

API uint64_t ullage_num_copies(void) { return num_copies; }

API void ullage_copy(uint64_t i, int64_t row[6]) {
  const struct copy *c = &copies[i];
  row[0] = (int64_t)c->position;
  row[1] = c->device;
  row[2] = c->address;
  row[3] = c->bytes;
  row[4] = c->stream;
  row[5] = c->flags;
}
