/* What a process uses of the devices, in files that tell it the other processes of its run, and NVML programs outside.
 *
 * A directory stands for a machine: that of a run, whose processes share its devices, and the one that
 * players/phantom/nvml/machine.py makes. Each process that has used a device has a file PID.use there, which it maps and keeps
 * up to date (publish.c), and which others map too (processes.c). The kernel ends what a process uses with the process:
 * whoever reads a file looks whether the process with that number and that start still runs.
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

/* publish.c, or players/phantom/nvml/devices.c: where the file of that name is, in the directory that is read; false: nowhere. */
bool find_in_directory(const char *name, char *path, size_t room);

/* processes.c: what all processes but one use of a device. */
uint64_t used_by_processes(int place, unsigned but);

struct process_use {
  unsigned pid;
  uint64_t bytes;
};

/* The processes on a device: as many as there is room for are written; returns how many there are. */
size_t list_processes_on(int place, struct process_use *uses, size_t room);

/* Of a process that was there a moment ago it is asked anew whether it runs. */
void look_at_processes_again(void);

/* The load of a device, in percent, by those that know it; false: nobody does. */
bool load_of(int place, int *percent, int *memory_percent);

/* When a process began, in ticks since the machine did; 0: it does not run (or has ended and waits for its parent). */
uint64_t start_ticks_of(unsigned pid);

#endif
