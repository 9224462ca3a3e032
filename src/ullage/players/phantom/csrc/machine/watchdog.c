/* The watchdogs of PyTorch's process groups look when there is something to see, and not by the clock.
 *
 * ProcessGroupNCCL has a thread that asks every 100 ms which collectives are done. What is done leaves its list, and the
 * tensors of a collective that the program has not waited for are let go of at the group's next collective
 * (ProcessGroupNCCL::Watchdog::runLoop, ProcessGroupNCCL::workEnqueue). So whether a watchdog looked between two
 * collectives decides how much is allocated. let_watchdogs_look() has each of them look once, and waits until it has.
 *
 * A watchdog is known by the name that it gives itself. It rests in std::condition_variable::wait_for, which waits with
 * pthread_cond_timedwait and then reads two clocks, to see whether its time has come; the phantom stands in front of these
 * three, and to wake a watchdog it puts both clocks ahead once. A thread of a group names itself first of all, and whoever started
 * it waits here until it has, so that no watchdog is overlooked.
 *
 * Groups of torchcomms' kind (c10d::nccl2, the default since PyTorch 2.15) need none of this: each of their collectives
 * looks itself.
 */
#define _GNU_SOURCE
#include "watchdog.h"
#include "activity.h"
#include "phantom.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum clock { SYSTEM, STEADY, NUM_CLOCKS };
enum { MILLISECOND = 1000000, SECOND = 1000000000, PATIENCE_S = 2 };

/* One of the threads. `cond`: what it rests at; NULL: it is looking. */
struct watchdog {
  pthread_cond_t *cond;
  int64_t ahead_ns[NUM_CLOCKS]; /* when they are read next */
  bool is_wanted, is_looking;
  struct watchdog *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct watchdog *watchdogs;
static unsigned num_named;
static pthread_key_t at_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local struct watchdog *self;

static void *next_of(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) abort();
  return found;
}

typedef int (*timed_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static timed_wait real_wait(void) {
  static timed_wait wait;
  timed_wait known = __atomic_load_n(&wait, __ATOMIC_RELAXED);
  if (!known) __atomic_store_n(&wait, known = (timed_wait)next_of("pthread_cond_timedwait"), __ATOMIC_RELAXED);
  return known;
}

static int64_t now_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (int64_t)time.tv_sec * SECOND + time.tv_nsec;
}

static struct timespec as_time(int64_t ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }

/* With the lock held. */
static void wait_a_moment(void) {
  struct timespec until = as_time(now_ns(CLOCK_REALTIME) + MILLISECOND);
  real_wait()(&changed, &lock, &until);
}

/* ---- Which threads they are -------------------------------------------------------------------------------------- */

static void forget_watchdog(void *w) {
  pthread_mutex_lock(&lock);
  for (struct watchdog **p = &watchdogs; *p; p = &(*p)->next)
    if (*p == w) {
      *p = (*p)->next;
      break;
    }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  free(w);
}

static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }
static void begin_child(void) { /* its parent's threads are not here */
  watchdogs = NULL;
  pthread_mutex_unlock(&lock);
}

static void get_ready(void) {
  pthread_key_create(&at_end, forget_watchdog);
  pthread_atfork(hold, let_go, begin_child);
}

static void note_watchdog(void) {
  struct watchdog *w = calloc(1, sizeof *w);
  if (!w || self) {
    free(w);
    return;
  }
  pthread_once(&once, get_ready);
  pthread_setspecific(at_end, self = w);
  pthread_mutex_lock(&lock);
  w->is_looking = true;
  w->next = watchdogs;
  watchdogs = w;
  pthread_mutex_unlock(&lock);
}

API int pthread_setname_np(pthread_t thread, const char *name) {
  static int (*next)(pthread_t, const char *);
  if (!next) next = (int (*)(pthread_t, const char *))next_of("pthread_setname_np");
  if (!strncmp(name, "pt_nccl_", 8)) {
    if (!strcmp(name, "pt_nccl_watchdg")) note_watchdog();
    pthread_mutex_lock(&lock);
    num_named++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  }
  return next(thread, name);
}

/* std::thread passes an object of a class that names what the thread runs: one method of a process group, its watchdog
 * or its monitor. */
static bool is_of_group(void *(*start)(void *), void *argument) {
  static void *(*of_library)(void *);
  Dl_info info;
  if (start != of_library) {
    if (of_library || !dladdr((void *)start, &info) || !strstr(info.dli_fname, "libstdc++")) return false;
    of_library = start;
  }
  void *const *table = *(void *const *const *)argument;
  const char *class_name = ((const char *const *)table[-1])[1];
  return strstr(class_name, "IJMN4c10d16ProcessGroupNCCL") != NULL;
}

API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!next) next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))next_of("pthread_create");
  bool has_name = is_of_group(start, argument);
  unsigned before = __atomic_load_n(&num_named, __ATOMIC_RELAXED);
  int status = next(thread, attributes, start, argument);
  int64_t deadline = now_ns(CLOCK_MONOTONIC) + (int64_t)PATIENCE_S * SECOND;
  pthread_mutex_lock(&lock);
  while (has_name && !status && num_named == before && now_ns(CLOCK_MONOTONIC) < deadline) wait_a_moment();
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- How they rest ----------------------------------------------------------------------------------------------- */

#define CLOCK_OF(clock) _ZNSt6chrono3_V2##clock##3nowEv /* std::chrono::clock::now */

static int64_t read_clock(enum clock number, clockid_t clock) {
  int64_t now = now_ns(clock);
  if (!self) return now;
  now += self->ahead_ns[number];
  self->ahead_ns[number] = 0;
  return now;
}

API int64_t CLOCK_OF(12system_clock)(void) { return after_profile(read_clock(SYSTEM, CLOCK_REALTIME)); }
API int64_t CLOCK_OF(12steady_clock)(void) { return read_clock(STEADY, CLOCK_MONOTONIC); }

/* With the lock held: the rest that was to last until then is over. */
static int look(const struct timespec *until) {
  int64_t left = (int64_t)until->tv_sec * SECOND + until->tv_nsec - now_ns(CLOCK_REALTIME);
  for (int i = 0; left > 0 && i < NUM_CLOCKS; i++) self->ahead_ns[i] = left + MILLISECOND;
  self->is_wanted = false;
  self->is_looking = true;
  return ETIMEDOUT;
}

API int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
  if (!self) return real_wait()(cond, mutex, until);
  pthread_mutex_lock(&lock);
  int status = 0;
  self->is_looking = false;
  pthread_cond_broadcast(&changed);
  if (self->is_wanted) status = look(until);
  else self->cond = cond;
  pthread_mutex_unlock(&lock);
  if (status) return status;
  status = real_wait()(cond, mutex, until);
  pthread_mutex_lock(&lock);
  self->cond = NULL;
  self->is_looking = true;
  if (self->is_wanted) status = look(until);
  pthread_mutex_unlock(&lock);
  return status;
}

static bool is_any_busy(void) {
  bool is_busy = false;
  for (struct watchdog *w = watchdogs; w; w = w->next) {
    is_busy |= w->is_wanted || w->is_looking;
    if (w->is_wanted && w->cond) pthread_cond_signal(w->cond); /* again, as it may not have rested yet */
  }
  return is_busy;
}

/* One that does not come back within a while is left alone: it may want a lock of the caller's. */
void let_watchdogs_look(void) {
  if (self) return;
  pthread_mutex_lock(&lock);
  for (struct watchdog *w = watchdogs; w; w = w->next) w->is_wanted = true;
  int64_t deadline = now_ns(CLOCK_MONOTONIC) + (int64_t)PATIENCE_S * SECOND;
  while (is_any_busy() && now_ns(CLOCK_MONOTONIC) < deadline) wait_a_moment();
  pthread_mutex_unlock(&lock);
}
