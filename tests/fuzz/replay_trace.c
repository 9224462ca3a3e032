/* Any ranges and events, put through the replay. Addresses and sizes come from a few values that lie close together, and
 * from the ends of 64 bits, so that most events meet another. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../src/ullage/log/csrc/rules.h"

enum { MAX_EVENTS = 1 << 12, EVENT_BYTES = 4 };

uint64_t replay_trace(uint64_t num_ranges, const int64_t *range_address, const int64_t *range_size,
                      const uint8_t *range_is_live, const uint8_t *range_splits_all, const int64_t *range_segment,
                      uint64_t num_events, const uint8_t *action, const int64_t *address, const int64_t *size,
                      const uint8_t *splits_all, const struct allocator_settings *settings, int64_t *block_bytes,
                      int *problem);

static int64_t place(uint8_t byte) {
  static const int64_t ends[] = {INT64_MIN, INT64_MIN + 1, -1, INT64_MAX, INT64_MAX - 512, (int64_t)1 << 62};
  if (byte >= 250) return ends[byte - 250];
  return byte < 128 ? byte * 512 : (int64_t)(byte - 128) << 19;
}

static int64_t length(uint8_t byte) {
  int64_t found = place(byte);
  return found < 0 ? 0 : found;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t num_bytes) {
  if (num_bytes < EVENT_BYTES) return 0;
  uint64_t num_rows = num_bytes / EVENT_BYTES - 1, num_ranges = bytes[0] < num_rows ? bytes[0] : num_rows;
  uint64_t num_events = num_rows - num_ranges < MAX_EVENTS ? num_rows - num_ranges : MAX_EVENTS;
  int64_t *wide[5];
  struct allocator_settings settings = {.max_split = place(bytes[1]), .large_segment = LARGE_SEGMENT};
  for (int i = 0; i < NUM_DIVISIONS; i++) settings.divisions[i] = bytes[2] & 8 ? 1 << (bytes[2] & 7) : 0;
  uint8_t *narrow[4];
  for (int i = 0; i < 5; i++) wide[i] = calloc(num_rows + 1, sizeof(int64_t));
  for (int i = 0; i < 4; i++) narrow[i] = calloc(num_rows + 1, 1);
  int64_t *segment = calloc(num_ranges + 1, sizeof(int64_t));
  const uint8_t *row = bytes + EVENT_BYTES;
  for (uint64_t i = 0; i < num_ranges; i++, row += EVENT_BYTES) {
    wide[0][i] = place(row[0]);
    wide[1][i] = length(row[1]);
    narrow[0][i] = row[2] & 1;
    narrow[1][i] = row[2] >> 1 & 1;
    segment[i] = row[3];
  }
  for (uint64_t i = 0; i < num_events; i++, row += EVENT_BYTES) {
    narrow[2][i] = row[0] & 15;
    narrow[3][i] = row[0] >> 7;
    wide[2][i] = place(row[1]);
    wide[3][i] = place(row[2]);
  }
  int problem = -1;
  uint64_t done = replay_trace(num_ranges, wide[0], wide[1], narrow[0], narrow[1], segment, num_events, narrow[2],
                               wide[2], wide[3], narrow[3], &settings, wide[4], &problem);
  if (done > num_events || problem < 0 || (problem == 0 && done != num_events)) abort();
  for (int i = 0; i < 5; i++) free(wide[i]);
  for (int i = 0; i < 4; i++) free(narrow[i]);
  free(segment);
  return 0;
}
