/* See descriptor.h. */
#include "descriptor.h"

#include <stdlib.h>
#include <string.h>

enum { HEAP_BYTES = 1024, MAX_CAPACITY = 60000 };

bool begin_attributes(void *memory, size_t bytes, uint32_t magic) {
  struct attributes *a = memory;
  if (!memory || bytes < sizeof *a) return false;
  memset(memory, 0, bytes);
  size_t room = bytes - sizeof *a;
  a->capacity = (uint16_t)(room < MAX_CAPACITY ? room : MAX_CAPACITY);
  a->magic = magic;
  return true;
}

struct attributes *new_attributes(uint32_t magic) {
  struct attributes *a = malloc(HEAP_BYTES);
  if (a) begin_attributes(a, HEAP_BYTES, magic);
  return a;
}

bool is_attributes(const void *descriptor, uint32_t magic) {
  return descriptor && ((const struct attributes *)descriptor)->magic == magic;
}

bool free_attributes(void *descriptor, uint32_t magic) {
  if (!is_attributes(descriptor, magic)) return false;
  ((struct attributes *)descriptor)->magic = 0;
  free(descriptor);
  return true;
}

/* An entry: a byte (attribute, and how long: 4, 8 or other), for other lengths a byte with the length, the bytes. Tight,
 * because cuBLASLt 12 gives a matrix layout with all its attributes no more than 64 bytes. */
enum { OTHER = 0, FOUR = 1, EIGHT = 2, MAX_ATTRIBUTE = 63 };

static unsigned length_code(size_t bytes) { return bytes == 4 ? FOUR : bytes == 8 ? EIGHT : OTHER; }
static size_t entry_header(const unsigned char *entry) { return entry[0] >> 6 == OTHER ? 2 : 1; }
static size_t entry_length(const unsigned char *entry) {
  return entry[0] >> 6 == FOUR ? 4 : entry[0] >> 6 == EIGHT ? 8 : entry[1];
}

static const unsigned char *find_entry(const struct attributes *a, int attribute) {
  const unsigned char *entry = a->entries;
  for (; entry < a->entries + a->used; entry += entry_header(entry) + entry_length(entry))
    if ((entry[0] & MAX_ATTRIBUTE) == attribute) return entry;
  return NULL;
}

bool set_attribute(void *descriptor, int attribute, const void *value, size_t bytes) {
  struct attributes *a = descriptor;
  if (!value || bytes > 255 || attribute < 0 || attribute > MAX_ATTRIBUTE) return false;
  unsigned char *entry = (unsigned char *)find_entry(a, attribute);
  if (!entry) {
    unsigned code = length_code(bytes);
    size_t whole = bytes + (code == OTHER ? 2 : 1);
    if (a->used + whole > a->capacity) return false;
    entry = a->entries + a->used;
    entry[0] = (unsigned char)(attribute | code << 6);
    if (code == OTHER) entry[1] = (unsigned char)bytes;
    a->used = (uint16_t)(a->used + whole);
  }
  if (entry_length(entry) != bytes) return false;
  memcpy(entry + entry_header(entry), value, bytes);
  return true;
}

size_t get_attribute(const void *descriptor, int attribute, void *value, size_t bytes) {
  const unsigned char *entry = attribute < 0 || attribute > MAX_ATTRIBUTE ? NULL : find_entry(descriptor, attribute);
  if (!entry) return 0;
  size_t length = entry_length(entry);
  if (value && bytes >= length) memcpy(value, entry + entry_header(entry), length);
  return length;
}

uint64_t attribute_number(const void *descriptor, int attribute, uint64_t fallback) {
  uint64_t wide = 0;
  uint32_t narrow = 0;
  switch (get_attribute(descriptor, attribute, &wide, sizeof wide)) {
    case 8: return wide;
    case 4: get_attribute(descriptor, attribute, &narrow, sizeof narrow); return narrow;
    default: return fallback;
  }
}

void set_number(void *descriptor, int attribute, uint64_t value, size_t bytes) {
  uint32_t narrow = (uint32_t)value;
  set_attribute(descriptor, attribute, bytes == 4 ? (const void *)&narrow : (const void *)&value, bytes);
}
