/* Zstandard, unpacked: nvcc packs device code so, from CUDA 12.8 on, and what a kernel's parameters are stands in there.
 *
 * One frame, without a dictionary, whose checksum is not looked at. Every read and write is held against the bounds of its
 * buffer; what does not fit is damaged. The steps have the names that the format gives them.
 *
 * Source: RFC 8878, Zstandard Compression and the 'application/zstd' Media Type.
 */
#include "zstd.h"

#include "entropy.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCK = 128 << 10 };
enum table_kind { LITERAL_LENGTHS, OFFSETS, MATCH_LENGTHS };

/* ---- A block ------------------------------------------------------------------------------------------------------ */

struct frame {
  unsigned char *start, *at, *end; /* of what is unpacked */
  struct huffman huffman;
  struct fse tables[3];
  uint64_t offsets[3];
  size_t num_literals;
  uint8_t literals[MAX_BLOCK];
};

/* Four streams side by side, after the bytes of the first three; or one. */
static bool unpack_streams(struct frame *frame, const unsigned char *from, size_t bytes, int num_streams) {
  size_t count = frame->num_literals, share = (count + 3) / 4, ends[4];
  if (num_streams == 1) return unpack_literals(&frame->huffman, from, bytes, frame->literals, count);
  if (bytes < 6 || count < 3 * share) return false;
  for (size_t i = 0, end = 6; i < 4; i++) {
    end = i < 3 ? end + from[2 * i] + 256u * from[2 * i + 1] : bytes;
    ends[i] = end;
    if (end > bytes) return false;
  }
  for (size_t i = 0; i < 4; i++) {
    size_t begin = i ? ends[i - 1] : 6, wanted = i < 3 ? share : count - 3 * share;
    if (ends[i] < begin || !unpack_literals(&frame->huffman, from + begin, ends[i] - begin, frame->literals + i * share, wanted))
      return false;
  }
  return true;
}

/* The literals of a block; the bytes of their section, or 0: damaged. */
static size_t read_literals(struct frame *frame, const unsigned char *from, size_t bytes) {
  enum { RAW, REPEATED, COMPRESSED, SAME_TABLE };
  if (!bytes) return 0;
  int type = from[0] & 3, format = from[0] >> 2 & 3;
  uint64_t head = word_at(from, bytes);
  if (type == RAW || type == REPEATED) {
    size_t header = format == 1 ? 2 : format == 3 ? 3 : 1;
    size_t count = head >> (header == 1 ? 3 : 4) & (header == 1 ? 31 : header == 2 ? 4095 : 1048575);
    size_t used = header + (type == RAW ? count : 1);
    if (count > MAX_BLOCK || used > bytes) return 0;
    if (type == RAW) memcpy(frame->literals, from + header, count);
    else memset(frame->literals, from[header], count);
    return frame->num_literals = count, used;
  }
  int width = format < 2 ? 10 : format == 2 ? 14 : 18;
  size_t header = format < 2 ? 3 : (size_t)format + 2, count = head >> 4 & ((1u << width) - 1);
  size_t packed = head >> (4 + width) & ((1u << width) - 1), used = header + packed, table = 0;
  if (count > MAX_BLOCK || used > bytes) return 0;
  frame->num_literals = count;
  if (type == COMPRESSED && !(table = read_huffman(&frame->huffman, from + header, packed))) return 0;
  if (!frame->huffman.log) return 0;
  return unpack_streams(frame, from + header + table, packed - table, format ? 4 : 1) ? used : 0;
}

static const int16_t DEFAULT_LITERAL_LENGTHS[] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2,
                                                  2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
static const int16_t DEFAULT_OFFSETS[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
static const int16_t DEFAULT_MATCH_LENGTHS[] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
static const struct { const int16_t *counts; int num, log, max_log, num_symbols; } KINDS[] = {
    [LITERAL_LENGTHS] = {DEFAULT_LITERAL_LENGTHS, 36, 6, 9, 36},
    [OFFSETS] = {DEFAULT_OFFSETS, 29, 5, 8, 32},
    [MATCH_LENGTHS] = {DEFAULT_MATCH_LENGTHS, 53, 6, 9, 53},
};

/* The table of a kind for this block; false: damaged. */
static bool read_table(struct frame *frame, enum table_kind kind, int mode, const unsigned char **from, size_t *bytes) {
  enum { PREDEFINED, ONE_SYMBOL, DESCRIBED, SAME };
  struct fse *table = &frame->tables[kind];
  size_t used = 0;
  if (mode == SAME) return table->log >= 0;
  if (mode == PREDEFINED) build_fse(table, KINDS[kind].counts, KINDS[kind].num, KINDS[kind].log);
  if (mode == ONE_SYMBOL) {
    if (!*bytes || **from >= KINDS[kind].num_symbols) return false;
    table->log = 0;
    table->rows[0].symbol = **from;
    table->rows[0].bits = table->rows[0].base = 0;
    used = 1;
  }
  if (mode == DESCRIBED && !(used = read_fse(table, *from, *bytes, KINDS[kind].max_log, KINDS[kind].num_symbols))) return false;
  *from += used;
  *bytes -= used;
  return true;
}

/* Codes of lengths: the smallest, and how many more bits say by how much it is more. */
static const uint32_t LITERAL_BASES[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11,   12,   13,   14,   15,    16,    18,
                                         20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
static const uint8_t LITERAL_BITS[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  1,  1,
                                       1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint32_t MATCH_BASES[] = {3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,  16,  17,  18,   19,   20,
                                       21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33,  34,  35,  37,   39,   41,
                                       43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
static const uint8_t MATCH_BITS[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                     0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* The distance of a match: one of the last three, or a new one, which becomes the last. */
static uint64_t take_offset(uint64_t *offsets, uint64_t value, bool has_no_literals) {
  if (value > 3) {
    offsets[2] = offsets[1], offsets[1] = offsets[0];
    return offsets[0] = value - 3;
  }
  size_t which = (size_t)value - 1 + has_no_literals;
  uint64_t offset = which < 3 ? offsets[which] : offsets[0] - 1;
  if (which > 1) offsets[2] = offsets[1];
  if (which > 0) offsets[1] = offsets[0];
  return offsets[0] = offset;
}

static bool copy_literals(struct frame *frame, size_t *from, size_t count) {
  if (count > frame->num_literals - *from || count > (size_t)(frame->end - frame->at)) return false;
  memcpy(frame->at, frame->literals + *from, count);
  frame->at += count;
  *from += count;
  return true;
}

static bool copy_match(struct frame *frame, uint64_t offset, size_t count) {
  if (!offset || offset > (uint64_t)(frame->at - frame->start) || count > (size_t)(frame->end - frame->at)) return false;
  const unsigned char *from = frame->at - offset;
  if (offset >= count) memcpy(frame->at, from, count);
  else for (size_t i = 0; i < count; i++) frame->at[i] = from[i]; /* what it writes is read again */
  frame->at += count;
  return true;
}

static void next_state(const struct fse *table, unsigned *state, struct bits *bits) {
  *state = table->rows[*state].base + (unsigned)take_bits(bits, table->rows[*state].bits);
}

static bool play_sequences(struct frame *frame, const unsigned char *from, size_t bytes, size_t count) {
  const struct fse *literals = &frame->tables[LITERAL_LENGTHS], *offsets = &frame->tables[OFFSETS],
                   *matches = &frame->tables[MATCH_LENGTHS];
  struct bits bits;
  size_t used = 0;
  if (!open_bits(&bits, from, bytes)) return false;
  unsigned literal = (unsigned)take_bits(&bits, literals->log), offset = (unsigned)take_bits(&bits, offsets->log),
           match = (unsigned)take_bits(&bits, matches->log);
  for (size_t i = 0; i < count; i++) {
    int code = offsets->rows[offset].symbol, l = literals->rows[literal].symbol, m = matches->rows[match].symbol;
    uint64_t value = (1ull << code) + take_bits(&bits, code);
    size_t match_bytes = MATCH_BASES[m] + take_bits(&bits, MATCH_BITS[m]);
    size_t literal_bytes = LITERAL_BASES[l] + take_bits(&bits, LITERAL_BITS[l]);
    if (bits.left < 0 || !copy_literals(frame, &used, literal_bytes)) return false;
    if (!copy_match(frame, take_offset(frame->offsets, value, !literal_bytes), match_bytes)) return false;
    if (i + 1 == count) break;
    next_state(literals, &literal, &bits);
    next_state(matches, &match, &bits);
    next_state(offsets, &offset, &bits);
  }
  return bits.left == 0 && copy_literals(frame, &used, frame->num_literals - used);
}

static bool unpack_block(struct frame *frame, const unsigned char *from, size_t bytes) {
  size_t used = read_literals(frame, from, bytes), none = 0;
  if (!used || used == bytes) return false;
  from += used, bytes -= used;
  size_t count = from[0], header = count < 128 ? 1 : count < 255 ? 2 : 3;
  if (bytes < header) return false;
  if (header == 2) count = ((count - 128) << 8) + from[1];
  if (header == 3) count = from[1] + 256u * from[2] + 0x7f00;
  from += header, bytes -= header;
  if (!count) return copy_literals(frame, &none, frame->num_literals);
  if (!bytes) return false;
  int modes = *from++;
  bytes--;
  for (int kind = 0; kind < 3; kind++)
    if (!read_table(frame, (enum table_kind)kind, modes >> (6 - 2 * kind) & 3, &from, &bytes)) return false;
  return play_sequences(frame, from, bytes, count);
}

/* ---- A frame ------------------------------------------------------------------------------------------------------ */

/* The bytes of a frame's header, or 0: it is none, or needs a dictionary. */
static size_t header_bytes(const unsigned char *packed, size_t bytes) {
  static const unsigned char MAGIC[] = {0x28, 0xb5, 0x2f, 0xfd};
  if (bytes < 6 || memcmp(packed, MAGIC, sizeof MAGIC) || packed[4] & 3) return 0;
  bool is_single = packed[4] & 32;
  int size = packed[4] >> 6;
  return 5 + !is_single + (size ? (size_t)1 << size : is_single);
}

static bool unpack_blocks(struct frame *frame, const unsigned char *from, size_t bytes) {
  enum { RAW, REPEATED, COMPRESSED };
  for (bool is_last = false; !is_last;) {
    if (bytes < 3) return false;
    unsigned head = from[0] | from[1] << 8 | from[2] << 16;
    size_t size = head >> 3, used = (head >> 1 & 3) == REPEATED ? 1 : size, room = (size_t)(frame->end - frame->at);
    from += 3, bytes -= 3;
    is_last = head & 1;
    if (used > bytes) return false;
    switch (head >> 1 & 3) {
    case RAW:
    case REPEATED:
      if (size > room) return false;
      if ((head >> 1 & 3) == RAW) memcpy(frame->at, from, size);
      else memset(frame->at, *from, size);
      frame->at += size;
      break;
    case COMPRESSED:
      if (!unpack_block(frame, from, used)) return false;
      break;
    default: return false;
    }
    from += used, bytes -= used;
  }
  return frame->at == frame->end;
}

bool unpack_zstd(const unsigned char *packed, size_t packed_bytes, unsigned char *to, size_t room) {
  size_t header = header_bytes(packed, packed_bytes);
  struct frame *frame = header && header <= packed_bytes ? malloc(sizeof *frame) : NULL;
  if (!frame) return false;
  frame->start = frame->at = to;
  frame->end = to + room;
  frame->huffman.log = 0;
  for (int i = 0; i < 3; i++) frame->tables[i].log = -1;
  frame->offsets[0] = 1, frame->offsets[1] = 4, frame->offsets[2] = 8;
  bool is_whole = unpack_blocks(frame, packed + header, packed_bytes - header);
  free(frame);
  return is_whole;
}
