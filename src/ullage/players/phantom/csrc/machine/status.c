/* The last error of each thread, as runtime and driver keep it; and handles that mean nothing. */
#include "cuda.h"

static _Thread_local int last_error;

int fail(int status) { return last_error = status; }
int last_failure(void) { return last_error; }

int take_last_failure(void) {
  int status = last_error;
  last_error = SUCCESS;
  return status;
}

void *new_handle(void) {
  static uintptr_t next = 0x1000;
  return (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}
