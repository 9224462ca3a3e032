/* Scopes: in which module the program is, for each thread, so that each allocator event can say so.
 *
 * The recorder enters a scope when a module's forward begins and leaves it at the end. In backward no module runs. What
 * a node of the autograd graph allocates belongs to the module whose forward made the node: PyTorch numbers the nodes
 * that a thread makes, so it is enough to note at which number each scope began. A module that runs inside a node
 * (recomputation) is in its own scope again.
 *
 * The number and the thread of a node are read from the node itself. Two layouts are known; the recorder shows a node
 * whose number it knows, and where neither layout says so, nodes have no scope.
 */
#include "scope.h"
#include "phantom.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 512, MAX_THREADS = 256, MAX_CHANGES = 1 << 22, FIRST_ROOM = 1024 };
enum layout { UNKNOWN, SHARED, INTRUSIVE };
enum { SHARED_NUMBER = 24, INTRUSIVE_NUMBER = 16, THREAD_AFTER_NUMBER = 24 };

struct frame {
  const void *node; /* under which it was entered; NULL: none */
  int32_t scope;
};
struct change {
  uint64_t number; /* of the first node made in the scope */
  int32_t scope;
};
struct thread {
  uint64_t id, last_use;
  struct change *changes;
  size_t count, room;
};

static enum layout layout;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread threads[MAX_THREADS];
static size_t num_threads;
static uint64_t num_uses;
static _Thread_local struct frame frames[MAX_DEPTH];
static _Thread_local size_t depth;
static _Thread_local struct thread *own;
static _Thread_local uint64_t own_id, seen_number;

static struct {
  void (*current_node)(void *result[2]); /* a smart pointer, returned through memory */
  uint64_t (*next_number)(void);
  uint64_t (*thread_id)(void);
} torch;

static bool find_torch(void) {
  void *handle = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return false;
  torch.current_node = (void (*)(void **))dlsym(handle, "_ZN5torch8autograd16get_current_nodeEv");
  torch.next_number = (uint64_t(*)(void))dlsym(handle, "_ZN2at15sequence_number4peekEv");
  torch.thread_id = (uint64_t(*)(void))dlsym(handle, "_ZN2at14RecordFunction15currentThreadIdEv");
  return torch.current_node && torch.next_number && torch.thread_id;
}

static uint64_t word_at(const void *p, size_t offset) {
  uint64_t word;
  memcpy(&word, (const char *)p + offset, sizeof word);
  return word;
}

static size_t number_offset(void) { return layout == INTRUSIVE ? INTRUSIVE_NUMBER : SHARED_NUMBER; }

/* The node that this thread evaluates. The thread itself holds it meanwhile, so the reference that comes with the answer
 * can be given back without looking whether it was the last. */
static const void *current_node(void) {
  if (layout == UNKNOWN) return NULL;
  void *held[2] = {NULL, NULL};
  torch.current_node(held);
  if (!held[0]) return NULL;
  if (layout == SHARED) __atomic_sub_fetch((int32_t *)((char *)held[1] + 8), 1, __ATOMIC_ACQ_REL);
  else __atomic_sub_fetch((uint64_t *)((char *)held[0] + 8), 1, __ATOMIC_ACQ_REL);
  return held[0];
}

static int32_t scope_of_node(const void *node) {
  uint64_t number = word_at(node, number_offset()), id = word_at(node, number_offset() + THREAD_AFTER_NUMBER);
  int32_t found = NO_SCOPE;
  if (number == UINT64_MAX) return found; /* adds to a gradient: made by no operation */
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_threads; i++) {
    if (threads[i].id != id) continue;
    size_t low = 0, high = threads[i].count;
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (threads[i].changes[middle].number <= number) low = middle + 1;
      else high = middle;
    }
    if (low) found = threads[i].changes[low - 1].scope;
    break;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static bool make_room(struct thread *t) {
  if (t->count < t->room) return true;
  if (t->room == MAX_CHANGES) { /* the oldest half goes: graphs that old are seldom alive */
    t->count = MAX_CHANGES / 2;
    memmove(t->changes, t->changes + MAX_CHANGES / 2, t->count * sizeof *t->changes);
    return true;
  }
  size_t room = t->room ? t->room * 2 : FIRST_ROOM;
  struct change *larger = realloc(t->changes, room * sizeof *larger);
  if (!larger) return false;
  t->changes = larger;
  t->room = room;
  return true;
}

/* This thread's own entry; where there are too many, that of the thread which has entered nothing for longest. */
static struct thread *own_entry(void) {
  if (own && own->id == own_id) return own;
  own = threads;
  if (num_threads < MAX_THREADS) own = &threads[num_threads++];
  else
    for (struct thread *t = threads; t < threads + MAX_THREADS; t++)
      if (t->last_use < own->last_use) own = t;
  own->id = own_id = torch.thread_id();
  own->count = 0;
  return own;
}

/* The nodes that this thread makes belong to a scope, from a number on. */
static void note_change_from(uint64_t number, int32_t scope) {
  pthread_mutex_lock(&lock);
  struct thread *t = own_entry();
  t->last_use = ++num_uses;
  if (t->count && t->changes[t->count - 1].number == number) t->changes[t->count - 1].scope = scope;
  else if (make_room(t)) t->changes[t->count++] = (struct change){number, scope};
  pthread_mutex_unlock(&lock);
}

static void note_change(int32_t scope) {
  if (layout == UNKNOWN) return;
  seen_number = torch.next_number();
  note_change_from(seen_number, scope);
}

/* The scope of the innermost module, where it was entered under the node that is evaluated now. */
static bool is_in_module(const void *node, int32_t *scope) {
  if (!depth || depth > MAX_DEPTH || frames[depth - 1].node != node) return false;
  *scope = frames[depth - 1].scope;
  return true;
}

int32_t current_scope(void) {
  const void *node = current_node();
  int32_t scope = NO_SCOPE;
  if (is_in_module(node, &scope) || !node) return scope;
  scope = scope_of_node(node);
  /* With create_graph a node makes nodes, of its own scope. An operation makes its node before it allocates. */
  uint64_t number = torch.next_number();
  if (number != seen_number) note_change_from(number - 1, scope);
  seen_number = number;
  return scope;
}

static void note_left(void) {
  const void *node = current_node();
  int32_t scope = NO_SCOPE;
  if (!is_in_module(node, &scope) && node) scope = scope_of_node(node);
  note_change(scope);
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* Shows a node and its number. Answers whether nodes can be read; before that none is. */
API int ullage_know_nodes(const void *node, uint64_t number) {
  if (!find_torch()) return 0;
  uint64_t id = torch.thread_id();
  if (word_at(node, SHARED_NUMBER) == number && word_at(node, SHARED_NUMBER + THREAD_AFTER_NUMBER) == id) layout = SHARED;
  else if (word_at(node, INTRUSIVE_NUMBER) == number && word_at(node, INTRUSIVE_NUMBER + THREAD_AFTER_NUMBER) == id)
    layout = INTRUSIVE;
  return layout != UNKNOWN;
}

API void ullage_enter_scope(int32_t scope) {
  if (depth++ >= MAX_DEPTH) return;
  frames[depth - 1] = (struct frame){current_node(), scope};
  note_change(scope);
}

API void ullage_leave_scope(void) {
  if (depth && depth-- <= MAX_DEPTH) note_left();
}

/* The module that this thread works for, in backward too. */
API int32_t ullage_current_scope(void) { return current_scope(); }

/* An exception may have left scopes open: the thread is in none. */
API void ullage_leave_scopes(void) {
  if (!depth) return;
  depth = 0;
  note_left();
}
