/* Plain values: what a pickle without classes holds, in little memory.
 *
 * A value is 64 bits: the lowest three say what it is, the rest is the value itself or a number of what it is.
 * Texts are kept once each, so that equal texts are equal values. A dict is the list of its values and a shape, which is
 * its keys in order; dicts with the same keys share one. A list of dicts that becomes a value of a dict (a stack of
 * frames) is kept once for all that are equal. The memory of all is counted, and bounded by whoever opens the file. The
 * time is too: hashes are seeded, so that no file can be made to collide, and the keys of a dict are few.
 */
#ifndef ULLAGE_PLAIN_H
#define ULLAGE_PLAIN_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t value;

enum tag { TAG_INT, TAG_CONST, TAG_TEXT, TAG_BYTES, TAG_LIST, TAG_DICT, TAG_WIDE, TAG_FLOAT };
enum { NONE = 0, FALSE = 1, TRUE = 2, ABSENT = 3 };
enum { MAX_KEYS = 1 << 10, MAX_MESSAGE = 512 };

/* Of a list the items; of a tuple too. content is the number of a stack, 0 where the items are the list's own. */
struct list {
  uint32_t length, room;
  uint32_t content;
  bool is_tuple;
  value *items;
};

struct dict {
  uint32_t shape, room;
  value *values;
};

/* A key, after those of the parent. Shape 0 has none. */
struct shape {
  uint32_t parent, num_keys;
  value key;
};

struct text {
  uint64_t offset, length;
};

/* A hash table of numbers of something that is kept elsewhere; 0 is an empty place. */
struct table {
  uint32_t *places;
  uint32_t num_places, num_used;
};

/* Where in the file something was written that may be rewritten: a text, or, as ABSENT, the begin of a frame. */
struct spot {
  uint64_t begin, end;
  value what;
};

#define VECTOR(type) struct { type *at; uint64_t length, room; }

struct plain {
  uint64_t used_bytes, max_bytes, seed;
  jmp_buf escape;
  char message[MAX_MESSAGE];

  VECTOR(char) letters;
  VECTOR(struct text) texts;
  VECTOR(struct list) lists;
  VECTOR(struct dict) dicts;
  VECTOR(struct shape) shapes;
  VECTOR(struct list) stacks;
  VECTOR(double) floats;
  VECTOR(value) memo;
  VECTOR(value) stack;
  VECTOR(uint64_t) marks;
  VECTOR(struct spot) spots;
  struct table text_table, shape_table, stack_table;
  value root;

  int file; /* -1: the buffer holds all, and is the caller's */
  unsigned char *buffer;
  uint64_t begin, end, room, num_left, num_opcodes, num_passed; /* bytes before the buffer */
  bool keeps_spots;
};

static inline enum tag tag_of(value v) { return (enum tag)(v & 7); }
static inline uint64_t number_of(value v) { return v >> 3; }
static inline value make(enum tag tag, uint64_t number) { return number << 3 | tag; }
static inline int64_t int_of(value v) { return (int64_t)v >> 3; }

/* values.c */
_Noreturn void fail(struct plain *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *reserve(struct plain *p, void *at, uint64_t length, uint64_t *room, size_t width);
value make_int(struct plain *p, int64_t number);
value make_float(struct plain *p, double number);
value make_text(struct plain *p, enum tag tag, const char *letters, uint64_t length);
value find_text(struct plain *p, const char *letters, uint64_t length);
value make_list(struct plain *p, bool is_tuple);
value make_dict(struct plain *p);
const struct list *read_list(struct plain *p, value v);
void append(struct plain *p, value list, const value *items, uint64_t num_items);
void expect_keys(struct plain *p, value dict, uint64_t num_more);
void set_item(struct plain *p, value dict, value key, value item);
int64_t find_key(struct plain *p, uint32_t shape, value key);
void free_values(struct plain *p);

#define PUSH(p, vector, item)                                                                            \
  do {                                                                                                   \
    if ((vector).length == (vector).room)                                                                \
      (vector).at = reserve((p), (vector).at, (vector).length + 1, &(vector).room, sizeof *(vector).at); \
    (vector).at[(vector).length++] = (item);                                                             \
  } while (0)

/* pickle.c */
void read_pickle(struct plain *p);

#endif
