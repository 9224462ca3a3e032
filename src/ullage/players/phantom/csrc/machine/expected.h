/* What a host read of unknown bytes gives in this thread, as the recorder has said before it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Writes the expected count, where one is expected and this can be it. */
bool answer_count(void *dst, size_t bytes);
/* One byte of an unknown element; zero, unless the recorder expects something else. */
unsigned char expected_byte(size_t i);
/* Fills with the expected element, over and over; false: none is expected. */
bool fill_expected(void *dst, size_t bytes);
/* Whether the expected element is what the device would hold, so that reading it is no assumption. */
bool is_expectation_true(void);
