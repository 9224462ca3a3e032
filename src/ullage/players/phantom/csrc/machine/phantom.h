/* The phantom: what its parts share.
 *
 * libullage_phantom.so answers the calls that a PyTorch CUDA build makes to NVIDIA's driver and libraries. It keeps the
 * books of device memory and nothing else: kernels do not run. One C file answers for one library; this header holds
 * what they have in common, in the order in which a call meets it: how a function is exported, how a call without a
 * model of its own is answered, memory, values, and what the report is told.
 *
 * No NVIDIA header is used. Where a struct of theirs is written or read, the file that does it declares its layout.
 */
#ifndef ULLAGE_PHANTOM_H
#define ULLAGE_PHANTOM_H

#include "address_space.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* ---- Calls without a model of their own --------------------------------------------------------------------------
 * Rule: a function with an out-parameter is never answered blindly. A name goes into tables/LIBRARY.inc either as
 *   DO(name)      it only does something (a GEMM, a setter): answered with success, after every argument that is a
 *                 device address has made the bytes we know of that block unknown;
 *   REFUSE(name)  it would have to write an answer that we do not have: answered with the library's own
 *                 "not supported", and counted.
 * Everything else is written by hand in LIBRARY.c. A table is included after DO and REFUSE are defined:
 *
 *   #define DO(name) DO_RETURNING(int, name, 0)
 *   #define REFUSE(name) API int name(void) { return refuse(#name, CUBLAS_STATUS_NOT_SUPPORTED); }
 *   #include "tables/cublas.inc"
 *
 * The sixteen words of WORDS cover register and stack arguments of both x86-64 and aarch64; reading more words than the
 * caller passed reads its stack frame, which is harmless: a chance device address makes a block unknown, never wrong.
 */
#define WORDS                                                                                                       \
  uintptr_t w0, uintptr_t w1, uintptr_t w2, uintptr_t w3, uintptr_t w4, uintptr_t w5, uintptr_t w6, uintptr_t w7,   \
      uintptr_t w8, uintptr_t w9, uintptr_t w10, uintptr_t w11, uintptr_t w12, uintptr_t w13, uintptr_t w14,        \
      uintptr_t w15
#define WORD_LIST {w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15}
#define DO_RETURNING(type, name, value)             \
  API type name(WORDS) {                            \
    const uintptr_t words[] = WORD_LIST;            \
    note_library_call(__func__, words, sizeof words / sizeof *words); \
    return (value);                                 \
  }

/* What a function returns whose answer is one value: 0 with the value in its place, or `otherwise` where there is none. */
#define ANSWER(place, value, otherwise) ((place) ? (*(place) = (value), 0) : (otherwise))


/* Counts a call that was answered with "not supported"; returns status. */
int refuse(const char *name, int status);

/* A new handle: unique, never 0, points to nothing that may be dereferenced. */
void *new_handle(void);

/* ---- The devices (device.c) -------------------------------------------------------------------------------------- */
enum { MAX_DEVICES = 64 };

struct device {
  char name[256];
  int major, minor;                /* compute capability */
  uint64_t total_bytes;            /* as CUDA reports them */
  uint64_t usable_bytes;           /* of them; the rest is as if others held it */
  uint64_t context_bytes;          /* what the driver takes before the first allocation */
  bool unlimited;                  /* never runs out */
  enum address_order address_order;
  bool peer_access;                /* to the memory of the others */
  bool multicast;                  /* to the others, by an NVLink switch */
  uint64_t nccl_low_bytes, nccl_high_bytes; /* NCCL's kernels: at least and at most */
  int multiprocessors;
  int shared_bytes_per_block;      /* opt-in maximum */
  int shared_bytes_per_multiprocessor;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int l2_bytes;
  int bus_bits;                    /* memory bus width */
  int clock_khz, memory_clock_khz;
};

int num_devices(void);
const struct device *device(int index);      /* 0 <= index < num_devices() */
int current_device(void);                    /* of this thread */
bool set_current_device(int index);          /* false: no such device */

/* Devices that CUDA_VISIBLE_DEVICES hides have a place in the machine, which NVML counts by, and no index. */
int num_devices_there(void);
int place_of(int index);
int device_at(int place);                    /* -1: hidden */
void device_uuid(int place, unsigned char uuid[16]);

/* Versions of the libraries that this torch was built for, such as 13020 or 92600; `fallback` where not told. */
int library_version(const char *library, int fallback);
/* Major (0), minor (1) or patch (2) of a version that has a major one for each `unit`; false: no such part, or place for it. */
bool version_part(int version, int unit, int part, int *value);

/* ---- Device memory (memory.c) ------------------------------------------------------------------------------------ */
bool is_device_address(const void *p);
int device_of_address(const void *p);        /* -1: not a device address */
bool is_pinned_address(const void *p);       /* pinned.c */
/* The allocation from cudaMalloc & co. (not a block of PyTorch's allocator) that holds p; false: none. */
bool allocation_of(const void *p, uintptr_t *start, size_t *bytes);
void *allocate(int device_index, size_t bytes);     /* NULL: the device is full */
bool deallocate(void *p);                           /* false: not ours */
uint64_t used_bytes(int device_index);              /* context included */
uint64_t free_bytes(int device_index);
uint64_t total_bytes(int device_index);
uint64_t withheld_bytes(int device_index);
void open_context(int device_index);                /* the process uses the device, whether it allocates or not */
bool has_context(int device_index);
void need_context(void);                            /* of the current device: a call that makes one if there is none */

/* ---- Values (values.c) -------------------------------------------------------------------------------------------
 * What was copied to the device (blocks of up to 1 MiB) is kept until something may have written to the block. */
void forget(const void *p);                              /* the block that holds p: it is written */
void note_use(const void *p);                            /* the block that holds p: it is read; see uses.c */
bool forget_words(const uintptr_t *words, size_t count); /* every block that a word points into: it may be written; false:
                                                            no word is an address of the device */
void copy_values(void *dst, const void *src, size_t bytes); /* any direction; a host read of unknown bytes is counted */
/* The same of what a collective brings: a launch may have its address on the stack by chance before the recorder sees it,
 * so who answers for the values answers for these. (Not so of a copy that an operation makes to write into it.) */
void hand_on_values(void *dst, const void *src, size_t bytes);
void fill_values(void *dst, int value, size_t bytes);       /* memset */

/* ---- Work (stream.c) ----------------------------------------------------------------------------------------------
 * Whatever the device is given to do is noted on its stream: what waits for it hangs on that. */
void note_work(const void *stream);
void note_collective(const void *stream); /* of NCCL */
void follow_stream(const void *stream); /* what this thread's libraries are given next goes to that stream */
/* A call that only does something: what its words point into may be written, and if any does, it is work. */
void note_library_call(const char *name, const uintptr_t *words, size_t count);
const void *stream_of_library(void);      /* of this thread */

/* work_log.c: what the clock is to time. */
void begin_operands(void);

/* ---- What the report is told (basis.c) --------------------------------------------------------------------------- */
enum library { LIBRARY_CUBLAS, LIBRARY_CUBLASLT, LIBRARY_CUDNN, LIBRARY_CUSOLVER, LIBRARY_CUSPARSE, LIBRARY_CUFFT, LIBRARY_OTHER, LIBRARY_NCCL };

/* The library was handed this scratch memory: the block belongs to WORKSPACE, whoever allocated it. */
void saw_workspace(enum library library, const void *p, size_t bytes);

/* How much scratch memory an operation is said to need, from a model: `what` is a short stable text of static storage. */
struct scratch {
  const char *what;
  size_t low, answered, high;
};

/* The library was handed `answered` bytes of scratch memory at p; NULL where it is said to need none. The bounds are kept
 * for each call, so that the allocator's requests can be made again with them. */
void saw_scratch(enum library library, const void *p, const struct scratch *scratch);

/* An algorithm runs that was chosen by its scratch memory at p; NULL: it needs none. The requests that failed right before
 * were for those of others. */
void saw_choice(const void *p);

/* A collective sends from, or receives into, the block that holds p. */
void saw_communication(const void *p);

/* A size was answered from a model, not from knowledge: `what` is a short stable text ("cuDNN convolution forward
 * workspace"), low <= answered <= high in bytes. One entry a `what` in the report: count, and the largest answer. */
void assume_bytes(const char *what, size_t low, size_t answered, size_t high);

#endif
