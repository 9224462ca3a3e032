/* What a launch hands to its kernel.
 *
 * The sizes of a kernel's parameters are known from its code (fat_binary.c), and nothing else is read: what an earlier
 * call has left on the stack would look like an argument, another one in each run. Within a struct, what its program
 * never set still may.
 *
 * Where the code is not read, the guess is generous: the arguments of a compiled launch lie together on the caller's
 * stack, and every word there counts as one, from the first argument to the end of the frame that holds the last. A block
 * taken for an argument by chance becomes unknown too early, and is said to be used for too long, which is safe.
 */
#define _GNU_SOURCE
#include "arguments.h"

#include "phantom.h"
#include "transfers.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

/* ---- Of a known size ---------------------------------------------------------------------------------------------- */

/* A structure with a pointer is aligned as that is. The words are read where they are: a copy of them on this stack would be
 * what a later launch finds. */
static void forget_argument(const unsigned char *argument, size_t bytes) {
  size_t skipped = -(uintptr_t)argument & (sizeof(uintptr_t) - 1);
  if (bytes > skipped) forget_words((const uintptr_t *)(argument + skipped), (bytes - skipped) / sizeof(uintptr_t));
}

/* ---- Of an unknown size ------------------------------------------------------------------------------------------- */

enum { MAX_ARGUMENTS = 256, MAX_FRAMES = 16 };
static const uintptr_t MAX_ARGUMENT_BYTES = 32764; /* CUDA 12.1 and later, compute capability 7.0 and up */

static _Thread_local uintptr_t stack_low, stack_high;

/* The unwinder that the C++ library uses, which torch needs. */
static struct {
  pthread_once_t once;
  _Unwind_Reason_Code (*walk)(_Unwind_Trace_Fn, void *);
  uintptr_t (*end_below)(struct _Unwind_Context *);
} walker = {.once = PTHREAD_ONCE_INIT};

static void find_walker(void) {
  void *library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  walker.walk = dlsym(library, "_Unwind_Backtrace");
  walker.end_below = dlsym(library, "_Unwind_GetCFA");
}

static void find_stack(void) {
  pthread_attr_t attributes;
  void *low;
  size_t bytes;
  if (pthread_getattr_np(pthread_self(), &attributes)) return;
  if (!pthread_attr_getstack(&attributes, &low, &bytes)) {
    stack_low = (uintptr_t)low;
    stack_high = stack_low + bytes;
  }
  pthread_attr_destroy(&attributes);
}

static bool on_stack(uintptr_t p) { return p >= stack_low && p + sizeof p <= stack_high; }

/* Arguments kept off the stack (a member of an object): read by a call that fails, instead of faulting, on an address
 * that is none. */
static bool forget_far_argument(uintptr_t p) {
  uintptr_t words[128];
  struct iovec here = {words, sizeof words}, there = {(void *)(p & ~(uintptr_t)7), sizeof words};
  ssize_t got = p < 4096 ? -1 : process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  if (got > 0) forget_words(words, (size_t)got / sizeof *words);
  return got > 0;
}

struct frame_search {
  uintptr_t inside, end; /* end: 0 until found */
  int num_frames;
};

/* What the unwinder says of a frame is where the one below it ends. */
static _Unwind_Reason_Code visit_frame(struct _Unwind_Context *context, void *asked) {
  struct frame_search *search = asked;
  uintptr_t end = walker.end_below(context);
  if (end > search->inside) search->end = end;
  return search->end || ++search->num_frames == MAX_FRAMES ? _URC_END_OF_STACK : _URC_NO_REASON;
}

/* Where the frame that an address of the stack lies in ends; farther, where the unwinder does not know. */
static uintptr_t end_of_frame(uintptr_t p) {
  pthread_once(&walker.once, find_walker);
  struct frame_search search = {p, 0, 0};
  if (walker.walk && walker.end_below) walker.walk(visit_frame, &search);
  uintptr_t farthest = p > stack_high - MAX_ARGUMENT_BYTES ? stack_high : p + MAX_ARGUMENT_BYTES;
  return search.end && search.end < farthest ? search.end : farthest;
}

static void forget_stack(void *const *params) {
  if (!stack_high) find_stack();
  bool array_on_stack = on_stack((uintptr_t)params);
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < MAX_ARGUMENTS; i++) {
    /* Past the last argument the array holds whatever was there before it; stop at what cannot be an argument. */
    if (i && (!array_on_stack || !on_stack((uintptr_t)(params + i)))) break;
    uintptr_t p = (uintptr_t)params[i];
    if (!on_stack(p)) {
      if (high || i >= 8 || !forget_far_argument(p)) break;
      continue;
    }
    if (p < low) low = p;
    if (p > high) high = p;
  }
  if (!high) return;
  low &= ~(uintptr_t)7;
  forget_words((const uintptr_t *)low, (end_of_frame(high) - low) / sizeof(uintptr_t));
}

void forget_launch(void *const *params, const struct parameters *parameters, size_t last_bytes) {
  note_launch();
  if (!params) return;
  if (!parameters) {
    forget_stack(params);
    return;
  }
  if (parameters->count == 1 && parameters->each[0].bytes > last_bytes)
    forget_argument((const unsigned char *)params[0] + parameters->each[0].bytes - last_bytes, last_bytes);
  for (uint32_t i = 0; i < parameters->count; i++) forget_argument(params[i], parameters->each[i].bytes);
}
