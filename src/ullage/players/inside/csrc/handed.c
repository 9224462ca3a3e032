/* Memory that is handed to NVIDIA's libraries: scratch, and what NCCL exchanges.
 *
 * libtorch_cuda's calls that hand memory over are looked at and passed on. A block is noted once until it is freed, by its
 * own address: cuDNN's frontend hands over what follows its own share of a block. What lives on is noted again before its
 * row leaves the ring. What is not looked at: the scratch of cuSOLVER and of cuSPARSE.
 */
#include "handed.h"
#include "copies.h"
#include "phantom.h"
#include "slots.h"

#include <pthread.h>
#include <string.h>

enum { MAX_HANDED = 1 << 15, NUM_KNOWN = 1 << 12, OTHER_CALLS = 16 };
enum { INT64 = 3, VOID_POINTER = 6, PLAN_WORKSPACE_BYTES = 402, PACK_WORKSPACE = 1003 }; /* of cuDNN's backend */
enum { CUBLAS = 0, CUBLASLT = 1, CUDNN = 2, CUFFT = 5, NCCL = 7 }; /* as enum library in phantom.h */

struct handed {
  uint64_t position;
  int64_t address;
  int32_t library;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handed handed[MAX_HANDED]; /* the last of them, in a ring */
static uint64_t num_handed;
static int64_t known[NUM_KNOWN];
static uint64_t known_as[NUM_KNOWN]; /* the number of its row */

static int64_t *slot_of_known(int64_t address) { return &known[((uint64_t)address >> 9) % NUM_KNOWN]; }

static bool is_known(int64_t address) {
  int64_t *place = slot_of_known(address);
  if (__atomic_load_n(place, __ATOMIC_RELAXED) != address) return false;
  uint64_t number = __atomic_load_n(&known_as[place - known], __ATOMIC_RELAXED);
  return __atomic_load_n(&num_handed, __ATOMIC_RELAXED) - number < MAX_HANDED / 2;
}

static void note_handed(int library, const void *p) {
  if (!p || is_known((int64_t)(uintptr_t)p)) return;
  int64_t address = block_that_holds((int64_t)(uintptr_t)p);
  if (is_known(address)) return;
  pthread_mutex_lock(&lock);
  int64_t *place = slot_of_known(address);
  __atomic_store_n(&known_as[place - known], num_handed, __ATOMIC_RELAXED);
  __atomic_store_n(place, address, __ATOMIC_RELAXED);
  handed[num_handed % MAX_HANDED] = (struct handed){event_position(), address, library};
  __atomic_store_n(&num_handed, num_handed + 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

void note_freed(int64_t address) {
  int64_t *place = slot_of_known(address);
  if (__atomic_load_n(place, __ATOMIC_RELAXED) == address) __atomic_store_n(place, 0, __ATOMIC_RELAXED);
}

typedef uintptr_t word;

static int (*next_set_workspace)(void *, void *, size_t);
static int (*next_matmul)(word, word, word, word, word, word, word, word, word, word, word, word, word, void *, word, word);
static int (*get_attribute)(const void *, int, int, int64_t, int64_t *, void *);
static int (*next_execute)(void *, const void *, const void *);
static int (*next_normalize)(word, int, int, word, word, word, word, word, word, word, word, word, word, word, double, word, word,
                             double, word, word, word, void *, size_t, word, word);
static int (*next_normalize_backward)(word, int, int, word, word, word, word, word, word, word, word, word, word, word, word, word,
                                      word, word, word, word, word, word, double, word, word, word, void *, size_t, word, word);
static int (*next_recur)(word, word, int, word, word, word, word, word, word, word, word, word, word, word, word, word, size_t,
                         void *, word, word);
static int (*next_recur_data)(word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word,
                              word, size_t, void *, word, word);
static int (*next_recur_weights)(word, word, int, word, word, word, word, word, word, word, word, word, size_t, void *, word, word);
static int (*next_set_area)(int, void *);
static int (*next_all_reduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*next_reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
static int (*next_all_gather)(const void *, void *, size_t, int, void *, void *);

static int set_workspace(void *handle, void *workspace, size_t bytes) {
  if (bytes) note_handed(CUBLAS, workspace);
  return next_set_workspace(handle, workspace, bytes);
}

static int matmul(word w0, word w1, word w2, word w3, word w4, word w5, word w6, word w7, word w8, word w9, word w10, word w11,
                  word w12, void *workspace, word bytes, word stream) {
  note_launch();
  if (bytes) note_handed(CUBLASLT, workspace);
  return next_matmul(w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, workspace, bytes, stream);
}

/* The frontend's own share comes first in the block, then what the plan needs. Where that is nothing, the pointer is one
 * past the share, and so perhaps in another block. */
static int execute(void *handle, const void *plan, const void *pack) {
  note_launch();
  int64_t bytes = 0, count = 0;
  char *workspace = NULL;
  if (!get_attribute(pack, PACK_WORKSPACE, VOID_POINTER, 1, &count, &workspace) && count == 1 && workspace) {
    if (get_attribute(plan, PLAN_WORKSPACE_BYTES, INT64, 1, &count, &bytes)) bytes = 0;
    note_handed(CUDNN, bytes ? workspace : workspace - 1);
  }
  return next_execute(handle, plan, pack);
}

static int normalize(word w0, int mode, int ops, word w1, word w2, word w3, word w4, word w5, word w6, word w7, word w8, word w9,
                     word w10, word w11, double factor, word w12, word w13, double epsilon, word w14, word w15, word w16,
                     void *workspace, size_t bytes, word w17, word w18) {
  if (bytes) note_handed(CUDNN, workspace);
  return next_normalize(w0, mode, ops, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, factor, w12, w13, epsilon, w14, w15, w16,
                        workspace, bytes, w17, w18);
}

static int normalize_backward(word w0, int mode, int ops, word w1, word w2, word w3, word w4, word w5, word w6, word w7, word w8,
                              word w9, word w10, word w11, word w12, word w13, word w14, word w15, word w16, word w17, word w18,
                              word w19, double epsilon, word w20, word w21, word w22, void *workspace, size_t bytes, word w23,
                              word w24) {
  if (bytes) note_handed(CUDNN, workspace);
  return next_normalize_backward(w0, mode, ops, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18,
                                 w19, epsilon, w20, w21, w22, workspace, bytes, w23, w24);
}

static int recur(word w0, word w1, int mode, word w2, word w3, word w4, word w5, word w6, word w7, word w8, word w9, word w10,
                 word w11, word w12, word w13, word w14, size_t bytes, void *workspace, word w15, word w16) {
  if (bytes) note_handed(CUDNN, workspace);
  return next_recur(w0, w1, mode, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, bytes, workspace, w15, w16);
}

static int recur_data(word w0, word w1, word w2, word w3, word w4, word w5, word w6, word w7, word w8, word w9, word w10, word w11,
                      word w12, word w13, word w14, word w15, word w16, word w17, size_t bytes, void *workspace, word w18,
                      word w19) {
  if (bytes) note_handed(CUDNN, workspace);
  return next_recur_data(w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, bytes, workspace, w18,
                         w19);
}

static int recur_weights(word w0, word w1, int add, word w2, word w3, word w4, word w5, word w6, word w7, word w8, word w9, word w10,
                         size_t bytes, void *workspace, word w11, word w12) {
  if (bytes) note_handed(CUDNN, workspace);
  return next_recur_weights(w0, w1, add, w2, w3, w4, w5, w6, w7, w8, w9, w10, bytes, workspace, w11, w12);
}

static int set_area(int plan, void *area) {
  note_handed(CUFFT, area);
  return next_set_area(plan, area);
}

static int all_reduce(const void *send, void *recv, size_t count, int type, int op, void *group, void *stream) {
  note_handed(NCCL, send);
  note_handed(NCCL, recv);
  return next_all_reduce(send, recv, count, type, op, group, stream);
}

static int reduce_scatter(const void *send, void *recv, size_t count, int type, int op, void *group, void *stream) {
  note_handed(NCCL, send);
  note_handed(NCCL, recv);
  return next_reduce_scatter(send, recv, count, type, op, group, stream);
}

static int all_gather(const void *send, void *recv, size_t count, int type, void *group, void *stream) {
  note_handed(NCCL, send);
  note_handed(NCCL, recv);
  return next_all_gather(send, recv, count, type, group, stream);
}

struct call {
  const char *name;
  const void *ours;
  void *next; /* where the address of the library's own goes */
};

void watch_libraries(void) {
  const struct call calls[] = {
      {"cublasSetWorkspace_v2", (const void *)set_workspace, &next_set_workspace},
      {"cublasLtMatmul", (const void *)matmul, &next_matmul},
      {"cudnnBackendExecute", (const void *)execute, &next_execute},
      {"cudnnBatchNormalizationForwardTrainingEx", (const void *)normalize, &next_normalize},
      {"cudnnBatchNormalizationBackwardEx", (const void *)normalize_backward, &next_normalize_backward},
      {"cudnnRNNForward", (const void *)recur, &next_recur},
      {"cudnnRNNBackwardData_v8", (const void *)recur_data, &next_recur_data},
      {"cudnnRNNBackwardWeights_v8", (const void *)recur_weights, &next_recur_weights},
      {"cufftSetWorkArea", (const void *)set_area, &next_set_area},
      {"ncclAllReduce", (const void *)all_reduce, &next_all_reduce},
      {"ncclReduceScatter", (const void *)reduce_scatter, &next_reduce_scatter},
      {"ncclAllGather", (const void *)all_gather, &next_all_gather},
  };
  struct replacement list[OTHER_CALLS] = {{0}};
  size_t num_calls = 0;
  void *get = function_of("cudnnBackendGetAttribute");
  memcpy(&get_attribute, &get, sizeof get);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    void *next = function_of(calls[i].name);
    if (!next || (calls[i].ours == (const void *)execute && !get)) continue;
    memcpy(calls[i].next, &next, sizeof next);
    list[num_calls++] = (struct replacement){calls[i].name, calls[i].ours};
  }
  replace_calls("libtorch_cuda.so", list);
}

void forget_handed(void) {
  pthread_mutex_lock(&lock);
  num_handed = 0;
  memset(known, 0, sizeof known);
  pthread_mutex_unlock(&lock);
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

API uint64_t ullage_num_handed(void) { return num_handed < MAX_HANDED ? num_handed : MAX_HANDED; }

/* One of the last, the oldest first: position, address, library. */
API void ullage_handed(uint64_t i, int64_t row[3]) {
  const struct handed *h = &handed[num_handed > MAX_HANDED ? (num_handed + i) % MAX_HANDED : i];
  row[0] = (int64_t)h->position;
  row[1] = h->address;
  row[2] = h->library;
}
