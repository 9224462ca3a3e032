/* Reads a pickle of plain values, of protocol 0 to 5, from a file, without ever importing or calling anything.
 *
 * An opcode that would need a class ends the reading with the name of that class. A length is believed only as far as
 * the file goes, a number of the memo only as far as there were opcodes.
 */
#include "plain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BUFFER_BYTES
#define BUFFER_BYTES (1 << 20)
#endif
enum { MAX_LINE = 4096, MAX_PROTOCOL = 5, MAX_INT_BYTES = 120 };

static void refill(struct plain *p, uint64_t num_bytes) {
  uint64_t held = p->end - p->begin;
  memmove(p->buffer, p->buffer + p->begin, held);
  p->num_passed += p->begin;
  p->begin = 0;
  p->end = held;
  if (num_bytes > p->room) p->buffer = reserve(p, p->buffer, num_bytes, &p->room, 1);
  while (p->end < num_bytes) {
    ssize_t got = read(p->file, p->buffer + p->end, p->room - p->end);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(p, "it cannot be read: %s", strerror(errno));
    if (got == 0) fail(p, "it ends in the middle; it was cut off");
    p->end += (uint64_t)got;
    p->num_left -= (uint64_t)got < p->num_left ? (uint64_t)got : p->num_left;
  }
}

/* The next bytes of the file, which are there until the next call. */
static const unsigned char *take(struct plain *p, uint64_t num_bytes) {
  uint64_t held = p->end - p->begin;
  if (held < num_bytes) {
    if (num_bytes - held > p->num_left) fail(p, "it ends in the middle; it was cut off");
    refill(p, num_bytes);
  }
  const unsigned char *found = p->buffer + p->begin;
  p->begin += num_bytes;
  return found;
}

static uint64_t take_number(struct plain *p, int num_bytes) {
  const unsigned char *bytes = take(p, (uint64_t)num_bytes);
  uint64_t number = 0;
  for (int i = num_bytes; i--;) number = number << 8 | bytes[i];
  return number;
}

/* A line of text without its end. */
static uint64_t take_line(struct plain *p, char line[MAX_LINE]) {
  for (uint64_t length = 0; length < MAX_LINE; length++) {
    line[length] = (char)*take(p, 1);
    if (line[length] == '\n') {
      line[length] = 0;
      return length;
    }
  }
  fail(p, "it holds a line that is longer than any in a snapshot");
}

/* What goes wrong at once was no pickle before. */
static _Noreturn void fail_damaged(struct plain *p, const char *what) {
  if (p->num_opcodes < 2) fail(p, "it is not a pickle; expected what torch.cuda.memory._dump_snapshot writes");
  fail(p, "it is damaged: %s", what);
}

static value pop(struct plain *p) {
  uint64_t bottom = p->marks.length ? p->marks.at[p->marks.length - 1] : 0;
  if (p->stack.length <= bottom) fail_damaged(p, "it takes a value where there is none");
  return p->stack.at[--p->stack.length];
}

static value top(struct plain *p) {
  value v = pop(p);
  p->stack.length++;
  return v;
}

static void push(struct plain *p, value v) { PUSH(p, p->stack, v); }

/* The values above the last mark, which are taken from the stack; they are there until the next push. */
static value *pop_to_mark(struct plain *p, uint64_t *num_items) {
  if (!p->marks.length) fail_damaged(p, "it looks for a mark where there is none");
  uint64_t bottom = p->marks.at[--p->marks.length];
  *num_items = p->stack.length - bottom;
  p->stack.length = bottom;
  return p->stack.at + bottom;
}

static void check_tag(struct plain *p, value v, enum tag tag) {
  bool is_tuple = tag == TAG_LIST && tag_of(v) == TAG_LIST && p->lists.at[number_of(v)].is_tuple;
  if (tag_of(v) != tag || is_tuple) fail(p, "it is damaged: it adds to what is not a %s", tag == TAG_LIST ? "list" : "dict");
}

static void remember(struct plain *p, uint64_t number) {
  value v = top(p);
  if (number > p->num_opcodes) fail(p, "it is damaged: it numbers a value with %llu", (unsigned long long)number);
  while (p->memo.length <= number) PUSH(p, p->memo, make(TAG_CONST, ABSENT));
  p->memo.at[number] = v;
}

static void recall(struct plain *p, uint64_t number) {
  if (number >= p->memo.length || p->memo.at[number] == make(TAG_CONST, ABSENT))
    fail_damaged(p, "it refers to a value that there is not");
  push(p, p->memo.at[number]);
}

static value take_text(struct plain *p, enum tag tag, uint64_t length) {
  return make_text(p, tag, (const char *)take(p, length), length);
}

/* A whole number, little-endian; what is wider than 64 bits is cut to the nearest double. */
static value take_long(struct plain *p, uint64_t length) {
  if (length > MAX_INT_BYTES) fail(p, "it holds a number of %llu bytes, more than any in a snapshot", (unsigned long long)length);
  const unsigned char *bytes = take(p, length);
  if (length <= 8) {
    uint64_t number = length && bytes[length - 1] & 0x80 ? ~(uint64_t)0 : 0;
    for (uint64_t i = length; i--;) number = number << 8 | bytes[i];
    return make_int(p, (int64_t)number);
  }
  double number = 0;
  bool is_negative = bytes[length - 1] & 0x80;
  for (uint64_t i = length; i--;) number = number * 256 + (is_negative ? 255 - bytes[i] : bytes[i]);
  PUSH(p, p->floats, is_negative ? -number - 1 : number);
  return make(TAG_WIDE, p->floats.length - 1);
}

static value take_written_number(struct plain *p, bool is_float) {
  char line[MAX_LINE], *end;
  uint64_t length = take_line(p, line);
  if (!is_float && (!strcmp(line, "00") || !strcmp(line, "01"))) return make(TAG_CONST, line[1] == '1' ? TRUE : FALSE);
  if (length && line[length - 1] == 'L') line[--length] = 0;
  errno = 0;
  value v = is_float ? make_float(p, strtod(line, &end)) : make_int(p, strtoll(line, &end, 10));
  if (!length || *end) fail_damaged(p, "it has letters where a number is to be");
  return errno ? make_float(p, strtod(line, &end)) : v;
}

static value take_double(struct plain *p) {
  const unsigned char *bytes = take(p, 8);
  uint64_t bits = 0;
  for (int i = 0; i < 8; i++) bits = bits << 8 | bytes[i];
  double number;
  memcpy(&number, &bits, 8);
  return make_float(p, number);
}

/* Text of the old protocols, on a line; quotes and escapes stay as they are written. */
static value take_written_text(struct plain *p, bool is_quoted) {
  char line[MAX_LINE];
  uint64_t length = take_line(p, line);
  bool has_quotes = is_quoted && length >= 2 && line[0] == line[length - 1] && (line[0] == '\'' || line[0] == '"');
  return has_quotes ? make_text(p, TAG_TEXT, line + 1, length - 2) : make_text(p, TAG_TEXT, line, length);
}

static uint64_t take_memo_number(struct plain *p) {
  char line[MAX_LINE], *end;
  take_line(p, line);
  uint64_t number = strtoull(line, &end, 10);
  if (end == line || *end) fail_damaged(p, "it has letters where a number is to be");
  return number;
}

static value make_tuple(struct plain *p, uint64_t num_items) {
  value v = make_list(p, true), items[3];
  for (uint64_t i = num_items; i--;) items[i] = pop(p);
  append(p, v, items, num_items);
  return v;
}

static value make_list_from_mark(struct plain *p, bool is_tuple) {
  uint64_t num_items;
  value *items = pop_to_mark(p, &num_items), v = make_list(p, is_tuple);
  append(p, v, items, num_items);
  return v;
}

static void set_items(struct plain *p, value dict, const value *items, uint64_t num_items) {
  check_tag(p, dict, TAG_DICT);
  if (num_items & 1) fail(p, "it is damaged: a key of a dict has no value");
  expect_keys(p, dict, num_items / 2);
  for (uint64_t i = 0; i < num_items; i += 2) set_item(p, dict, items[i], items[i + 1]);
}

static _Noreturn void refuse_class(struct plain *p, bool is_on_stack) {
  char module[MAX_LINE], name[MAX_LINE];
  if (!is_on_stack) {
    take_line(p, module);
    take_line(p, name);
    fail(p, "it names %.100s.%.100s; a memory snapshot holds plain values only, so it was not read", module, name);
  }
  value texts[2];
  for (int i = 2; i--;) {
    texts[i] = pop(p);
    if (tag_of(texts[i]) != TAG_TEXT) fail(p, "it names a class; a memory snapshot holds plain values only");
  }
  struct text *first = &p->texts.at[number_of(texts[0])], *second = &p->texts.at[number_of(texts[1])];
  int lengths[2] = {(int)(first->length < 100 ? first->length : 100), (int)(second->length < 100 ? second->length : 100)};
  fail(p, "it names %.*s.%.*s; a memory snapshot holds plain values only, so it was not read", lengths[0],
       p->letters.at + first->offset, lengths[1], p->letters.at + second->offset);
}

/* The opcodes that make or change a list, dict or tuple. */
static bool read_container(struct plain *p, unsigned char opcode) {
  uint64_t num_items;
  value *items, v;
  switch (opcode) {
  case ']': push(p, make_list(p, false)); return true;
  case '}': push(p, make_dict(p)); return true;
  case ')': push(p, make_list(p, true)); return true;
  case 0x85: case 0x86: case 0x87: push(p, make_tuple(p, opcode - 0x84u)); return true;
  case 't': case 'l': push(p, make_list_from_mark(p, opcode == 't')); return true;
  case 'd':
    items = pop_to_mark(p, &num_items);
    v = make_dict(p);
    set_items(p, v, items, num_items);
    push(p, v);
    return true;
  case 'a':
    v = pop(p);
    check_tag(p, top(p), TAG_LIST);
    append(p, top(p), &v, 1);
    return true;
  case 'e':
    items = pop_to_mark(p, &num_items);
    check_tag(p, top(p), TAG_LIST);
    append(p, top(p), items, num_items);
    return true;
  case 's': {
    value pair[2];
    pair[1] = pop(p);
    pair[0] = pop(p);
    set_items(p, top(p), pair, 2);
    return true;
  }
  case 'u':
    items = pop_to_mark(p, &num_items);
    set_items(p, top(p), items, num_items);
    return true;
  default: return false;
  }
}

/* The opcodes that are one value. */
static bool read_atom(struct plain *p, unsigned char opcode) {
  switch (opcode) {
  case 'N': push(p, make(TAG_CONST, NONE)); return true;
  case 0x88: push(p, make(TAG_CONST, TRUE)); return true;
  case 0x89: push(p, make(TAG_CONST, FALSE)); return true;
  case 'K': push(p, make_int(p, (int64_t)take_number(p, 1))); return true;
  case 'M': push(p, make_int(p, (int64_t)take_number(p, 2))); return true;
  case 'J': push(p, make_int(p, (int32_t)take_number(p, 4))); return true;
  case 0x8a: push(p, take_long(p, take_number(p, 1))); return true;
  case 0x8b: push(p, take_long(p, take_number(p, 4))); return true;
  case 'G': push(p, take_double(p)); return true;
  case 'I': case 'L': case 'F': push(p, take_written_number(p, opcode == 'F')); return true;
  case 'S': case 'V': push(p, take_written_text(p, opcode == 'S')); return true;
  case 0x8c: case 'U': push(p, take_text(p, TAG_TEXT, take_number(p, 1))); return true;
  case 'X': case 'T': push(p, take_text(p, TAG_TEXT, take_number(p, 4))); return true;
  case 0x8d: push(p, take_text(p, TAG_TEXT, take_number(p, 8))); return true;
  case 'C': push(p, take_text(p, TAG_BYTES, take_number(p, 1))); return true;
  case 'B': push(p, take_text(p, TAG_BYTES, take_number(p, 4))); return true;
  case 0x8e: case 0x96: push(p, take_text(p, TAG_BYTES, take_number(p, 8))); return true;
  default: return false;
  }
}

/* The opcodes that move values between stack and memo. */
static bool read_reference(struct plain *p, unsigned char opcode) {
  uint64_t num_items;
  switch (opcode) {
  case 0x94: remember(p, p->memo.length); return true;
  case 'q': remember(p, take_number(p, 1)); return true;
  case 'r': remember(p, take_number(p, 4)); return true;
  case 'p': remember(p, take_memo_number(p)); return true;
  case 'h': recall(p, take_number(p, 1)); return true;
  case 'j': recall(p, take_number(p, 4)); return true;
  case 'g': recall(p, take_memo_number(p)); return true;
  case '(': PUSH(p, p->marks, p->stack.length); return true;
  case '0': pop(p); return true;
  case '1': pop_to_mark(p, &num_items); return true;
  case '2': push(p, top(p)); return true;
  default: return false;
  }
}

/* The opcodes that are one value, and where texts are, if that is asked for. */
static bool read_noted_atom(struct plain *p, unsigned char opcode) {
  uint64_t begin = p->num_passed + p->begin - 1;
  if (!read_atom(p, opcode)) return false;
  if (p->keeps_spots && tag_of(top(p)) == TAG_TEXT)
    PUSH(p, p->spots, ((struct spot){begin, p->num_passed + p->begin, top(p)}));
  return true;
}

void read_pickle(struct plain *p) {
  if (!p->buffer) p->buffer = reserve(p, NULL, BUFFER_BYTES, &p->room, 1);
  p->stack.at = reserve(p, NULL, 1, &p->stack.room, sizeof *p->stack.at); /* there, even while it is empty */
  for (;; p->num_opcodes++) {
    unsigned char opcode = *take(p, 1);
    if (opcode == '.') break;
    if (read_reference(p, opcode) || read_noted_atom(p, opcode) || read_container(p, opcode)) continue;
    if (opcode == 0x80) {
      uint64_t protocol = take_number(p, 1);
      if (protocol > MAX_PROTOCOL) fail(p, "it is a pickle of protocol %d; up to %d are read", (int)protocol, MAX_PROTOCOL);
    } else if (opcode == 0x95) {
      take(p, 8); /* a frame: the values are in it as they would be without */
      uint64_t end = p->num_passed + p->begin;
      if (p->keeps_spots) PUSH(p, p->spots, ((struct spot){end - 9, end, make(TAG_CONST, ABSENT)}));
    } else if (opcode == 'c' || opcode == 'i' || opcode == 0x93) {
      refuse_class(p, opcode == 0x93);
    } else {
      fail_damaged(p, "it has an opcode that no memory snapshot has");
    }
  }
  p->root = pop(p);
}
