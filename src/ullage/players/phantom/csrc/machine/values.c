/* Values: kernels do not run, small copies do.
 *
 * Bytes that were copied to a block of up to 1 MiB are kept until something may have written to the block: then all of
 * it is unknown. Unknown bytes read as zeros, or as the number that the recorder expects, and each host read of them is
 * reported with its place in the user's code (the callback walks the Python stack).
 *
 * The recorder's policy (docs/reference/values.md) assumes values that no kernel computed. Assumed bytes are kept like known ones
 * and marked ASSUMED; of a block whose elements are all assumed to be equal, that number alone is kept.
 *
 * A call that is known to write says so: `forget`. Of a launch only words that may point at what it writes are known:
 * `forget_words`. Where the recorder sees the operation, such words spare the blocks that it answers for: it knows what is
 * written from the schema, and says so itself.
 */
#include "blocks.h"
#include "capture.h"
#include "expected.h"
#include "host.h"
#include "levels.h"
#include "memory.h"
#include "phantom.h"
#include "ranges.h"
#include "shared_values.h"
#include "uses.h"
#include "work_log.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

static const size_t KEPT_PER_BLOCK = 1 << 20, KEPT_ALTOGETHER = 256 << 20;

/* What is known of a byte. */
enum { UNKNOWN, TRUE_VALUE, ASSUMED };

struct block {
  uintptr_t start;
  size_t bytes;
  unsigned char *data;  /* NULL: nothing is known */
  unsigned char *known; /* one byte a byte: TRUE_VALUE where data holds what the device would, or ASSUMED */
  double number;        /* of all elements, where uniformity is not 0 */
  int uniformity;       /* as the recorder has set it; see players/inside/library.py */
  uint64_t birth, used; /* positions of the event that brought it and of its last use */
  bool is_workspace;
  bool is_followed;     /* the recorder answers for its values */
  bool holds_addresses; /* some of its values may be addresses of the device */
  bool is_shared;       /* data and known are where other processes see them */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *blocks; /* tsearch tree of ranges */
static size_t kept;
static void (*host_read)(uint64_t bytes);
static _Thread_local bool is_thread_unseen, is_thread_spared;
/* Blocks with a number. */
API int ullage_num_uniform;
int ullage_num_uniform;

static struct block *block_at(uintptr_t address) { return range_at(&blocks, address); }

static void drop_values(struct block *b);
static void use_listed(const struct block *list);

static void use(struct block *b, uintptr_t address) { b->used = event_position(), see_operand(address, b->start, b->bytes); }

static void drop_at(uintptr_t address, bool is_guess) {
  if (!is_device_address((const void *)address)) return;
  struct block *b = block_at(address);
  if (!b) return;
  use(b, address);
  if (!is_guess || !(b->is_followed || is_thread_spared)) {
    is_write_captured(b->start);
    drop_values(b);
  } else if (b->data && b->holds_addresses) {
    use_listed(b);
  }
}

/* What a list of pointers points to, for a kernel that leaves the list as it is. */
static void use_listed(const struct block *list) {
  for (size_t i = 0; i < list->bytes / sizeof(uintptr_t); i++) {
    uintptr_t address = ((const uintptr_t *)list->data)[i];
    struct block *b = is_device_address((const void *)address) ? block_at(address) : NULL;
    if (b) use(b, address);
  }
}

static void set_number(struct block *b, double number, int uniformity) {
  ullage_num_uniform += (uniformity != 0) - (b->uniformity != 0);
  b->number = number;
  b->uniformity = uniformity;
}

static void drop_values(struct block *b) {
  set_number(b, 0, 0);
  if (!b->data) {
    b->is_followed = false;
    return;
  }
  unsigned char *data = b->data;
  b->is_followed = false;
  if (b->is_shared) {
    const struct shared_values *s = shared_values_of(b->start, b->bytes);
    if (s) forget_shared_values(s, b->start, b->bytes);
    return;
  }
  b->data = NULL;
  free(b->known);
  b->known = NULL;
  kept -= b->bytes;
  /* Memory that holds addresses (a list of pointers for a batched kernel) hands on what may be written. */
  for (size_t i = 0; i < b->bytes / sizeof(uintptr_t); i++) drop_at(((const uintptr_t *)data)[i], true);
  free(data);
}

void forget(const void *p) {
  if (!is_device_address(p)) return;
  pthread_mutex_lock(&lock);
  drop_at((uintptr_t)p, false);
  pthread_mutex_unlock(&lock);
}

void note_use(const void *p) {
  if (!is_device_address(p)) return;
  pthread_mutex_lock(&lock);
  struct block *b = block_at((uintptr_t)p);
  if (b) use(b, (uintptr_t)p);
  pthread_mutex_unlock(&lock);
}

bool forget_words(const uintptr_t *words, size_t count) {
  size_t i = 0;
  while (i < count && !is_device_address((const void *)words[i])) i++;
  if (i == count) return false;
  pthread_mutex_lock(&lock);
  for (; i < count; i++) drop_at(words[i], !is_thread_unseen);
  pthread_mutex_unlock(&lock);
  return true;
}

/* ---- The allocator's blocks -------------------------------------------------------------------------------------- */

static void free_values(struct block *b) {
  if (b->is_shared || !b->data) return;
  kept -= b->bytes;
  free(b->data);
  free(b->known);
}

/* Puts a block's values where other processes see them. false: none maps the block. */
static bool share(struct block *b) {
  const struct shared_values *s = b->is_shared ? NULL : shared_values_of(b->start, b->bytes);
  if (!s) return b->is_shared;
  size_t offset = b->start - s->range.start;
  if (b->data) memcpy(s->data + offset, b->data, b->bytes), memcpy(s->known + offset, b->known, b->bytes);
  free_values(b);
  b->data = s->data + offset;
  b->known = s->known + offset;
  return b->is_shared = true;
}

static void remove_block(struct block *b) {
  if (b->birth != NO_BIRTH) note_last_use(b->birth, b->used);
  tdelete(b, &blocks, by_range);
  set_number(b, 0, 0);
  free_values(b);
  free(b);
}

static struct block *insert_block(uintptr_t start, size_t bytes) {
  struct block key = {.start = start, .bytes = bytes}, **stale;
  while ((stale = tfind(&key, &blocks, by_range))) remove_block(*stale);
  struct block *b = calloc(1, sizeof *b);
  if (!b) return NULL;
  b->start = start;
  b->bytes = bytes;
  b->birth = NO_BIRTH;
  tsearch(b, &blocks, by_range);
  return b;
}

void block_allocated(uintptr_t start, size_t bytes, uint64_t birth) {
  pthread_mutex_lock(&lock);
  struct block *b = insert_block(start, bytes);
  if (b) b->birth = birth;
  if (b && share(b)) drop_values(b); /* what the block before it held */
  pthread_mutex_unlock(&lock);
}

void block_freed(uintptr_t start) {
  pthread_mutex_lock(&lock);
  struct block *b = block_at(start);
  if (b) remove_block(b);
  pthread_mutex_unlock(&lock);
}

static void share_if_mapped(const void *node, VISIT visit, int depth) {
  (void)depth;
  if (visit == postorder || visit == leaf) share(*(struct block *const *)node);
}

int share_values(uintptr_t start, size_t bytes) {
  pthread_mutex_lock(&lock);
  int file = shared_file(start, bytes);
  twalk(blocks, share_if_mapped);
  pthread_mutex_unlock(&lock);
  return file;
}

bool open_values(int process, int file, uintptr_t start, size_t bytes) {
  pthread_mutex_lock(&lock);
  bool is_open = map_shared_file(process, file, start, bytes);
  pthread_mutex_unlock(&lock);
  return is_open;
}

void close_values(uintptr_t start) {
  block_freed(start);
  pthread_mutex_lock(&lock);
  stop_sharing(start);
  pthread_mutex_unlock(&lock);
}

static void note_live_use(const void *node, VISIT visit, int depth) {
  (void)depth;
  const struct block *b = *(struct block *const *)node;
  if ((visit == postorder || visit == leaf) && b->birth != NO_BIRTH) note_last_use(b->birth, b->used);
}

void note_live_uses(void) {
  pthread_mutex_lock(&lock);
  twalk(blocks, note_live_use);
  pthread_mutex_unlock(&lock);
}

bool mark_workspace(uintptr_t p) {
  pthread_mutex_lock(&lock);
  struct block *b = block_at(p);
  bool is_new = b && !b->is_workspace;
  if (b) b->is_workspace = true;
  pthread_mutex_unlock(&lock);
  return is_new;
}

uint64_t birth_of(uintptr_t p) {
  pthread_mutex_lock(&lock);
  struct block *b = block_at(p);
  uint64_t birth = b ? b->birth : NO_BIRTH;
  pthread_mutex_unlock(&lock);
  return birth;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* The block that [p, p+bytes) lies in, with room for values, or NULL where none are kept. */
static struct block *block_for_values(uintptr_t p, size_t bytes, bool create) {
  struct block *b = block_at(p);
  uintptr_t start;
  size_t size;
  const struct shared_values *s = b ? NULL : shared_values_of(p, bytes);
  if (s) b = insert_block(s->range.start, s->range.bytes);
  if (!b && create && allocation_of((void *)p, &start, &size) && size <= 2 * KEPT_PER_BLOCK)
    b = insert_block(start, size);
  if (!b || p + bytes > b->start + b->bytes) return NULL;
  if (b->data || share(b) || !create) return b->data ? b : NULL;
  if (b->bytes > 2 * KEPT_PER_BLOCK || kept + b->bytes > KEPT_ALTOGETHER) return NULL;
  b->data = malloc(b->bytes);
  b->known = calloc(b->bytes, 1);
  if (!b->data || !b->known) {
    free(b->data);
    free(b->known);
    b->data = b->known = NULL;
    return NULL;
  }
  kept += b->bytes;
  return b;
}

static void write_values(uintptr_t p, const void *src, size_t bytes, int mark) {
  pthread_mutex_lock(&lock);
  bool is_now = !is_write_captured(p); /* else whenever the graph runs */
  struct block *b = is_now && bytes <= KEPT_PER_BLOCK ? block_for_values(p, bytes, true) : NULL;
  if (b) {
    set_number(b, 0, 0);
    memcpy(b->data + (p - b->start), src, bytes);
    memset(b->known + (p - b->start), mark, bytes);
    size_t word = (p - b->start) / sizeof(uintptr_t), end = (p - b->start + bytes) / sizeof(uintptr_t);
    for (; word < end && !b->holds_addresses; word++)
      b->holds_addresses = is_device_address(((const void *const *)b->data)[word]);
  } else {
    drop_at(p, false);
  }
  pthread_mutex_unlock(&lock);
}

/* Fills dst with what is known or assumed, what is expected elsewhere; the worst mark among the bytes. */
static int read_values(uintptr_t p, void *dst, size_t bytes) {
  int mark = UNKNOWN;
  pthread_mutex_lock(&lock);
  struct block *b = block_for_values(p, bytes, false);
  if (b) {
    const unsigned char *known = b->known + (p - b->start), *data = b->data + (p - b->start);
    if (!memchr(known, UNKNOWN, bytes)) {
      mark = memchr(known, ASSUMED, bytes) ? ASSUMED : TRUE_VALUE;
      memcpy(dst, data, bytes);
    } else {
      for (size_t i = 0; i < bytes; i++) ((unsigned char *)dst)[i] = known[i] ? data[i] : expected_byte(i);
    }
  } else {
    fill_expected(dst, bytes);
  }
  pthread_mutex_unlock(&lock);
  return mark;
}

static void read_to_host(void *dst, uintptr_t src, size_t bytes) {
  int mark = bytes <= KEPT_PER_BLOCK ? read_values(src, dst, bytes) : UNKNOWN;
  if (mark == TRUE_VALUE) return;
  if (mark == ASSUMED) {
    if (host_read) host_read(bytes);
    return;
  }
  if (answer_count(dst, bytes)) return;
  if (!bytes) return;
  if (bytes > KEPT_PER_BLOCK && !fill_expected(dst, bytes)) fill_zeros(dst, bytes);
  if (host_read && !is_expectation_true()) host_read(bytes);
}

static void copy_on_device(uintptr_t dst, uintptr_t src, size_t bytes) {
  unsigned char *copy = bytes <= KEPT_PER_BLOCK ? malloc(bytes) : NULL;
  int mark = copy ? read_values(src, copy, bytes) : UNKNOWN;
  if (mark) write_values(dst, copy, bytes, mark);
  else forget((void *)dst);
  free(copy);
}

void copy_values(void *dst, const void *src, size_t bytes) {
  bool to_device = is_device_address(dst), from_device = is_device_address(src);
  if (!bytes) return;
  note_use(dst);
  note_use(src);
  if (to_device && from_device) copy_on_device((uintptr_t)dst, (uintptr_t)src, bytes);
  else if (to_device) write_values((uintptr_t)dst, src, bytes, TRUE_VALUE);
  else if (from_device) {
    if (bytes <= KEPT_PER_BLOCK) memset(dst, 0, bytes);
    read_to_host(dst, (uintptr_t)src, bytes);
  } else memmove(dst, src, bytes);
}

/* From now on the recorder answers for the block's values. */
static void follow_block(uintptr_t p) {
  pthread_mutex_lock(&lock);
  struct block *b = block_at(p);
  if (b && (b->data || b->uniformity)) b->is_followed = true;
  pthread_mutex_unlock(&lock);
}

static bool is_block_followed(uintptr_t p) {
  pthread_mutex_lock(&lock);
  struct block *b = block_at(p);
  bool is_followed = b && b->is_followed;
  pthread_mutex_unlock(&lock);
  return is_followed;
}

void hand_on_values(void *dst, const void *src, size_t bytes) {
  bool is_followed = is_block_followed((uintptr_t)src);
  copy_values(dst, src, bytes);
  if (is_followed) follow_block((uintptr_t)dst);
}

void fill_values(void *dst, int value, size_t bytes) {
  if (!is_device_address(dst)) {
    memset(dst, value, bytes);
    return;
  }
  note_use(dst);
  unsigned char *filled = bytes <= KEPT_PER_BLOCK ? malloc(bytes) : NULL;
  if (filled) {
    memset(filled, value, bytes);
    write_values((uintptr_t)dst, filled, bytes, TRUE_VALUE);
  } else {
    forget(dst);
  }
  free(filled);
}

/* ---- For the recorder, which computes small values beside the phantom -------------------------------------------- */

API void ullage_on_host_read(void (*callback)(uint64_t bytes)) { host_read = callback; }

/* 0: not all is known; 1: all of it is true; 2: some of it is assumed. */
API int ullage_read(uintptr_t p, void *dst, size_t bytes) {
  int mark = bytes <= KEPT_PER_BLOCK ? read_values(p, dst, bytes) : UNKNOWN;
  if (mark) follow_block(p);
  return mark;
}

/* All elements of the block are this number from now on, until something writes to it; unless bytes of it are known. */
API void ullage_set_number(uintptr_t p, double number, int uniformity) {
  pthread_mutex_lock(&lock);
  struct block *b = block_at(p);
  if (b && !b->data && !is_write_captured(p)) {
    set_number(b, number, uniformity);
    b->is_followed = true;
  }
  pthread_mutex_unlock(&lock);
}

/* The uniformity of a block, 0 where no number is known. */
API int ullage_number(uintptr_t p, double *number) {
  if (!ullage_num_uniform) return 0;
  pthread_mutex_lock(&lock);
  struct block *b = block_at(p);
  int uniformity = b ? b->uniformity : 0;
  if (uniformity) *number = b->number;
  pthread_mutex_unlock(&lock);
  return uniformity;
}

/* What is truly known of a block's bytes, and a flag for each of them; both as they are where nothing is. */
API void ullage_look(uintptr_t p, void *dst, void *known, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct block *b = block_for_values(p, bytes, false);
  if (b) {
    memcpy(dst, b->data + (p - b->start), bytes);
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)known)[i] = b->known[p - b->start + i] == TRUE_VALUE;
  }
  pthread_mutex_unlock(&lock);
}

API int ullage_is_device_address(const void *p) { return is_device_address(p); }

static bool holds(uintptr_t p, const void *src, size_t bytes) {
  pthread_mutex_lock(&lock);
  struct block *b = block_for_values(p, bytes, false);
  bool is_same =
      b && !memchr(b->known + (p - b->start), UNKNOWN, bytes) && !memcmp(b->data + (p - b->start), src, bytes);
  pthread_mutex_unlock(&lock);
  return is_same;
}

API void ullage_write(uintptr_t p, const void *src, size_t bytes, int mark) {
  /* What was only read is written back; within a capture that is no write. */
  if (!is_any_capture_open() || !holds(p, src, bytes)) write_values(p, src, bytes, mark);
  follow_block(p);
}

API void ullage_forget(uintptr_t p) { forget((const void *)p); }

/* What the recorder knows of this thread's launches. 0: nothing. 1, as in every thread at first, since autograd's read what
   forward has left: what they write of the blocks that it answers for, which keep their values. 2: all, and it has said so. */
API void ullage_follow_thread(int how) { is_thread_unseen = !how, is_thread_spared = how == 2; }
