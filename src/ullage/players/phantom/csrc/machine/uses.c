/* Last uses: for each block the position in the event sequence at which a kernel, a library or a copy was last handed
 * an address in it. What lies there longer is dead weight.
 *
 * Of a launch only words are known that may be arguments (values.c), so a use may be one too many: a block is called
 * unused too late, never too early. A block that is still there at the end has its row written when the rows are read.
 */
#include "uses.h"
#include "levels.h"
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 1 << 25 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t *last_uses; /* by the event that brought the block */
static uint64_t room, last_graph;

void use_every_block(void) { __atomic_store_n(&last_graph, event_position(), __ATOMIC_RELAXED); }

void note_last_use(uint64_t birth, uint64_t used) {
  uint64_t graph = __atomic_load_n(&last_graph, __ATOMIC_RELAXED);
  if (graph > birth && graph > used) used = graph;
  if (birth >= MAX_ROWS) return;
  pthread_mutex_lock(&lock);
  if (birth >= room) {
    uint64_t wanted = room ? room : 4096;
    while (wanted <= birth) wanted *= 2;
    uint32_t *larger = realloc(last_uses, wanted * sizeof *larger);
    if (larger) {
      memset(larger + room, 0, (wanted - room) * sizeof *larger);
      last_uses = larger;
      room = wanted;
    }
  }
  if (birth < room) last_uses[birth] = used < UINT32_MAX ? (uint32_t)used : UINT32_MAX;
  pthread_mutex_unlock(&lock);
}

void copy_last_uses(uint64_t count, uint32_t *found) {
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < count; i++) found[i] = i < room ? last_uses[i] : 0;
  pthread_mutex_unlock(&lock);
}
