/* What a profiler is told: the work that the device was given while one records, with the virtual clock's times
 * (activity.c). answers/cupti.c hands it on as CUPTI's records, and profiler_time.c moves the profiler's own times to that
 * clock. Without the clock (ullage_on_times) nothing is noted. */
#ifndef ULLAGE_ACTIVITY_H
#define ULLAGE_ACTIVITY_H

#include "work_log.h"

/* Names of the work that external ids can be given for: the two that PyTorch uses, of operators and of record_function. */
enum { NUM_EXTERNAL_KINDS = 16, FIRST_CUSTOM_KIND = 3, NUM_CUSTOM_KINDS = 2 };

/* Seconds of the virtual clock. */
struct activity_times {
  double start, end;           /* of the work on the device */
  double call_from, call_until; /* the host is held up by the call so long */
};

struct activity {
  uint64_t serial; /* of the row of the log */
  uint64_t ticks;  /* of the processor's counter: the program made the call */
  int64_t ns;      /* since 1970, by this machine's clock: likewise */
  struct work work;
  unsigned block[3];
  enum host_call call;
  uint32_t correlation, thread;
  uint16_t lane;
  uint8_t device;
  bool is_work;                         /* false: the host waits */
  uint64_t external[NUM_CUSTOM_KINDS]; /* what the thread was about; 0: nothing */
  uint64_t kinds;                       /* of records that the profiler wants: 1 << CUPTI_ACTIVITY_KIND_... */
  struct activity_times times;
};

bool has_virtual_clock(void);
/* A profiler wants records: 1 << CUPTI_ACTIVITY_KIND_...; 0: none records. Answers whether there is a clock. */
bool want_activities(uint64_t kinds);
/* Called after each activity, with no lock held. */
void on_activity(void (*callback)(void));

extern bool is_profiled;
void note_activity(const struct activity *activity); /* with serial, work, block, call, lane, device and is_work */

int push_external(unsigned kind, uint64_t id); /* 0; or the status of CUPTI */
int pop_external(unsigned kind, uint64_t *id);

/* The times of what was noted until now; false: the clock does not know them. */
bool time_activities(void);
/* What has times, in the order of the log, and how much of it; the caller frees it. `is_taken`: it is forgotten here. */
struct activity *copy_activities(size_t *count, bool is_taken);

/* profiler_time.c: where the profiler that ends puts the virtual clock's time; false: none has ended since. */
struct time_anchor {
  int64_t ns;      /* since 1970: */
  double s;        /* of the virtual clock, at the first call of the profile */
  uint64_t begin; /* the processor's counter when the profile began */
};
bool take_anchor(struct time_anchor *anchor);
uint64_t mark_time(int64_t ns); /* a time that the profiler's conversion leaves as it is */
int64_t after_profile(int64_t ns); /* of this machine's clock: the time, or the end of the profile that this thread ends */
void forget_end(void);

#endif
