/* CUPTI's activity records, of the work that the device was given while a profiler records (machine/activity.c).
 *
 * A profiler gives buffers and enables kinds of records. When it flushes, the buffers are filled: for each call the ids that
 * tell which operator it belongs to, the call itself, and the work, with the virtual clock's times. A record of a library's
 * call says what was called; the names of the kernels that the library would have launched are not known.
 *
 * Layouts: those of CUpti_ActivityKernel9 to 13, CUpti_ActivityMemcpy5 to 7, CUpti_ActivityMemset4 and 5, CUpti_ActivityAPI and
 * CUpti_ActivityExternalCorrelation, read in cupti_activity.h of the PyPI wheels nvidia-cuda-cupti-cu12 12.8.90 and
 * nvidia-cuda-cupti 13.5.25. The fields that are written have the same places in all of them; newer structs are longer, so
 * a record has room to spare. Numbers of calls: cupti_runtime_cbid.h and cupti_driver_cbid.h of the same wheels.
 */
#include "activity.h"
#include "phantom.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12, NOT_SUPPORTED = 27 };
enum { MEMCPY = 1, MEMSET = 2, KERNEL = 3, DRIVER = 4, RUNTIME = 5, CONCURRENT_KERNEL = 10, EXTERNAL_CORRELATION = 39, NUM_KINDS = 64 };
enum { COPY_TO_DEVICE = 1, COPY_TO_HOST = 2, COPY_ON_DEVICE = 8, COPY_BETWEEN_DEVICES = 10 };
enum { PAGEABLE = 1, PINNED = 2, DEVICE_MEMORY = 3 };
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2 };
enum { MAX_NAMES = 512, NAME_BYTES = 128, DEFAULT_STREAM = 7 };

struct kernel_record {
  uint32_t kind;
  uint8_t cache[2];
  uint16_t registers;
  uint32_t cache_partition[2];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared_bytes, dynamic_shared_bytes;
  uint32_t local_bytes, local_total_bytes, correlation;
  int64_t grid_id;
  const char *name;
  uint64_t unknown[18]; /* all that newer ones have */
};
_Static_assert(offsetof(struct kernel_record, start) == 16 && offsetof(struct kernel_record, grid) == 52 &&
               offsetof(struct kernel_record, correlation) == 92 && offsetof(struct kernel_record, name) == 104, "Kernel9");

struct copy_record {
  uint32_t kind;
  uint8_t direction, from, to, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint64_t unknown[12];
};
_Static_assert(offsetof(struct copy_record, bytes) == 8 && offsetof(struct copy_record, correlation) == 44, "Memcpy5");

struct fill_record {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint16_t flags, memory;
  uint64_t unknown[12];
};
_Static_assert(offsetof(struct fill_record, start) == 16 && offsetof(struct fill_record, memory) == 50, "Memset4");

struct call_record {
  uint32_t kind, call;
  uint64_t start, end;
  uint32_t process, thread, correlation, status;
};
_Static_assert(sizeof(struct call_record) == 40, "CUpti_ActivityAPI");

struct external_record {
  uint32_t kind, external_kind;
  uint64_t external;
  uint32_t correlation, reserved;
};
_Static_assert(sizeof(struct external_record) == 24, "CUpti_ActivityExternalCorrelation");

/* What belongs to one call stays in one buffer: Kineto reads buffers by their addresses. */
enum { CALL_BYTES = NUM_CUSTOM_KINDS * sizeof(struct external_record) + sizeof(struct call_record) + sizeof(struct kernel_record) };

static const struct {
  uint32_t number;
  const char *name;
} CALLS[] = {
    [CALL_LAUNCH] = {211, "cudaLaunchKernel_v7000"},
    [CALL_DRIVER_LAUNCH] = {307, "cuLaunchKernel"},
    [CALL_COPY] = {41, "cudaMemcpyAsync_v3020"},
    [CALL_FILL] = {51, "cudaMemsetAsync_v3020"},
    [CALL_GRAPH] = {311, "cudaGraphLaunch_v10000"},
    [CALL_WAIT_FOR_STREAM] = {131, "cudaStreamSynchronize_v3020"},
    [CALL_WAIT_FOR_EVENT] = {137, "cudaEventSynchronize_v3020"},
    [CALL_WAIT_FOR_DEVICE] = {165, "cudaDeviceSynchronize_v3020"},
    [CALL_ALLOCATE] = {20, "cudaMalloc_v3020"},
    [CALL_FREE] = {22, "cudaFree_v3020"},
};
enum { NUM_CALLS = sizeof CALLS / sizeof *CALLS };

static void (*request_buffer)(uint8_t **buffer, size_t *bytes, size_t *max_records);
static void (*complete_buffer)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes);
static bool has_own_timestamps; /* the profiler converts times itself (profiler_time.c) */
static uint64_t enabled_kinds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the buffer */
static uint8_t *buffer;
static size_t buffer_bytes, used_in_buffer;

/* ---- Buffers ------------------------------------------------------------------------------------------------------- */

static void open_buffer(void) {
  size_t max_records = 0;
  if (buffer || !request_buffer) return;
  request_buffer(&buffer, &buffer_bytes, &max_records);
  used_in_buffer = 0;
}

static void close_buffer(void) {
  if (buffer && complete_buffer) complete_buffer(NULL, 0, buffer, buffer_bytes, used_in_buffer);
  buffer = NULL;
}

/* A profiler flushes only if it was asked for a buffer before. */
static void open_buffer_once(void) {
  if (__atomic_load_n(&buffer, __ATOMIC_RELAXED)) return;
  pthread_mutex_lock(&lock);
  open_buffer();
  pthread_mutex_unlock(&lock);
}

static void put(const void *record, size_t bytes) {
  memcpy(buffer + used_in_buffer, record, bytes);
  used_in_buffer += bytes;
}

static size_t bytes_of_record(uint32_t kind) {
  switch (kind) {
    case KERNEL: case CONCURRENT_KERNEL: return sizeof(struct kernel_record);
    case MEMCPY: return sizeof(struct copy_record);
    case MEMSET: return sizeof(struct fill_record);
    case DRIVER: case RUNTIME: return sizeof(struct call_record);
    default: return sizeof(struct external_record);
  }
}

API int cuptiActivityGetNextRecord(uint8_t *from, size_t bytes, void **record) {
  if (!record) return INVALID_PARAMETER;
  uint8_t *next = *record ? (uint8_t *)*record + bytes_of_record(*(uint32_t *)*record) : from;
  if (next >= from + bytes) return MAX_LIMIT_REACHED;
  *record = next;
  return SUCCESS;
}
API int cuptiActivityGetNextRecord_v2(void *subscriber, uint8_t *from, size_t bytes, void **record) {
  return (void)subscriber, cuptiActivityGetNextRecord(from, bytes, record);
}

/* ---- Names --------------------------------------------------------------------------------------------------------- */

static const char *plain_name(const struct work *work) {
  static const char *const COLLECTIVES[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "all-to-all (NCCL)", "ncclBroadcast",
                                            "ncclReduce", "gather (NCCL)", "scatter (NCCL)", "ncclSend", "ncclRecv"};
  switch (work->kind) {
    case WORK_PRODUCT: return "matrix product (cuBLAS)";
    case WORK_CONVOLUTION: return "convolution (cuDNN)";
    case WORK_ATTENTION: return work->numbers[0] ? "attention backward (cuDNN)" : "attention (cuDNN)";
    case WORK_COLLECTIVE: return COLLECTIVES[work->numbers[0]];
    default: return work->name ? work->name : "kernel without a name";
  }
}

/* The function's own name of a launch; else what was called, with the mark that it is no kernel's name. */
static const char *name_of(const struct work *work) {
  static char marked[MAX_NAMES][NAME_BYTES];
  static size_t num_marked;
  if (work->kind == WORK_KERNEL && work->name) return work->name;
  char name[NAME_BYTES];
  snprintf(name, sizeof name, "%.100s [ullage phantom]", plain_name(work));
  for (size_t i = 0; i < num_marked; i++)
    if (!strcmp(marked[i], name)) return marked[i];
  if (num_marked == MAX_NAMES) return "library call [ullage phantom]";
  return memcpy(marked[num_marked++], name, sizeof name);
}

API int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
  if (!name) return INVALID_PARAMETER;
  for (size_t i = 0; i < NUM_CALLS; i++)
    if (CALLS[i].number == number && domain == (i == CALL_DRIVER_LAUNCH ? DOMAIN_DRIVER : DOMAIN_RUNTIME))
      return *name = CALLS[i].name, SUCCESS;
  *name = "unknown"; /* some callers print it without looking at the status */
  return refuse("cuptiGetCallbackName", NOT_SUPPORTED);
}

/* ---- Records ------------------------------------------------------------------------------------------------------- */

static uint64_t timestamp(const struct time_anchor *anchor, double s) {
  int64_t ns = anchor->ns + (int64_t)((s - anchor->s) * 1e9);
  return has_own_timestamps ? mark_time(ns) : (uint64_t)ns;
}

static bool is_wanted(const struct activity *a, int kind) { return a->kinds >> kind & 1; }

static void put_call(const struct activity *a, const struct time_anchor *anchor, double until) {
  uint32_t kind = a->call == CALL_DRIVER_LAUNCH ? DRIVER : RUNTIME;
  for (uint32_t i = 0; i < NUM_CUSTOM_KINDS; i++)
    if (a->external[i] && is_wanted(a, EXTERNAL_CORRELATION))
      put(&(struct external_record){EXTERNAL_CORRELATION, FIRST_CUSTOM_KIND + i, a->external[i], a->correlation, 0},
          sizeof(struct external_record));
  if (!is_wanted(a, (int)kind)) return;
  put(&(struct call_record){kind, CALLS[a->call].number, timestamp(anchor, a->times.call_from), timestamp(anchor, until),
                            (uint32_t)getpid(), a->thread, a->correlation, 0},
      sizeof(struct call_record));
}

static void put_copy(const struct activity *a, uint64_t start, uint64_t end, uint32_t stream) {
  static const uint8_t DIRECTIONS[] = {[TO_DEVICE] = COPY_TO_DEVICE, [TO_HOST] = COPY_TO_HOST, [ON_DEVICE] = COPY_ON_DEVICE,
                                       [BETWEEN_DEVICES] = COPY_BETWEEN_DEVICES};
  const int64_t *numbers = a->work.numbers;
  uint8_t host = numbers[2] ? PINNED : PAGEABLE;
  put(&(struct copy_record){.kind = MEMCPY, .direction = DIRECTIONS[numbers[0]], .bytes = (uint64_t)numbers[1], .start = start,
                            .from = numbers[0] == TO_DEVICE ? host : DEVICE_MEMORY, .to = numbers[0] == TO_HOST ? host : DEVICE_MEMORY,
                            .end = end, .device = a->device, .context = a->device + 1u, .stream = stream, .correlation = a->correlation},
      sizeof(struct copy_record));
}

static void put_kernel(const struct activity *a, uint64_t start, uint64_t end, uint32_t stream, uint32_t kind) {
  struct kernel_record record = {.kind = kind, .start = start, .end = end, .completed = end, .device = a->device, .stream = stream,
                                 .context = a->device + 1u, .correlation = a->correlation, .grid_id = a->correlation,
                                 .grid = {1, 1, 1}, .block = {1, 1, 1}, .name = name_of(&a->work)};
  for (int i = 0; i < 3 && a->work.kind == WORK_KERNEL; i++) {
    record.grid[i] = (int32_t)a->work.numbers[i];
    record.block[i] = (int32_t)a->block[i];
  }
  put(&record, sizeof record);
}

static void put_work(const struct activity *a, const struct time_anchor *anchor) {
  uint64_t start = timestamp(anchor, a->times.start), end = timestamp(anchor, a->times.end);
  uint32_t stream = a->lane < MAX_DEVICES ? DEFAULT_STREAM : a->lane, kernel = is_wanted(a, KERNEL) ? KERNEL : CONCURRENT_KERNEL;
  if (a->work.kind == WORK_COPY) {
    if (is_wanted(a, MEMCPY)) put_copy(a, start, end, stream);
  } else if (a->work.kind == WORK_FILL) {
    if (is_wanted(a, MEMSET))
      put(&(struct fill_record){.kind = MEMSET, .bytes = (uint64_t)a->work.numbers[0], .start = start, .end = end, .device = a->device,
                                .context = a->device + 1u, .stream = stream, .correlation = a->correlation, .memory = DEVICE_MEMORY},
          sizeof(struct fill_record));
  } else if (is_wanted(a, (int)kernel)) {
    put_kernel(a, start, end, stream, kernel);
  }
}

/* A copy that the host waits for is one call, and two rows of the log. */
static bool is_end_of_copy(const struct activity *a, const struct activity *next) {
  return a->call == CALL_COPY && a->is_work && next->call == CALL_COPY && !next->is_work && next->thread == a->thread;
}

/* While a profile warms up it records, too; by this machine's clock that may lie within the profile. */
static bool is_before(const struct activity *a, const struct time_anchor *anchor) {
  return a->ticks < anchor->begin && a->times.end <= anchor->s;
}

static void put_all(const struct activity *activities, size_t count, const struct time_anchor *anchor) {
  for (size_t i = 0; i < count; i++) {
    const struct activity *a = &activities[i];
    if (is_before(a, anchor)) continue;
    bool is_held = i + 1 < count && is_end_of_copy(a, a + 1);
    if (buffer && buffer_bytes - used_in_buffer < CALL_BYTES) close_buffer();
    open_buffer();
    if (!buffer || buffer_bytes < CALL_BYTES) return;
    put_call(a, anchor, a[is_held].times.call_until);
    if (a->is_work) put_work(a, anchor);
    i += is_held;
  }
}

/* ---- What a profiler asks for --------------------------------------------------------------------------------------- */

/* Of a profile that has not ended, Kineto throws away what it flushes. */
API int cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  struct time_anchor anchor;
  size_t count = 0;
  forget_end();
  if (!has_virtual_clock() || !time_activities()) return SUCCESS;
  struct activity *activities = copy_activities(&count, true);
  bool has_anchor = take_anchor(&anchor);
  if (!has_anchor && count) anchor = (struct time_anchor){activities[0].ns, activities[0].times.call_from, 0};
  if (count && (has_anchor || !has_own_timestamps)) {
    pthread_mutex_lock(&lock);
    put_all(activities, count, &anchor);
    if (used_in_buffer) close_buffer();
    pthread_mutex_unlock(&lock);
  }
  free(activities);
  return SUCCESS;
}
API int cuptiActivityFlush(void *context, uint32_t stream, uint32_t flag) { return (void)context, (void)stream, cuptiActivityFlushAll(flag); }

API int cuptiActivityRegisterCallbacks(void (*request)(uint8_t **, size_t *, size_t *),
                                       void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t)) {
  request_buffer = request;
  complete_buffer = complete;
  on_activity(open_buffer_once);
  return SUCCESS;
}

API int cuptiActivityRegisterTimestampCallback(uint64_t (*callback)(void)) {
  has_own_timestamps = callback;
  return SUCCESS;
}

static int enable(unsigned kind, bool is_enabled) {
  const uint64_t of_work = 1u << MEMCPY | 1u << MEMSET | 1u << KERNEL | 1u << DRIVER | 1u << RUNTIME | 1u << CONCURRENT_KERNEL;
  if (kind >= NUM_KINDS) return SUCCESS; /* of which no record is made */
  uint64_t bit = 1ull << kind;
  enabled_kinds = is_enabled ? enabled_kinds | bit : enabled_kinds & ~bit;
  want_activities(request_buffer && enabled_kinds & of_work ? enabled_kinds : 0);
  return SUCCESS;
}

API int cuptiActivityEnable(unsigned kind) { return enable(kind, true); }
API int cuptiActivityDisable(unsigned kind) { return forget_end(), enable(kind, false); }
