/* When asynchronous work is done (completion.c). */
#ifndef ULLAGE_COMPLETION_H
#define ULLAGE_COMPLETION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How far a stream has got: the number of its pieces of work up to there. */
struct mark {
  int lane; /* the stream's number in this file's books */
  uint64_t position;
};

/* What must be done before something has happened: how far which streams must have got, those alone whose work is not
 * known to be done. And how often the host has asked in vain: altogether, and in a row with nothing done between. */
struct frontier {
  struct mark *marks;
  size_t count, room;
  uint64_t progress;
  uint32_t asked_in_a_row, asked, watched_in_a_row;
  int64_t watched_ns, first_watched_ns; /* when a watchdog asked last, and first; 0: it has not */
};

/* Lanes of the default streams: one a device, and one a device for the threads' own. */
enum { NUM_DEVICES = 64, DEFAULT_LANES = 0, THREAD_LANES = NUM_DEVICES, NUM_FIXED_LANES = 2 * NUM_DEVICES };

int new_lane(int device);
void drop_lane(int lane);
void note_lane_work(int lane);
void note_lane_collective(int lane);

void mark_end(int lane, struct frontier *to);                   /* all that was given to the stream so far */
void wait_before(int lane, const struct frontier *frontier);    /* what is given to it next comes after that */
void drop_frontier(struct frontier *frontier);

/* The host asks; `caller` is where the question came from. A program that asks until it is told so has waited. */
enum answer { NOT_YET, HAPPENED, WAITED_FOR };
enum answer has_happened(struct frontier *frontier, const void *caller);
enum answer is_lane_done(int lane, const void *caller);
bool is_watchdog(void); /* this thread: what it is told changes no time */

/* PyTorch keeps what holds p until the collective that this thread gives is done, if it is asynchronous; it is complete
 * when the end of the stream is marked. */
void keep_operand(const void *p);
struct mark end_collective(int lane);

/* A block comes, or goes (bytes < 0): whether it was kept for a collective until then. */
bool was_kept_for_collective(const void *block, int64_t bytes);

/* The host has waited. */
void reach(const struct frontier *frontier);
void reach_lane(int lane);
void reach_device(int device);

#endif
