/* The values that a pickle is read into: see plain.h. */
#include "plain.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 4, MAX_STACK = 1 << 14 };

_Noreturn void fail(struct plain *p, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(p->message, sizeof p->message, format, arguments);
  va_end(arguments);
  longjmp(p->escape, 1);
}

static void count(struct plain *p, uint64_t more, uint64_t less) {
  p->used_bytes += more - less;
  if (more > p->max_bytes || p->used_bytes > p->max_bytes)
    fail(p, "it unfolds to more than %llu bytes, more than any snapshot of its size does",
         (unsigned long long)p->max_bytes);
}

/* Room for at least so many entries; grows by half, so that a long list costs little. */
void *reserve(struct plain *p, void *at, uint64_t length, uint64_t *room, size_t width) {
  uint64_t wanted = *room + *room / 2;
  if (wanted < length) wanted = length;
  if (wanted < FIRST_ROOM) wanted = FIRST_ROOM;
  count(p, wanted * width, *room * width);
  void *grown = realloc(at, wanted * width);
  if (!grown) fail(p, "there is no memory left for it");
  *room = wanted;
  return grown;
}

/* Folded multiplication, as in wyhash. */
static uint64_t mix(uint64_t hash, uint64_t word) {
  unsigned __int128 product = (unsigned __int128)(hash ^ word) * 0x9e3779b97f4a7c15u;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_letters(struct plain *p, const char *letters, uint64_t length) {
  uint64_t hash = mix(p->seed, length), word = 0;
  for (; length >= 8; letters += 8, length -= 8) {
    memcpy(&word, letters, 8);
    hash = mix(hash ^ p->seed, word);
  }
  word = 0;
  if (length) memcpy(&word, letters, length);
  return mix(hash ^ p->seed, word);
}

static uint64_t hash_values(struct plain *p, const value *items, uint64_t length) {
  uint64_t hash = mix(p->seed, length);
  for (uint64_t i = 0; i < length; i++) hash = mix(hash ^ p->seed, items[i]);
  return hash;
}

typedef uint64_t hash_of_entry(struct plain *p, uint32_t number);

/* Puts a number into the first free place after its hash; the entry is known not to be there. */
static void put(struct table *table, uint32_t number, uint64_t hash) {
  uint32_t i = (uint32_t)(hash ^ hash >> 32) & (table->num_places - 1);
  while (table->places[i]) i = (i + 1) & (table->num_places - 1);
  table->places[i] = number;
  table->num_used++;
}

static void make_room(struct plain *p, struct table *table, hash_of_entry *hash_of) {
  if (table->num_places && table->num_used * 2 < table->num_places) return;
  struct table grown = {NULL, table->num_places ? table->num_places * 2 : 64, 0};
  if (!grown.num_places) fail(p, "it holds more different values than any snapshot does");
  count(p, grown.num_places * sizeof(uint32_t), table->num_places * sizeof(uint32_t));
  grown.places = calloc(grown.num_places, sizeof(uint32_t));
  if (!grown.places) fail(p, "there is no memory left for it");
  for (uint32_t i = 0; i < table->num_places; i++)
    if (table->places[i]) put(&grown, table->places[i], hash_of(p, table->places[i]));
  free(table->places);
  *table = grown;
}

#define FOR_EACH_CANDIDATE(table, hash, number)                                                             \
  for (uint32_t place_ = (table).num_places ? (uint32_t)((hash) ^ (hash) >> 32) & ((table).num_places - 1) : 0, \
                number = (table).num_places ? (table).places[place_] : 0;                                   \
       number; place_ = (place_ + 1) & ((table).num_places - 1), number = (table).places[place_])

value make_int(struct plain *p, int64_t number) {
  if (number >= -((int64_t)1 << 60) && number < (int64_t)1 << 60) return (value)number << 3 | TAG_INT;
  PUSH(p, p->floats, (double)number); /* wider than any address or size: to the nearest double */
  return make(TAG_WIDE, p->floats.length - 1);
}

value make_float(struct plain *p, double number) {
  PUSH(p, p->floats, number);
  return make(TAG_FLOAT, p->floats.length - 1);
}

static uint64_t hash_of_text(struct plain *p, uint32_t number) {
  struct text *text = &p->texts.at[number - 1];
  return hash_letters(p, p->letters.at + text->offset, text->length);
}

/* Number 0 of the table is no text, so the n-th text is n + 1 there; 0 where it is not known. */
static uint32_t look_up_text(struct plain *p, const char *letters, uint64_t length, uint64_t hash) {
  FOR_EACH_CANDIDATE(p->text_table, hash, number) {
    struct text *text = &p->texts.at[number - 1];
    if (text->length == length && (!length || !memcmp(p->letters.at + text->offset, letters, length))) return number;
  }
  return 0;
}

/* ABSENT where the file does not have the text. */
value find_text(struct plain *p, const char *letters, uint64_t length) {
  uint32_t number = look_up_text(p, letters, length, hash_letters(p, letters, length));
  return number ? make(TAG_TEXT, number - 1) : make(TAG_CONST, ABSENT);
}

/* Text and bytes share the letters. */
value make_text(struct plain *p, enum tag tag, const char *letters, uint64_t length) {
  uint64_t hash = hash_letters(p, letters, length);
  uint32_t number = look_up_text(p, letters, length, hash);
  if (number) return make(tag, number - 1);
  if (p->texts.length >= UINT32_MAX - 1) fail(p, "it holds more different texts than any snapshot does");
  make_room(p, &p->text_table, hash_of_text);
  uint64_t offset = p->letters.length;
  if (!p->letters.at || p->letters.room - offset < length)
    p->letters.at = reserve(p, p->letters.at, offset + length, &p->letters.room, 1);
  if (length) memcpy(p->letters.at + offset, letters, length);
  p->letters.length += length;
  PUSH(p, p->texts, ((struct text){offset, length}));
  put(&p->text_table, (uint32_t)p->texts.length, hash);
  return make(tag, p->texts.length - 1);
}

value make_list(struct plain *p, bool is_tuple) {
  PUSH(p, p->lists, ((struct list){0, 0, 0, is_tuple, NULL}));
  return make(TAG_LIST, p->lists.length - 1);
}

value make_dict(struct plain *p) {
  if (!p->shapes.length) PUSH(p, p->shapes, ((struct shape){0, 0, 0}));
  PUSH(p, p->dicts, ((struct dict){0, 0, NULL}));
  return make(TAG_DICT, p->dicts.length - 1);
}

/* The list with its items, wherever they are kept. */
const struct list *read_list(struct plain *p, value v) {
  struct list *list = &p->lists.at[number_of(v)];
  return list->content ? &p->stacks.at[list->content - 1] : list;
}

static value *grow_items(struct plain *p, value *items, uint64_t length, uint32_t *room) {
  uint64_t wide = *room;
  items = reserve(p, items, length, &wide, sizeof(value));
  if (wide > UINT32_MAX) fail(p, "it holds a list of more than 2^32 items");
  *room = (uint32_t)wide;
  return items;
}

void append(struct plain *p, value v, const value *items, uint64_t num_items) {
  struct list *list = &p->lists.at[number_of(v)];
  if (list->content) { /* a list that grows after it was shared has its own items again */
    struct list shared = p->stacks.at[list->content - 1];
    *list = (struct list){0, 0, 0, list->is_tuple, NULL};
    append(p, v, shared.items, shared.length);
    list = &p->lists.at[number_of(v)];
  }
  if (list->length + num_items > list->room)
    list->items = grow_items(p, list->items, list->length + num_items, &list->room);
  if (num_items) memcpy(list->items + list->length, items, num_items * sizeof(value));
  list->length += (uint32_t)num_items;
}

static uint64_t hash_of_stack(struct plain *p, uint32_t number) {
  struct list *list = &p->stacks.at[number - 1];
  return hash_values(p, list->items, list->length);
}

/* Keeps a list once for all that are equal: one of dicts, or a tuple of neither dicts nor lists, such as a pool's. */
static void share(struct plain *p, value v) {
  struct list *list = &p->lists.at[number_of(v)];
  if (list->content || list->length > MAX_STACK) return;
  uint32_t num_dicts = 0, num_lists = 0;
  for (uint32_t i = 0; i < list->length; i++) {
    num_dicts += tag_of(list->items[i]) == TAG_DICT;
    num_lists += tag_of(list->items[i]) == TAG_LIST;
  }
  if (num_lists || (list->is_tuple ? num_dicts : num_dicts < list->length)) return;
  uint64_t hash = hash_values(p, list->items, list->length);
  FOR_EACH_CANDIDATE(p->stack_table, hash, number) {
    struct list *known = &p->stacks.at[number - 1];
    if (known->length == list->length && (!known->length || !memcmp(known->items, list->items, list->length * sizeof(value)))) {
      count(p, 0, list->room * sizeof(value));
      free(list->items);
      *list = (struct list){0, 0, number, list->is_tuple, NULL};
      return;
    }
  }
  make_room(p, &p->stack_table, hash_of_stack);
  PUSH(p, p->stacks, *list);
  put(&p->stack_table, (uint32_t)p->stacks.length, hash);
  list = &p->lists.at[number_of(v)];
  *list = (struct list){0, 0, (uint32_t)p->stacks.length, list->is_tuple, NULL};
}

static uint64_t hash_of_shape(struct plain *p, uint32_t number) {
  struct shape *shape = &p->shapes.at[number];
  return mix(mix(p->seed, shape->parent), shape->key);
}

/* Where a key stands among those of a shape; -1 where it does not. */
int64_t find_key(struct plain *p, uint32_t shape, value key) {
  for (; shape; shape = p->shapes.at[shape].parent)
    if (p->shapes.at[shape].key == key) return p->shapes.at[shape].num_keys - 1;
  return -1;
}

/* The shape with one key more; the key is known not to be in it where there is such a shape. */
static uint32_t find_next_shape(struct plain *p, uint32_t shape, value key) {
  uint64_t hash = mix(mix(p->seed, shape), key);
  FOR_EACH_CANDIDATE(p->shape_table, hash, number) {
    struct shape *next = &p->shapes.at[number];
    if (next->parent == shape && next->key == key) return number;
  }
  return 0;
}

static uint32_t add_shape(struct plain *p, uint32_t shape, value key) {
  uint32_t num_keys = p->shapes.at[shape].num_keys;
  if (num_keys >= MAX_KEYS) fail(p, "it holds a dict of more than %d keys", MAX_KEYS);
  if (p->shapes.length >= UINT32_MAX) fail(p, "it holds more kinds of dicts than any snapshot does");
  make_room(p, &p->shape_table, hash_of_shape);
  PUSH(p, p->shapes, ((struct shape){shape, num_keys + 1, key}));
  put(&p->shape_table, (uint32_t)p->shapes.length - 1, mix(mix(p->seed, shape), key));
  return (uint32_t)p->shapes.length - 1;
}

/* Room for so many keys more, so that a dict that is made at once takes no more than it needs. */
void expect_keys(struct plain *p, value v, uint64_t num_more) {
  struct dict *dict = &p->dicts.at[number_of(v)];
  uint64_t wanted = p->shapes.at[dict->shape].num_keys + num_more;
  if (wanted > MAX_KEYS) fail(p, "it holds a dict of more than %d keys", MAX_KEYS);
  if (wanted <= dict->room) return;
  count(p, wanted * sizeof(value), dict->room * sizeof(value));
  value *grown = realloc(dict->values, wanted * sizeof(value));
  if (!grown) fail(p, "there is no memory left for it");
  dict->values = grown;
  dict->room = (uint32_t)wanted;
}

void set_item(struct plain *p, value v, value key, value item) {
  if (tag_of(key) == TAG_DICT || tag_of(key) == TAG_LIST) fail(p, "it has a dict with a key that is not a plain value");
  if (tag_of(item) == TAG_LIST) share(p, item);
  struct dict *dict = &p->dicts.at[number_of(v)];
  uint32_t next = find_next_shape(p, dict->shape, key);
  if (!next) {
    int64_t place = find_key(p, dict->shape, key);
    if (place >= 0) {
      dict->values[place] = item;
      return;
    }
    next = add_shape(p, dict->shape, key);
  }
  uint32_t num_keys = p->shapes.at[next].num_keys;
  if (num_keys > dict->room) dict->values = grow_items(p, dict->values, num_keys, &dict->room);
  dict->values[num_keys - 1] = item;
  dict->shape = next;
}

void free_values(struct plain *p) {
  for (uint64_t i = 0; i < p->lists.length; i++) free(p->lists.at[i].items);
  for (uint64_t i = 0; i < p->stacks.length; i++) free(p->stacks.at[i].items);
  for (uint64_t i = 0; i < p->dicts.length; i++) free(p->dicts.at[i].values);
  void *all[] = {p->letters.at, p->texts.at, p->lists.at, p->dicts.at, p->shapes.at, p->stacks.at, p->floats.at,
                 p->memo.at, p->stack.at, p->marks.at, p->spots.at, p->text_table.places, p->shape_table.places,
                 p->stack_table.places, p->buffer};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  free(p);
}
