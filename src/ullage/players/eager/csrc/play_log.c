/* Plays a log of a training program, in which layers repeat, through PyTorch's caching allocator: what its blocks come
 * to, and, where it is asked for, a row for each event. Nothing is given back to the driver. */
#include "allocator.h"

#include <stdlib.h>
#include <string.h>

static const int64_t MOST = INT64_MAX / 4; /* bytes of a request */
/* As `Category` of log/category.py has them. */
enum { ACTIVATION = 4, TEMPORARY = 6, GRADIENT = 2, NUM_CATEGORIES = 11, BY_PHASE = 255 };

/* What is done with the events of a run. LOAD: what goes again while the model is built was never there, such as weights
 * that are loaded quantized. FORWARD: what is there at the end of its part is an activation. BACKWARD: layers come in
 * the opposite order. ZERO_GRAD: the gradients that the events made go. RELEASE: so does what outlives them. */
enum kind { LOAD, PLAIN, FORWARD, BACKWARD, ZERO_GRAD, RELEASE };

/* Events that are passed through so many times. */
struct run {
  int64_t begin, end, repeats;
  int64_t kind;
  int64_t part;   /* runs of one phase */
  int64_t moment; /* which one's peak it may be; -1: none's */
};

/* A played log: a row for each storage. */
struct played {
  int64_t num_storages, num_runs, num_moments;
  int64_t chooses_by_age;                /* else by address, as torch before 2.13 */
  const int64_t *requested, *low, *high; /* bytes: likely, and both ends */
  const int32_t *events;                 /* numbers of storages that are made, complements of those that die */
  const int32_t *heirs;                  /* of a storage that dies more often than it was made, what dies in its place */
  const struct run *runs;
  uint8_t *categories; /* those by phase are filled in */
  const uint8_t *streams;
};

/* The most that was allocated in a phase, and whose it was then. */
struct moment {
  int64_t run; /* -1: none was noted */
  int64_t allocated, low, high; /* low: without what blocks have beyond their requests */
  int64_t by_category[NUM_CATEGORIES], requested[NUM_CATEGORIES];
};

/* A block that comes or goes. */
struct row {
  int64_t storage; /* or its complement */
  int64_t run, turn, address, size, reserved;
};

/* One passage through a run: events before it, at its highest and after it, and bytes that are allocated then. */
struct passage {
  int64_t run, turn, begin, peak_at, end, start, peak, after;
};

struct play {
  const struct played *log;
  struct allocator *allocator;
  int32_t *oldest, *newest; /* blocks of a storage */
  struct moment now;
  struct row *rows;
  int64_t num_rows; /* events so far */
};

static void count(struct play *p, int32_t storage, int64_t size, int sign) {
  const struct played *log = p->log;
  int64_t requested = log->requested[storage];
  uint8_t category = log->categories[storage];
  p->now.allocated += sign * size;
  p->now.low += sign * log->low[storage];
  p->now.high += sign * (size + log->high[storage] - requested);
  p->now.by_category[category] += sign * size;
  p->now.requested[category] += sign * requested;
}

static void add_row(struct play *p, int32_t event, const struct run *run, int64_t turn, const struct block *block) {
  if (p->rows)
    p->rows[p->num_rows] =
        (struct row){event, run - p->log->runs, turn, block->address, block->size, p->allocator->reserved};
  p->num_rows++;
}

static void make(struct play *p, int32_t storage, const struct run *run, int64_t turn) {
  int32_t number = allocate_block(p->allocator, p->log->requested[storage], p->log->streams[storage]);
  if (number == NONE) return;
  struct block *block = &p->allocator->blocks[number];
  block->older = p->newest[storage];
  block->newer = NONE;
  *(block->older == NONE ? &p->oldest[storage] : &p->allocator->blocks[block->older].newer) = number;
  p->newest[storage] = number;
  count(p, storage, block->size, 1);
  add_row(p, storage, run, turn, block);
}

/* Frees the oldest or the newest block that a storage has. */
static void let_go(struct play *p, int32_t storage, bool is_newest, const struct run *run, int64_t turn) {
  int32_t number = is_newest ? p->newest[storage] : p->oldest[storage];
  if (number == NONE) return;
  struct block *block = &p->allocator->blocks[number];
  *(block->older == NONE ? &p->oldest[storage] : &p->allocator->blocks[block->older].newer) = block->newer;
  *(block->newer == NONE ? &p->newest[storage] : &p->allocator->blocks[block->newer].older) = block->older;
  count(p, storage, block->size, -1);
  add_row(p, ~storage, run, turn, block);
  release_block(p->allocator, number);
}

/* Notes the present moment where more is allocated than before in its phase. */
static void note(struct play *p, const struct run *run, struct moment *moments) {
  if (run->moment < 0) return;
  struct moment *best = &moments[run->moment];
  int64_t low = best->low > p->now.low ? best->low : p->now.low;
  int64_t high = best->high > p->now.high ? best->high : p->now.high;
  if (best->run < 0 || p->now.allocated > best->allocated) {
    *best = p->now;
    best->run = run - p->log->runs;
  }
  best->low = low;
  best->high = high;
}

/* Each repetition of a layer dies where the layer after it lets go of it: where a storage has no block left, its heir's
 * goes, the oldest, in a backward pass the newest. */
static struct passage pass_through(struct play *p, const struct run *run, int64_t turn, struct moment *moments) {
  const struct played *log = p->log;
  int64_t now = p->num_rows, level = p->now.allocated;
  struct passage passage = {run - log->runs, turn, now, now, now, level, level, level};
  for (int64_t i = run->begin; i < run->end && !p->allocator->has_failed; i++) {
    int32_t storage = log->events[i] < 0 ? ~log->events[i] : log->events[i];
    int32_t heir = log->heirs[storage];
    if (!log->requested[storage]) continue;
    if (log->events[i] >= 0) {
      make(p, storage, run, turn);
      note(p, run, moments);
      if (p->now.allocated > passage.peak) {
        passage.peak = p->now.allocated;
        passage.peak_at = p->num_rows;
      }
    } else if (p->oldest[storage] != NONE) {
      let_go(p, storage, true, run, turn);
    } else if (heir != NONE) {
      let_go(p, heir, run->kind == BACKWARD, run, turn);
    }
  }
  passage.end = p->num_rows;
  passage.after = p->now.allocated;
  return passage;
}

/* Frees what the events of a run made in an earlier step: gradients, or what no event frees. */
static void clear(struct play *p, const struct run *run, const bool *dies) {
  for (int64_t i = run->begin; i < run->end; i++) {
    int32_t storage = p->log->events[i];
    if (storage < 0 || !p->log->requested[storage]) continue;
    bool is_gradient = p->log->categories[storage] == GRADIENT;
    if (run->kind == ZERO_GRAD ? !is_gradient : is_gradient || dies[storage]) continue;
    for (int64_t turn = 0; turn < run->repeats; turn++) let_go(p, storage, false, run, turn);
  }
}

/* Finds which storages an event frees, and fills in the categories that phases decide. Returns false where there is no
 * memory for it, or a size is none. */
static bool settle(const struct played *log, bool *dies, int64_t *requested) {
  int32_t *part = malloc(((size_t)log->num_storages + 1) * sizeof *part);
  if (!part) return false;
  memset(part, -1, ((size_t)log->num_storages + 1) * sizeof *part);
  bool is_done = true;
  for (int64_t i = 0; i < log->num_storages; i++) is_done = is_done && log->high[i] <= MOST && requested[i] <= MOST;
  for (const struct run *run = log->runs; run < log->runs + log->num_runs; run++) {
    for (int64_t i = run->begin; i < run->end; i++) {
      int32_t event = log->events[i], storage = event < 0 ? ~event : event;
      if (run->kind >= ZERO_GRAD) continue;
      if (event >= 0) {
        part[storage] = run->kind == FORWARD ? (int32_t)run->part : -1;
        continue;
      }
      dies[storage] = true;
      if (run->kind == LOAD) requested[storage] = 0;
      if (part[storage] == run->part) part[storage] = -1;
    }
  }
  for (int64_t i = 0; i < log->num_storages; i++)
    if (log->categories[i] == BY_PHASE) log->categories[i] = part[i] < 0 ? TEMPORARY : ACTIVATION;
  free(part);
  return is_done;
}

/* moments: one of each phase that runs name, and the end of all. passages: of each run as many as it is repeated.
 * reserved: bytes of all segments. rows: NULL, or room for all events; num_rows: those that there are. Returns 0 where
 * there is no memory for it, or more is asked for than there are numbers. */
EXPORT int play_log(const struct played *log, struct moment *moments, struct passage *passages, int64_t *reserved,
                    struct row *rows, int64_t *num_rows) {
  size_t room = (size_t)log->num_storages + 1;
  int32_t *lists = malloc(2 * room * sizeof *lists);
  int64_t *requested = malloc(room * sizeof *requested);
  bool *dies = calloc(room, sizeof *dies);
  struct allocator_settings settings = default_settings;
  settings.tie = log->chooses_by_age ? BY_AGE : BY_ADDRESS;
  settings.order = log->chooses_by_age ? WINDOWS_ORDER : LINUX_ORDER;
  struct allocator *allocator = new_allocator(&settings);
  struct played whole = *log;
  bool is_done = lists && requested && dies && allocator;
  if (is_done) {
    memset(lists, -1, 2 * room * sizeof *lists); /* NONE */
    memcpy(requested, log->requested, (room - 1) * sizeof *requested);
    whole.requested = requested;
    is_done = settle(&whole, dies, requested);
  }
  if (is_done) {
    struct play p = {&whole, allocator, lists, lists + room, {.run = -1}, rows, 0};
    for (int64_t i = 0; i <= log->num_moments; i++) moments[i] = (struct moment){.run = -1};
    for (const struct run *run = log->runs; run < log->runs + log->num_runs; run++) {
      note(&p, run, moments);
      if (run->kind >= ZERO_GRAD)
        clear(&p, run, dies);
      else
        for (int64_t turn = 0; turn < run->repeats && !allocator->has_failed; turn++)
          *passages++ = pass_through(&p, run, turn, moments);
    }
    moments[log->num_moments] = p.now;
    *reserved = allocator->reserved;
    *num_rows = p.num_rows;
    is_done = !allocator->has_failed;
  }
  free(lists);
  free(requested);
  free(dies);
  if (allocator) delete_allocator(allocator);
  return is_done;
}
