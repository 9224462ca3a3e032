/* What Python calls: opens a file, looks at its values, and takes columns out of lists of dicts. */
#include "plain.h"
#include "seed.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static bool has_read(struct plain *p) {
  if (setjmp(p->escape)) return false;
  read_pickle(p);
  return true;
}

/* Reads a file that is open, or, where there is none (-1), bytes; both stay the caller's. Of what it cannot read the
 * message is written, and NULL returned. keeps_spots: whether plain_spots is to know something. */
EXPORT struct plain *plain_read(int file, const void *bytes, uint64_t num_bytes, uint64_t max_bytes, int keeps_spots,
                                char message[MAX_MESSAGE]) {
  struct plain *p = calloc(1, sizeof *p);
  struct stat status;
  if (!p) {
    strcpy(message, "there is no memory left for it");
    return NULL;
  }
  p->file = file;
  p->max_bytes = max_bytes;
  p->keeps_spots = keeps_spots;
  p->seed = make_seed(p);
  if (file < 0) {
    p->buffer = (unsigned char *)bytes; /* only read from */
    p->end = num_bytes;
  } else { /* of a pipe nobody knows the length */
    p->num_left = !fstat(file, &status) && S_ISREG(status.st_mode) ? (uint64_t)status.st_size : UINT64_MAX;
  }
  bool is_whole = has_read(p);
  if (file < 0) p->buffer = NULL;
  if (!is_whole) {
    memcpy(message, p->message, MAX_MESSAGE);
    free_values(p);
    return NULL;
  }
  free(p->memo.at);
  free(p->buffer);
  p->memo.at = NULL;
  p->buffer = NULL;
  return p;
}

EXPORT void plain_free(struct plain *p) { free_values(p); }
EXPORT value plain_root(struct plain *p) { return p->root; }
EXPORT uint64_t plain_used_bytes(struct plain *p) { return p->used_bytes; }

EXPORT const char *plain_text(struct plain *p, value v, uint64_t *length) {
  struct text *text = &p->texts.at[number_of(v)];
  *length = text->length;
  return p->letters.at + text->offset;
}

EXPORT double plain_float(struct plain *p, value v) { return p->floats.at[number_of(v)]; }

EXPORT uint64_t plain_length(struct plain *p, value v) {
  if (tag_of(v) == TAG_DICT) return p->shapes.at[p->dicts.at[number_of(v)].shape].num_keys;
  return tag_of(v) == TAG_LIST ? read_list(p, v)->length : 0;
}

EXPORT int plain_is_tuple(struct plain *p, value v) { return p->lists.at[number_of(v)].is_tuple; }

/* The items of a list or the values of a dict, and the keys of a dict. */
EXPORT void plain_items(struct plain *p, value v, value *items) {
  const value *found = tag_of(v) == TAG_DICT ? p->dicts.at[number_of(v)].values : read_list(p, v)->items;
  uint64_t length = plain_length(p, v);
  if (length) memcpy(items, found, length * sizeof(value));
}

EXPORT void plain_keys(struct plain *p, value v, value *keys) {
  uint32_t shape = p->dicts.at[number_of(v)].shape;
  for (; shape; shape = p->shapes.at[shape].parent) keys[p->shapes.at[shape].num_keys - 1] = p->shapes.at[shape].key;
}

/* Of a list, the number of its stack, which equal lists share; 0 where it is not shared. */
EXPORT uint32_t plain_stack_of(struct plain *p, value v) {
  return tag_of(v) == TAG_LIST ? p->lists.at[number_of(v)].content : 0;
}

/* Where each list of a column begins among the items of all of them, one after the other, and the number of items; items
 * may be NULL to ask for these alone. What is no list has no items. */
EXPORT uint64_t plain_flatten(struct plain *p, const value *column, uint64_t length, uint64_t *starts, value *items) {
  uint64_t num_items = 0;
  for (uint64_t i = 0; i < length; i++) {
    starts[i] = num_items;
    if (tag_of(column[i]) != TAG_LIST) continue;
    const struct list *list = read_list(p, column[i]);
    if (items && list->length) memcpy(items + num_items, list->items, list->length * sizeof(value));
    num_items += list->length;
  }
  return num_items;
}

/* The item with a number of each list of a column; ABSENT where it has none. */
EXPORT void plain_item(struct plain *p, const value *column, uint64_t length, uint32_t number, value *items) {
  for (uint64_t i = 0; i < length; i++) {
    const struct list *list = tag_of(column[i]) == TAG_LIST ? read_list(p, column[i]) : NULL;
    items[i] = list && number < list->length ? list->items[number] : make(TAG_CONST, ABSENT);
  }
}

/* The value that each dict of a column has under a key; ABSENT where it has none. Consecutive dicts mostly have the same
 * shape, so the place of the key is looked up once for each run of them. */
EXPORT void plain_column(struct plain *p, const value *dicts, uint64_t length, const char *key, value *column) {
  value absent = make(TAG_CONST, ABSENT), name = find_text(p, key, strlen(key));
  uint32_t shape = 0;
  int64_t place = -1;
  for (uint64_t i = 0; i < length; i++) {
    column[i] = absent;
    if (name == absent || tag_of(dicts[i]) != TAG_DICT) continue;
    struct dict *dict = &p->dicts.at[number_of(dicts[i])];
    if (dict->shape != shape) {
      shape = dict->shape;
      place = find_key(p, shape, name);
    }
    if (place >= 0) column[i] = dict->values[place];
  }
}

/* Where in the file each text and each frame begins and ends, in the order of the file, and which text it is; returns
 * how many there are; begin may be NULL to ask for that alone. */
EXPORT uint64_t plain_spots(struct plain *p, uint64_t *begin, uint64_t *end, value *what) {
  for (uint64_t i = 0; begin && i < p->spots.length; i++) {
    begin[i] = p->spots.at[i].begin;
    end[i] = p->spots.at[i].end;
    what[i] = p->spots.at[i].what;
  }
  return p->spots.length;
}

/* How many dicts there are. */
EXPORT uint64_t plain_num_dicts(struct plain *p) { return p->dicts.length; }

/* The numbers of the stacks of a column of lists; 0 where there is none. */
EXPORT void plain_stacks(struct plain *p, const value *column, uint64_t length, uint32_t *stacks) {
  for (uint64_t i = 0; i < length; i++) stacks[i] = plain_stack_of(p, column[i]);
}

EXPORT uint64_t plain_num_stacks(struct plain *p) { return p->stacks.length; }

/* The items of a stack, by its number from 1; items may be NULL to ask for their number alone. */
EXPORT uint64_t plain_stack(struct plain *p, uint32_t number, value *items) {
  if (!number || number > p->stacks.length) return 0;
  const struct list *stack = &p->stacks.at[number - 1];
  if (items && stack->length) memcpy(items, stack->items, stack->length * sizeof(value));
  return stack->length;
}

/* The shape of each dict of a column, UINT32_MAX of what is none. */
EXPORT void plain_shapes(struct plain *p, const value *dicts, uint64_t length, uint32_t *shapes) {
  for (uint64_t i = 0; i < length; i++)
    shapes[i] = tag_of(dicts[i]) == TAG_DICT ? p->dicts.at[number_of(dicts[i])].shape : UINT32_MAX;
}

/* The keys of a shape; keys may be NULL to ask for their number alone. */
EXPORT uint64_t plain_shape(struct plain *p, uint32_t shape, value *keys) {
  uint64_t length = p->shapes.at[shape].num_keys;
  for (; keys && shape; shape = p->shapes.at[shape].parent) keys[p->shapes.at[shape].num_keys - 1] = p->shapes.at[shape].key;
  return length;
}
