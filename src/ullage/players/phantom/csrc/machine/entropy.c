/* Entropy codes of Zstandard: tables of finite state entropy, and Huffman codes.
 *
 * Every read is held against the end of its buffer; what does not fit is damaged.
 *
 * Source: RFC 8878, section 4.
 */
#include "entropy.h"

#include <string.h>

enum { MAX_WEIGHT_LOG = 6 };

/* ---- Bits, read from the end of a buffer to its start ------------------------------------------------------------- */

/* The last byte has a one above the last bit. */
bool open_bits(struct bits *bits, const unsigned char *start, size_t bytes) {
  if (!bytes || !start[bytes - 1]) return false;
  *bits = (struct bits){start, bytes, (int64_t)bytes * 8 - 1 - (__builtin_clz(start[bytes - 1]) - 24)};
  return true;
}

/* ---- Tables of finite state entropy ------------------------------------------------------------------------------- */

static void spread_symbols(struct fse *table, const int16_t *counts, int num_symbols, uint16_t *next) {
  int size = 1 << table->log, high = size, step = (size >> 1) + (size >> 3) + 3, position = 0;
  for (int s = 0; s < num_symbols; s++) {
    if (counts[s] == -1) table->rows[--high].symbol = (uint8_t)s;
    next[s] = counts[s] == -1 ? 1 : (uint16_t)counts[s];
  }
  for (int s = 0; s < num_symbols; s++)
    for (int i = 0; i < counts[s]; i++) {
      table->rows[position].symbol = (uint8_t)s;
      do position = (position + step) & (size - 1);
      while (position >= high);
    }
}

void build_fse(struct fse *table, const int16_t *counts, int num_symbols, int log) {
  uint16_t next[NUM_SYMBOLS];
  table->log = log;
  spread_symbols(table, counts, num_symbols, next);
  for (int i = 0; i < 1 << log; i++) {
    unsigned state = next[table->rows[i].symbol]++;
    int bits = log - (31 - __builtin_clz(state));
    table->rows[i].bits = (uint8_t)bits;
    table->rows[i].base = (uint16_t)((state << bits) - (1u << log));
  }
}

/* Bits from the start of a buffer to its end. */
static unsigned peek(const unsigned char *from, size_t bytes, size_t at, int count) {
  if (at / 8 >= bytes) return 0;
  return (unsigned)(word_at(from + at / 8, bytes - at / 8) >> (at & 7)) & ((1u << count) - 1);
}

/* How many symbols of count zero follow one: by pieces of three. */
static int count_zeros(const unsigned char *from, size_t bytes, size_t *at) {
  int zeros = 0;
  for (unsigned more = 3; more == 3; *at += 2) zeros += (int)(more = peek(from, bytes, *at, 2));
  return zeros;
}

size_t read_fse(struct fse *table, const unsigned char *from, size_t bytes, int max_log, int max_symbols) {
  int16_t counts[NUM_SYMBOLS] = {0};
  int log = (int)peek(from, bytes, 0, 4) + 5, remaining = 1 << log, num = 0;
  size_t at = 4;
  if (log > max_log) return 0;
  while (remaining > 0 && num < max_symbols) {
    int width = 32 - __builtin_clz((unsigned)remaining + 1);
    unsigned value = peek(from, bytes, at, width), low = (1u << (width - 1)) - 1;
    unsigned threshold = (1u << width) - 1 - ((unsigned)remaining + 1);
    at += (size_t)width;
    if ((value & low) < threshold) value &= low, at--;
    else if (value > low) value -= threshold;
    int count = (int)value - 1;
    remaining -= count < 0 ? 1 : count;
    counts[num++] = (int16_t)count;
    if (!count) num += count_zeros(from, bytes, &at);
  }
  size_t used = (at + 7) / 8;
  if (remaining || num > max_symbols || used > bytes) return 0;
  build_fse(table, counts, num, log);
  return used;
}

/* ---- Huffman codes of literals ------------------------------------------------------------------------------------ */

/* The last symbol's weight is not written: it fills the sum up to a power of two. */
static bool build_huffman(struct huffman *table, uint8_t *weights, int num) {
  unsigned total = 0;
  for (int i = 0; i < num; i++) total += weights[i] ? 1u << (weights[i] - 1) : 0;
  if (!total || num >= NUM_SYMBOLS) return false;
  int log = 32 - __builtin_clz(total);
  unsigned rest = (1u << log) - total;
  if (log > MAX_HUFFMAN_LOG || rest & (rest - 1)) return false;
  weights[num++] = (uint8_t)(32 - __builtin_clz(rest));
  unsigned row = 0;
  for (int weight = 1; weight <= log; weight++)
    for (int symbol = 0; symbol < num; symbol++)
      for (unsigned i = 0; weights[symbol] == weight && i < 1u << (weight - 1); i++, row++) {
        table->rows[row].symbol = (uint8_t)symbol;
        table->rows[row].bits = (uint8_t)(log + 1 - weight);
      }
  table->log = log;
  return row == 1u << log;
}

/* Weights by two states in turn, until the bits are used up; how many, or -1: damaged. */
static int read_weights(uint8_t *weights, const unsigned char *from, size_t bytes) {
  struct fse table;
  struct bits bits;
  size_t used = read_fse(&table, from, bytes, MAX_WEIGHT_LOG, MAX_HUFFMAN_LOG + 2);
  if (!used || !open_bits(&bits, from + used, bytes - used)) return -1;
  unsigned states[2];
  for (int i = 0; i < 2; i++) states[i] = (unsigned)take_bits(&bits, table.log);
  for (int num = 0, turn = 0; num < NUM_SYMBOLS - 2; turn ^= 1) {
    unsigned row = states[turn];
    weights[num++] = table.rows[row].symbol;
    states[turn] = table.rows[row].base + (unsigned)take_bits(&bits, table.rows[row].bits);
    if (bits.left >= 0) continue;
    weights[num++] = table.rows[states[turn ^ 1]].symbol;
    return num;
  }
  return -1;
}

size_t read_huffman(struct huffman *table, const unsigned char *from, size_t bytes) {
  uint8_t weights[NUM_SYMBOLS] = {0};
  if (!bytes) return 0;
  int num = from[0] - 127;
  size_t used = 1 + (num > 0 ? (size_t)(num + 1) / 2 : from[0]);
  if (used > bytes) return 0;
  if (num > 0)
    for (int i = 0; i < num; i++) weights[i] = i & 1 ? from[1 + i / 2] & 15 : from[1 + i / 2] >> 4;
  else num = read_weights(weights, from + 1, used - 1);
  for (int i = 0; i < num; i++)
    if (weights[i] > MAX_HUFFMAN_LOG) return 0;
  return num > 0 && build_huffman(table, weights, num) ? used : 0;
}

bool unpack_literals(const struct huffman *table, const unsigned char *from, size_t bytes, uint8_t *to, size_t count) {
  struct bits bits;
  if (!open_bits(&bits, from, bytes)) return false;
  for (size_t i = 0; i < count; i++) {
    unsigned row = (unsigned)take_bits(&bits, table->log);
    to[i] = table->rows[row].symbol;
    bits.left += table->log - table->rows[row].bits;
  }
  return bits.left == 0;
}
