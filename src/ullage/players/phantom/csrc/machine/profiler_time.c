/* The times that PyTorch's profiler reads from the processor's counter, as times of the virtual clock.
 *
 * The profiler notes the counter where an operator begins and ends, and converts it into nanoseconds since 1970 when it
 * stops, by a function object that c10 (of operators) or Kineto (of what CUPTI brings) makes. The phantom stands in front
 * of both and gives back a conversion of its own. It knows, for each call by which the host gave work or waited, the counter
 * and the clock's time (activity.c), and goes in a straight line between two calls. Before a profile, and after its last
 * call, time passes as here. So operators lie beside the work that they gave, and last as long as the clock says.
 *
 * What CUPTI brings carries the clock's own times, marked, and the conversion leaves them as they are.
 *
 * Kineto drops what ends after the profile did, by this machine's clock; so for the thread that ends it, that clock is
 * not earlier than the end of the last work (watchdog.c has std::chrono::system_clock), until it asks CUPTI for something.
 */
#define _GNU_SOURCE
#include "activity.h"
#include "libc10.h"
#include "phantom.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* std::function<int64_t(uint64_t)> of libstdc++ (bits/std_function.h): the object or its address, what copies and destroys
 * it, and what calls it. It is returned in memory, as in C a struct of this size. */
struct function {
  void *object[2];
  bool (*manage)(void **to, void *const *from, int operation);
  int64_t (*call)(void *const *object, uint64_t *ticks);
};
_Static_assert(sizeof(struct function) == 32, "libstdc++ has four words");

struct sample {
  uint64_t ticks;
  int64_t ns;
};

struct conversion {
  unsigned references;
  struct function original;
  size_t num_samples;
  struct sample samples[];
};

static const uint64_t MARK = 1ull << 62; /* neither nanoseconds since 1970 nor a counter get there */
static struct time_anchor anchor;
static bool has_anchor;
static _Thread_local int64_t least_now_ns;

uint64_t mark_time(int64_t ns) { return (uint64_t)ns | MARK; }
int64_t after_profile(int64_t ns) { return ns > least_now_ns ? ns : least_now_ns; }
void forget_end(void) { least_now_ns = 0; }
bool take_anchor(struct time_anchor *taken) { return *taken = anchor, __atomic_exchange_n(&has_anchor, false, __ATOMIC_ACQ_REL); }

/* ---- The conversion ------------------------------------------------------------------------------------------------ */

static int64_t call_original(const struct conversion *c, uint64_t ticks) { return c->original.call(c->original.object, &ticks); }

static int64_t convert(void *const *object, uint64_t *ticks) {
  const struct conversion *c = object[0];
  if (*ticks & MARK) return (int64_t)(*ticks & ~MARK);
  if (!c->num_samples || *ticks < c->samples[0].ticks) return call_original(c, *ticks);
  size_t low = 0, high = c->num_samples; /* the last sample that is not later lies in [low, high) */
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (c->samples[middle].ticks <= *ticks) low = middle;
    else high = middle;
  }
  const struct sample *from = &c->samples[low], *to = from + 1;
  if (high == c->num_samples) return from->ns + call_original(c, *ticks) - call_original(c, from->ticks);
  return from->ns + (int64_t)((double)(*ticks - from->ticks) / (double)(to->ticks - from->ticks) * (double)(to->ns - from->ns));
}

static bool manage(void **to, void *const *from, int operation) {
  enum { TYPE, ADDRESS, COPY, DESTROY };
  if (operation == TYPE || operation == ADDRESS) {
    to[0] = operation == TYPE ? NULL : (void *)from;
  } else if (operation == COPY) {
    struct conversion *c = from[0];
    __atomic_add_fetch(&c->references, 1, __ATOMIC_RELAXED);
    to[0] = c;
  } else if (operation == DESTROY) {
    struct conversion *c = to[0];
    if (__atomic_sub_fetch(&c->references, 1, __ATOMIC_ACQ_REL)) return false;
    if (c->original.manage) c->original.manage(c->original.object, c->original.object, DESTROY);
    free(c);
  }
  return false;
}

/* ---- Its samples --------------------------------------------------------------------------------------------------- */

static int64_t ns_of(double s) { return anchor.ns + (int64_t)((s - anchor.s) * 1e9); }

static void add_sample(struct conversion *c, uint64_t ticks, int64_t ns) {
  if (c->num_samples) { /* calls of two threads may come in another order than their rows */
    const struct sample *last = &c->samples[c->num_samples - 1];
    if (ticks < last->ticks) ticks = last->ticks;
    if (ns < last->ns) ns = last->ns;
  }
  c->samples[c->num_samples++] = (struct sample){ticks, ns};
}

/* The counter when the profile began: the converter has measured it first. 0: it has another layout. */
static uint64_t begin_of(const struct conversion *c, const void *converter) {
  enum { TOLERANCE_NS = 1000000 };
  struct {
    int64_t ns;
    uint64_t ticks;
  } first;
  memcpy(&first, converter, sizeof first);
  int64_t error_ns = call_original(c, first.ticks + 1) - first.ns; /* it knows nothing before */
  return error_ns > -TOLERANCE_NS && error_ns < TOLERANCE_NS ? first.ticks : 0;
}

/* From the profile's begin on: where the host was left before it, or where the first call finds it. */
static void add_samples(struct conversion *c, const struct activity *activities, size_t count, uint64_t begin) {
  size_t first = 0;
  while (first < count && activities[first].ticks < begin) first++;
  if (first == count) return;
  const struct activity *opening = &activities[first];
  anchor = (struct time_anchor){call_original(c, opening->ticks), opening->times.call_from, begin};
  add_sample(c, begin, ns_of(first ? opening[-1].times.call_until : opening->times.call_from));
  int64_t end_ns = 0;
  for (const struct activity *a = opening; a < activities + count; a++) {
    add_sample(c, a->ticks, ns_of(a->times.call_from));
    add_sample(c, a->ticks, ns_of(a->times.call_until));
    if (ns_of(a->times.end) > end_ns) end_ns = ns_of(a->times.end);
  }
  least_now_ns = end_ns + 1000;
  __atomic_store_n(&has_anchor, true, __ATOMIC_RELEASE);
}

/* `converter`: of operators; NULL: of what CUPTI brings, which is marked. */
static struct function wrap(struct function original, const void *converter) {
  size_t count = 0;
  bool has_operators = converter && is_profiled && time_activities();
  struct activity *activities = has_operators ? copy_activities(&count, false) : NULL;
  struct conversion *c = calloc(1, sizeof *c + (2 * count + 1) * sizeof *c->samples);
  if (c) {
    *c = (struct conversion){.references = 1, .original = original};
    uint64_t begin = count ? begin_of(c, converter) : 0;
    if (begin) add_samples(c, activities, count, begin);
  }
  free(activities);
  return c ? (struct function){{c, NULL}, manage, convert} : original;
}

/* ---- In front of c10 and Kineto ------------------------------------------------------------------------- */

#define MAKE_OF_C10 _ZN3c1035ApproximateClockToUnixTimeConverter13makeConverterEv
#define MAKE_OF_KINETO _ZN9libkineto35ApproximateClockToUnixTimeConverter13makeConverterEv
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)

typedef struct function (*make_converter)(void *converter);

/* libc10_cuda converts the times of memory snapshots, which stay this machine's. */
static bool is_of_profiler(const void *caller) {
  Dl_info found;
  return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, "libtorch_cpu");
}

API struct function MAKE_OF_C10(void *converter) {
  static make_converter original;
  if (!original) original = (make_converter)in_libc10(NAME_OF(MAKE_OF_C10));
  struct function made = original(converter);
  return has_virtual_clock() && is_of_profiler(__builtin_return_address(0)) ? wrap(made, converter) : made;
}

API struct function MAKE_OF_KINETO(void *converter) {
  static make_converter original;
  void *handle = original ? NULL : dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (handle) original = (make_converter)dlsym(handle, NAME_OF(MAKE_OF_KINETO));
  struct function made = original(converter);
  return has_virtual_clock() ? wrap(made, NULL) : made;
}
