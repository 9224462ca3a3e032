/* What a process uses of the devices, in the file that tells NVML programs outside of it.
 *
 * A directory stands for a machine; phantom/nvml/machine.py makes it. Each process that has used a device has a file
 * PID.use there, which it maps and keeps up to date (publish.c), and which the library for other programs maps too
 * (phantom/nvml/processes.c). The kernel ends what a process uses with the process: whoever reads a file looks whether
 * the process with that number and that start still runs.
 */
#ifndef ULLAGE_PUBLISHED_H
#define ULLAGE_PUBLISHED_H

#include "phantom.h"

enum { PUBLISHED_VERSION = 1, LOAD_UNKNOWN = -1 };
static const char PUBLISHED_SUFFIX[] = ".use";

struct published_device {
  uint64_t used_bytes; /* context included */
  int32_t is_used;     /* the process has a context there */
  int32_t load_percent;        /* the share of the last second, by the program's clock, in which kernels ran; or LOAD_UNKNOWN */
  int32_t memory_load_percent; /* in which memory was read or written as fast as it can be */
  int32_t unused;
};

struct published {
  uint32_t version, pid;
  uint64_t start_ticks; /* as /proc/PID/stat has it: two processes of one number differ in it */
  struct published_device devices[MAX_DEVICES]; /* by place in the machine */
};

/* When a process began, in ticks since the machine did; 0: it does not run (or has ended and waits for its parent). */
uint64_t start_ticks_of(unsigned pid);

#endif
