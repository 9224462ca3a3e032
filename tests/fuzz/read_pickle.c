/* Any bytes as a pickle, read from memory or through a file in small parts, and everything that Python may ask of the
 * values then asked of them. Built by run.py with a buffer of a few bytes, so that most reads cross its end. */
#include "plain.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 22, MAX_DEPTH = 6, MAX_ITEMS = 64, MAX_ASKED = 1000 };

struct plain *plain_read(int file, const void *bytes, uint64_t num_bytes, uint64_t max_bytes, int keeps_spots,
                         char *message);
void plain_free(struct plain *p);
uint64_t plain_spots(struct plain *p, uint64_t *begin, uint64_t *end, value *what);
value plain_root(struct plain *p);
uint64_t plain_used_bytes(struct plain *p);
const char *plain_text(struct plain *p, value v, uint64_t *length);
double plain_float(struct plain *p, value v);
uint64_t plain_length(struct plain *p, value v);
int plain_is_tuple(struct plain *p, value v);
void plain_items(struct plain *p, value v, value *items);
void plain_keys(struct plain *p, value v, value *keys);
uint64_t plain_flatten(struct plain *p, const value *column, uint64_t length, uint64_t *starts, value *items);
void plain_item(struct plain *p, const value *column, uint64_t length, uint32_t number, value *items);
void plain_column(struct plain *p, const value *dicts, uint64_t length, const char *key, value *column);
uint64_t plain_num_dicts(struct plain *p);
void plain_stacks(struct plain *p, const value *column, uint64_t length, uint32_t *stacks);
uint64_t plain_num_stacks(struct plain *p);
uint64_t plain_stack(struct plain *p, uint32_t number, value *items);
void plain_shapes(struct plain *p, const value *dicts, uint64_t length, uint32_t *shapes);
uint64_t plain_shape(struct plain *p, uint32_t shape, value *keys);

static volatile uint64_t seen; /* so that no read is left out */
static int num_asked;

static void require(bool holds) {
  if (!holds) abort();
}

/* Columns over the items of a list, as the reader of snapshots takes them. */
static void ask_columns(struct plain *p, const value *items, uint64_t length) {
  value *column = calloc(length + 1, sizeof *column);
  uint32_t *numbers = calloc(length + 1, sizeof *numbers);
  uint64_t *starts = calloc(length + 1, sizeof *starts);
  const char *keys[] = {"frames", "blocks", "addr", "a", ""};
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
    plain_column(p, items, length, keys[k], column);
    plain_stacks(p, column, length, numbers);
    for (uint64_t i = 0; i < length; i++) {
      require(numbers[i] <= plain_num_stacks(p));
      uint64_t num_items = plain_stack(p, numbers[i], NULL);
      value *stack = calloc(num_items + 1, sizeof *stack);
      require(plain_stack(p, numbers[i], stack) == num_items);
      free(stack);
    }
    plain_item(p, column, length, 0, column);
  }
  uint64_t num_flat = plain_flatten(p, items, length, starts, NULL);
  if (num_flat <= plain_num_dicts(p)) {
    value *flat = calloc(num_flat + 1, sizeof *flat);
    require(plain_flatten(p, items, length, starts, flat) == num_flat);
    free(flat);
  }
  plain_shapes(p, items, length, numbers);
  for (uint64_t i = 0; i < length && i < MAX_ITEMS; i++) {
    if (numbers[i] == UINT32_MAX) continue;
    uint64_t num_keys = plain_shape(p, numbers[i], NULL);
    value *shape = calloc(num_keys + 1, sizeof *shape);
    plain_shape(p, numbers[i], shape);
    free(shape);
  }
  free(column);
  free(numbers);
  free(starts);
}

static void ask(struct plain *p, value v, int depth) {
  if (++num_asked > MAX_ASKED) return; /* lists that hold one another may unfold to more than can be walked */
  uint64_t length = plain_length(p, v);
  enum tag tag = tag_of(v);
  if (tag == TAG_TEXT || tag == TAG_BYTES) {
    const char *letters = plain_text(p, v, &length);
    for (uint64_t i = 0; i < length; i++) seen += (unsigned char)letters[i];
  } else if (tag == TAG_WIDE || tag == TAG_FLOAT) {
    seen += plain_float(p, v) > 0;
  } else if (tag == TAG_LIST || tag == TAG_DICT) {
    value *items = calloc(length + 1, sizeof *items), *keys = calloc(length + 1, sizeof *keys);
    plain_items(p, v, items);
    if (tag == TAG_DICT) plain_keys(p, v, keys);
    if (tag == TAG_LIST) seen += (uint64_t)plain_is_tuple(p, v);
    ask_columns(p, items, length);
    for (uint64_t i = 0; i < length && i < MAX_ITEMS && depth < MAX_DEPTH; i++) {
      ask(p, items[i], depth + 1);
      if (tag == TAG_DICT) ask(p, keys[i], depth + 1);
    }
    free(items);
    free(keys);
  }
}

/* The spots are in the order of the file, within it, and apart. */
static void ask_spots(struct plain *p, uint64_t num_bytes) {
  uint64_t length = plain_spots(p, NULL, NULL, NULL), place = 0;
  uint64_t *begin = calloc(length + 1, sizeof *begin), *end = calloc(length + 1, sizeof *end);
  value *what = calloc(length + 1, sizeof *what);
  plain_spots(p, begin, end, what);
  for (uint64_t i = 0; i < length; place = end[i++]) require(begin[i] >= place && end[i] > begin[i] && end[i] <= num_bytes);
  free(begin);
  free(end);
  free(what);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t num_bytes) {
  char message[MAX_MESSAGE];
  int file = -1;
  if (num_bytes && bytes[0] & 1) { /* through a file */
    file = memfd_create("pickle", 0);
    require(file >= 0 && write(file, bytes + 1, num_bytes - 1) == (ssize_t)(num_bytes - 1));
    lseek(file, 0, SEEK_SET);
  }
  bool keeps_spots = num_bytes && bytes[0] & 2;
  num_bytes -= num_bytes > 0;
  struct plain *p = plain_read(file, bytes + 1, num_bytes, MAX_BYTES, keeps_spots, message);
  if (file >= 0) close(file);
  if (!p) return 0;
  require(plain_used_bytes(p) <= MAX_BYTES);
  num_asked = 0;
  ask(p, plain_root(p), 0);
  ask_spots(p, num_bytes);
  plain_free(p);
  return 0;
}
