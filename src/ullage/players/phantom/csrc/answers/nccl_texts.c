/* NCCL: its version, and what it says of errors. */
#include "phantom.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 4 };

API int ncclGetVersion(int *version) { return ANSWER(version, library_version("nccl", 23007), INVALID_ARGUMENT); }

API const char *ncclGetErrorString(int status) {
  static const char *const TEXTS[] = {"no error", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)", "internal error", "invalid argument", "invalid usage",
      "remote process exited or there was a network error", "NCCL operation in progress", "timeout"};
  return status >= 0 && status < (int)(sizeof TEXTS / sizeof *TEXTS) ? TEXTS[status] : "unknown result code";
}

API const char *ncclGetLastError(const void *c) {
  (void)c;
  return "";
}

/* The names under which profilers that wrap ncclX call the original. */
#define PROFILED(name) API __typeof__(name) p##name __attribute__((alias(#name)));
PROFILED(ncclGetErrorString)
PROFILED(ncclGetLastError)
PROFILED(ncclGetVersion)
