/* The log of work, by which the virtual clock tells the time (work_log.c). */
#ifndef ULLAGE_WORK_LOG_H
#define ULLAGE_WORK_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum work_kind {
  WORK_KERNEL,      /* grid: 3, threads of a block, blocks of memory, bytes of the first eight, bytes of the others */
  WORK_PRODUCT,     /* m, n, k, batch, bytes of a number of the result */
  WORK_CONVOLUTION, /* direction, multiplications, bytes, groups */
  WORK_ATTENTION,   /* backward, batch, heads, heads of keys, queries, keys, size of a head, causal (-1: unknown) */
  WORK_COLLECTIVE,  /* which, bytes, ranks, of them on this machine (0: not known), least and most channels (0: no limit) */
  WORK_COPY,        /* direction, bytes, pinned */
  WORK_FILL,        /* bytes */
  WORK_LIBRARY,     /* bytes of blocks */
};
enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER, SEND, RECEIVE };
enum copy_direction { TO_DEVICE, TO_HOST, ON_DEVICE, BETWEEN_DEVICES };
enum { NUM_NUMBERS = 14, TF32 = 100 }; /* besides cudaDataType */

/* The program's call that a row comes from: a profiler names it. */
enum host_call {
  CALL_LAUNCH, CALL_DRIVER_LAUNCH, CALL_COPY, CALL_FILL, CALL_GRAPH,
  CALL_WAIT_FOR_STREAM, CALL_WAIT_FOR_EVENT, CALL_WAIT_FOR_DEVICE, CALL_ALLOCATE, CALL_FREE,
};

/* A piece of work; equal ones are kept once. */
struct work {
  int32_t kind, precision; /* a cudaDataType, or TF32; -1: none */
  const char *name;        /* of the function; NULL: not known */
  int64_t numbers[NUM_NUMBERS];
};

/* False: nothing is logged, and the functions below do nothing. */
extern bool is_work_logged;

/* The blocks that a launch or a call of a library is handed are collected from begin_operands (phantom.h) on. */
void see_operand(uintptr_t address, uintptr_t start, size_t bytes);

void log_work(const void *stream, const struct work *work);

struct given_kernel {
  const char *name; /* NULL: not known */
  unsigned grid[3], block[3];
  void *const *params;
  size_t first_bytes; /* of the first argument; SIZE_MAX: not known */
  bool is_by_driver; /* launched by a call of the driver */
};
void log_kernel(const void *stream, const struct given_kernel *kernel);
void log_library_call(const void *stream, const char *name);
void log_graph(const void *stream, uint32_t graph);

/* Events: the number under which a record is known; the stream's wait, and the host's. */
uint64_t log_record(int lane);
void log_wait(int lane, uint64_t record);
void log_host_wait_for_event(uint64_t record);
void log_host_wait_for_lane(int lane, enum host_call call);
void log_host_wait_for_device(enum host_call call);

#endif
