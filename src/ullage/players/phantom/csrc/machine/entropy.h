/* Entropy codes of Zstandard (entropy.c). */
#ifndef ULLAGE_ENTROPY_H
#define ULLAGE_ENTROPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAX_LOG = 9, MAX_HUFFMAN_LOG = 11, NUM_SYMBOLS = 256 };

static inline uint64_t word_at(const unsigned char *p, size_t bytes) { /* the bytes behind the end are zeros */
  uint64_t word = 0;
  memcpy(&word, p, bytes < sizeof word ? bytes : sizeof word);
  return word;
}

/* Bits, read from the end of a buffer to its start. */
struct bits {
  const unsigned char *start;
  size_t bytes;
  int64_t left; /* below 0: more were read than there are; they are zeros */
};

bool open_bits(struct bits *bits, const unsigned char *start, size_t bytes); /* false: damaged */

/* At most 56. */
static inline uint64_t take_bits(struct bits *bits, int count) {
  int64_t at = bits->left -= count;
  if (at < 0) {
    if (at <= -count) return 0;
    return (word_at(bits->start, bits->bytes) & ((1ull << (count + at)) - 1)) << -at;
  }
  size_t byte = (size_t)at >> 3;
  return word_at(bits->start + byte, bits->bytes - byte) >> (at & 7) & ((1ull << count) - 1);
}

/* Finite state entropy. */
struct fse {
  struct { uint16_t base; uint8_t symbol, bits; } rows[1 << MAX_LOG];
  int log; /* -1: there is none yet */
};

/* The counts of symbols, -1 for such that are rarer than one, add up to 1 << log. */
void build_fse(struct fse *table, const int16_t *counts, int num_symbols, int log);

/* Reads a table's description; its bytes, or 0: damaged. */
size_t read_fse(struct fse *table, const unsigned char *from, size_t bytes, int max_log, int max_symbols);

struct huffman {
  struct { uint8_t symbol, bits; } rows[1 << MAX_HUFFMAN_LOG];
  int log; /* 0: there is none yet */
};

/* Reads a table's description; its bytes, or 0: damaged. */
size_t read_huffman(struct huffman *table, const unsigned char *from, size_t bytes);

/* One stream of exactly `count` literals; false: damaged. */
bool unpack_literals(const struct huffman *table, const unsigned char *from, size_t bytes, uint8_t *to, size_t count);

#endif
