/* What PyTorch keeps for asynchronous collectives: their operands, until the program waits for the collective or a
 * watchdog has seen the end of it. What is kept at the end of the program is told to the recorder.
 */
#include "kept.h"
#include "levels.h"
#include "phantom.h"
#include "room.h"

#include <pthread.h>
#include <stdlib.h>

struct operand {
  struct mark collective;
  uint64_t position; /* in the event sequence */
  const void *p;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct operand *operands;
static size_t count, room;

void keep_for_collective(struct mark collective, const void *p) {
  if (!collective.position || !is_device_address(p)) return;
  pthread_mutex_lock(&lock);
  if (has_room_for_row(&operands, &room, count, sizeof *operands, SIZE_MAX))
    operands[count++] = (struct operand){collective, event_position(), p};
  pthread_mutex_unlock(&lock);
}

static void drop_where(bool (*is_over)(struct mark, struct mark), struct mark mark) {
  pthread_mutex_lock(&lock);
  size_t kept = 0;
  for (size_t i = 0; i < count; i++)
    if (!is_over(operands[i].collective, mark)) operands[kept++] = operands[i];
  count = kept;
  pthread_mutex_unlock(&lock);
}

static bool is_same(struct mark a, struct mark b) { return a.lane == b.lane && a.position == b.position; }
static bool is_up_to(struct mark a, struct mark b) { return a.lane == b.lane && a.position <= b.position; }

void drop_waited(struct mark collective) {
  if (collective.position) drop_where(is_same, collective);
}
void drop_seen(struct mark end) { drop_where(is_up_to, end); }

bool is_operand(const void *block, size_t bytes) {
  const char *start = block;
  pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < count && !((const char *)operands[i].p >= start && (const char *)operands[i].p < start + bytes)) i++;
  bool is_kept = i < count;
  pthread_mutex_unlock(&lock);
  return is_kept;
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

API uint64_t ullage_num_operands(void) { return count; }

API void ullage_operand(uint64_t i, int64_t row[3]) {
  row[0] = (int64_t)operands[i].position;
  row[1] = device_of_address(operands[i].p);
  row[2] = (int64_t)(uintptr_t)operands[i].p;
}
