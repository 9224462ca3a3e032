/* Device memory beside PyTorch's allocator, of which a source gives an interval.
 *
 * The device holds the upper end, so that a program which asks what is free meets the device that it is judged by; the
 * report has both ends.
 */
#include "outside.h"
#include "levels.h"
#include "memory.h"
#include "phantom.h"

#include <pthread.h>
#include <string.h>

enum { MAX_KINDS = 256 };

struct kind {
  const char *what;
  int device;
  uint64_t count, low, high, peak_low, peak_high;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kind kinds[MAX_KINDS];
static size_t num_kinds;

static struct kind *kind_of(int index, const char *what) {
  for (size_t i = 0; i < num_kinds; i++)
    if (kinds[i].device == index && !strcmp(kinds[i].what, what)) return &kinds[i];
  if (num_kinds == MAX_KINDS) return NULL;
  kinds[num_kinds] = (struct kind){.what = what, .device = index};
  return &kinds[num_kinds++];
}

bool take_outside(int index, const char *what, size_t low, size_t high) {
  if (!high) return true;
  if (!charge(index, high)) return false;
  pthread_mutex_lock(&lock);
  struct kind *k = kind_of(index, what);
  if (k) {
    k->count++;
    k->low += low;
    k->high += high;
    if (k->high > k->peak_high) {
      k->peak_high = k->high;
      k->peak_low = k->low;
    }
  }
  pthread_mutex_unlock(&lock);
  note_outside(index);
  return true;
}

void give_back_outside(int index, const char *what, size_t low, size_t high) {
  if (!high) return;
  pthread_mutex_lock(&lock);
  struct kind *k = kind_of(index, what);
  if (k) {
    k->low -= low;
    k->high -= high;
  }
  pthread_mutex_unlock(&lock);
  discharge(index, high);
}

/* For the recorder: NULL after the last. row: device, how often taken, low and high at the highest. */
API const char *ullage_outside(uint64_t i, uint64_t row[4]) {
  if (i >= num_kinds) return NULL;
  row[0] = (uint64_t)kinds[i].device;
  row[1] = kinds[i].count;
  row[2] = kinds[i].peak_low;
  row[3] = kinds[i].peak_high;
  return kinds[i].what;
}
