/* cuFFT: plans and their work areas.
 *
 * NVIDIA publishes no formula for the work area. Ours: the complex signal once more (all batches), as an out-of-place
 * pass needs it; for a length with a large prime factor, where Bluestein's algorithm takes over, the next power of two
 * above twice the length instead. Between nothing and four times as much. Not measured.
 */
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_PLAN = 1, ALLOC_FAILED = 2, INVALID_VALUE = 4, INVALID_SIZE = 8, NOT_SUPPORTED = 16 };
enum { MAX_PLANS = 65536, MAX_RANK = 3, LARGEST_PRIME = 127, HIGH_FACTOR = 4 };

struct plan {
  bool allocates_itself; /* until cufftSetAutoAllocation says otherwise */
  void *work_area;       /* its own */
  size_t work_bytes;
};

static struct plan *plans[MAX_PLANS]; /* a handle is a place in here; 0 is none, so that it never equals an unset one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct plan *open_plan(int handle) { return handle > 0 && handle < MAX_PLANS ? plans[handle] : NULL; }

API int cufftCreate(int *handle) {
  struct plan *plan = handle ? calloc(1, sizeof *plan) : NULL;
  if (!plan) return handle ? ALLOC_FAILED : INVALID_VALUE;
  plan->allocates_itself = true;
  pthread_mutex_lock(&lock);
  int place = 1;
  while (place < MAX_PLANS && plans[place]) place++;
  if (place < MAX_PLANS) plans[place] = plan;
  pthread_mutex_unlock(&lock);
  if (place == MAX_PLANS) {
    free(plan);
    return ALLOC_FAILED;
  }
  *handle = place;
  return SUCCESS;
}

API int cufftDestroy(int handle) {
  struct plan *plan = open_plan(handle);
  if (!plan) return INVALID_PLAN;
  if (plan->work_area) deallocate(plan->work_area);
  pthread_mutex_lock(&lock);
  plans[handle] = NULL;
  pthread_mutex_unlock(&lock);
  free(plan);
  return SUCCESS;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static int64_t padded_length(int64_t n) {
  int64_t rest = n, power = 1;
  for (int64_t prime = 2; prime <= LARGEST_PRIME; prime++)
    while (rest % prime == 0) rest /= prime;
  if (rest == 1) return n;
  while (power < 2 * n - 1) power *= 2;
  return power;
}

/* Bytes for `batch` signals of `rank` lengths; 0: no such transform. */
static size_t size_of(int rank, const int64_t *lengths, int64_t batch, size_t complex_bytes) {
  double elements = (double)batch;
  if (rank < 1 || rank > MAX_RANK || batch < 1) return 0;
  for (int i = 0; i < rank; i++) {
    if (lengths[i] < 1) return 0;
    elements *= (double)padded_length(lengths[i]);
  }
  return elements * (double)complex_bytes < 1e18 ? (size_t)elements * complex_bytes : 0;
}

/* cufftType: the double ones are D2Z 0x6a, Z2D 0x6c, Z2Z 0x69. */
static size_t complex_bytes_of(int type) { return type == 0x6a || type == 0x6c || type == 0x69 ? 16 : 8; }

/* cudaDataType of the computation: double 1 and 5, half and bfloat16 2, 6, 14, 15. */
static size_t complex_bytes_of_data(int type) { return type == 1 || type == 5 ? 16 : type == 0 || type == 4 ? 8 : 4; }

static struct scratch work_scratch(size_t bytes) { return (struct scratch){"cuFFT work area", 0, bytes, HIGH_FACTOR * bytes}; }

static int answer_size(size_t *result, size_t bytes) {
  if (!bytes) return INVALID_SIZE;
  if (!result) return INVALID_VALUE;
  *result = bytes;
  const struct scratch scratch = work_scratch(bytes);
  assume_bytes(scratch.what, scratch.low, scratch.answered, scratch.high);
  return SUCCESS;
}

/* Makes the plan; one that allocates itself takes its work area now, from the device and not from PyTorch. */
static int make(int handle, size_t *result, size_t bytes) {
  struct plan *plan = open_plan(handle);
  if (!plan) return INVALID_PLAN;
  size_t unwanted;
  int status = answer_size(result ? result : &unwanted, bytes);
  if (status) return status;
  plan->work_bytes = bytes;
  if (!plan->allocates_itself) return SUCCESS;
  if (plan->work_area) deallocate(plan->work_area);
  plan->work_area = allocate(current_device(), bytes);
  return plan->work_area ? SUCCESS : ALLOC_FAILED;
}

#define LENGTHS(...) (const int64_t[]){__VA_ARGS__}

API int cufftEstimate1d(int x, int type, int batch, size_t *result) {
  return answer_size(result, size_of(1, LENGTHS(x), batch, complex_bytes_of(type)));
}
API int cufftEstimate2d(int x, int y, int type, size_t *result) {
  return answer_size(result, size_of(2, LENGTHS(x, y), 1, complex_bytes_of(type)));
}
API int cufftEstimate3d(int x, int y, int z, int type, size_t *result) {
  return answer_size(result, size_of(3, LENGTHS(x, y, z), 1, complex_bytes_of(type)));
}
API int cufftGetSize1d(int handle, int x, int type, int batch, size_t *result) {
  return open_plan(handle) ? cufftEstimate1d(x, type, batch, result) : INVALID_PLAN;
}
API int cufftGetSize2d(int handle, int x, int y, int type, size_t *result) {
  return open_plan(handle) ? cufftEstimate2d(x, y, type, result) : INVALID_PLAN;
}
API int cufftGetSize3d(int handle, int x, int y, int z, int type, size_t *result) {
  return open_plan(handle) ? cufftEstimate3d(x, y, z, type, result) : INVALID_PLAN;
}
API int cufftMakePlan1d(int handle, int x, int type, int batch, size_t *result) {
  return make(handle, result, size_of(1, LENGTHS(x), batch, complex_bytes_of(type)));
}
API int cufftMakePlan2d(int handle, int x, int y, int type, size_t *result) {
  return make(handle, result, size_of(2, LENGTHS(x, y), 1, complex_bytes_of(type)));
}
API int cufftMakePlan3d(int handle, int x, int y, int z, int type, size_t *result) {
  return make(handle, result, size_of(3, LENGTHS(x, y, z), 1, complex_bytes_of(type)));
}

/* Strides and embeddings change where the signal lies, not how long it is. */
static size_t size_of_many(int rank, const int *n, int64_t batch, int type) {
  int64_t lengths[MAX_RANK];
  if (!n || rank < 1 || rank > MAX_RANK) return 0;
  for (int i = 0; i < rank; i++) lengths[i] = n[i];
  return size_of(rank, lengths, batch, complex_bytes_of(type));
}
static size_t size_of_many64(int rank, const long long *n, int64_t batch, size_t complex_bytes) {
  int64_t lengths[MAX_RANK];
  if (!n || rank < 1 || rank > MAX_RANK) return 0;
  for (int i = 0; i < rank; i++) lengths[i] = n[i];
  return size_of(rank, lengths, batch, complex_bytes);
}

#define MANY int rank, int *n, int *ie, int is, int id, int *oe, int os, int od, int type, int batch
#define MANY64 int rank, long long *n, long long *ie, long long is, long long id, long long *oe, long long os, long long od, \
               int type, long long batch
#define MANY_XT int rank, long long *n, long long *ie, long long is, long long id, int in, long long *oe, long long os, \
                long long od, int out, long long batch
#define UNUSED (void)ie, (void)is, (void)id, (void)oe, (void)os, (void)od

API int cufftEstimateMany(MANY, size_t *result) { return UNUSED, answer_size(result, size_of_many(rank, n, batch, type)); }
API int cufftGetSizeMany(int handle, MANY, size_t *result) {
  UNUSED;
  return open_plan(handle) ? answer_size(result, size_of_many(rank, n, batch, type)) : INVALID_PLAN;
}
API int cufftMakePlanMany(int handle, MANY, size_t *result) {
  return UNUSED, make(handle, result, size_of_many(rank, n, batch, type));
}
API int cufftGetSizeMany64(int handle, MANY64, size_t *result) {
  UNUSED;
  return open_plan(handle) ? answer_size(result, size_of_many64(rank, n, batch, complex_bytes_of(type))) : INVALID_PLAN;
}
API int cufftMakePlanMany64(int handle, MANY64, size_t *result) {
  return UNUSED, make(handle, result, size_of_many64(rank, n, batch, complex_bytes_of(type)));
}
API int cufftXtGetSizeMany(int handle, MANY_XT, size_t *result, int execution) {
  UNUSED, (void)in, (void)out;
  return open_plan(handle) ? answer_size(result, size_of_many64(rank, n, batch, complex_bytes_of_data(execution))) : INVALID_PLAN;
}
API int cufftXtMakePlanMany(int handle, MANY_XT, size_t *result, int execution) {
  return UNUSED, (void)in, (void)out, make(handle, result, size_of_many64(rank, n, batch, complex_bytes_of_data(execution)));
}

/* Creating and making in one; a plan that fails is gone. */
static int finish(int *handle, int status) {
  if (status) cufftDestroy(*handle);
  return status;
}
#define PLAN(name, parameters, arguments)            \
  API int name parameters {                          \
    int status = cufftCreate(handle);                \
    return status ? status : finish(handle, arguments); \
  }
PLAN(cufftPlan1d, (int *handle, int x, int type, int batch), cufftMakePlan1d(*handle, x, type, batch, NULL))
PLAN(cufftPlan2d, (int *handle, int x, int y, int type), cufftMakePlan2d(*handle, x, y, type, NULL))
PLAN(cufftPlan3d, (int *handle, int x, int y, int z, int type), cufftMakePlan3d(*handle, x, y, z, type, NULL))
PLAN(cufftPlanMany, (int *handle, MANY), cufftMakePlanMany(*handle, rank, n, ie, is, id, oe, os, od, type, batch, NULL))

API int cufftGetSize(int handle, size_t *result) {
  struct plan *plan = open_plan(handle);
  if (!plan || !result) return plan ? INVALID_VALUE : INVALID_PLAN;
  *result = plan->work_bytes;
  return SUCCESS;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

API int cufftSetAutoAllocation(int handle, int allocates_itself) {
  struct plan *plan = open_plan(handle);
  if (!plan) return INVALID_PLAN;
  plan->allocates_itself = allocates_itself != 0;
  return SUCCESS;
}

API int cufftSetStream(int handle, void *stream) { return (void)handle, follow_stream(stream), SUCCESS; }

API int cufftSetWorkArea(int handle, void *area) {
  struct plan *plan = open_plan(handle);
  if (!plan) return INVALID_PLAN;
  const struct scratch scratch = work_scratch(plan->work_bytes);
  if (area && plan->work_bytes) saw_scratch(LIBRARY_CUFFT, area, &scratch);
  return SUCCESS;
}

API int cufftXtSetWorkArea(int handle, void **areas) { return areas ? cufftSetWorkArea(handle, areas[0]) : INVALID_VALUE; }

static int version(void) { return library_version("cufft", 12500); } /* 12.5.0 */

API int cufftGetVersion(int *value) {
  if (!value) return INVALID_VALUE;
  *value = version();
  return SUCCESS;
}

API int cufftGetProperty(int type, int *value) {
  if (!value || type < 0 || type > 2) return INVALID_VALUE;
  *value = type == 0 ? version() / 1000 : type == 1 ? version() / 100 % 10 : version() % 100;
  return SUCCESS;
}

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/cufft.inc"
