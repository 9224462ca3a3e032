/* What a host read of unknown bytes gives: counts of what an operation finds, and assumed elements.
 *
 * The recorder says so before an operation, and takes it back after it; each thread has its own.
 */
#include "expected.h"
#include "phantom.h"

#include <string.h>

static _Thread_local int64_t expected_count;
static _Thread_local bool is_count_expected, is_element_true;
static _Thread_local unsigned char element[16];
static _Thread_local size_t element_bytes; /* 0: unknown bytes read as zeros */

bool answer_count(void *dst, size_t bytes) {
  if (!is_count_expected) return false;
  int32_t narrow = (int32_t)expected_count;
  if (bytes == 4 || bytes == 8) memcpy(dst, bytes == 8 ? (void *)&expected_count : (void *)&narrow, bytes);
  else if (bytes == 1) *(char *)dst = 1; /* "are the counts in order?" */
  else return false;
  return true;
}

unsigned char expected_byte(size_t i) { return element_bytes ? element[i % element_bytes] : 0; }

bool fill_expected(void *dst, size_t bytes) {
  if (!element_bytes) return false;
  size_t done = element_bytes < bytes ? element_bytes : bytes;
  memcpy(dst, element, done);
  while (done < bytes) {
    size_t more = done < bytes - done ? done : bytes - done;
    memcpy((unsigned char *)dst + done, dst, more);
    done += more;
  }
  return true;
}

bool is_expectation_true(void) { return is_element_true; }

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* Until cleared, this thread's reads of an unknown 4- or 8-byte count are answered with this number. */
API void ullage_expect_count(int64_t count) {
  expected_count = count;
  is_count_expected = true;
}

API void ullage_expect_nothing(void) { is_count_expected = false; }

/* Until cleared, this thread's reads of unknown bytes are answered with this element. */
API void ullage_expect_element(const void *of, size_t bytes, int is_true) {
  element_bytes = bytes <= sizeof element ? bytes : 0;
  memcpy(element, of, element_bytes);
  is_element_true = is_true && element_bytes;
}

API void ullage_expect_zeros(void) {
  element_bytes = 0;
  is_element_true = false;
}
