/* cuFFT: plans and their work areas.
 *
 * NVIDIA publishes no formula for the work area. Ours: the complex signal once more (all batches), as an out-of-place
 * pass needs it; for a length with a large prime factor, where Bluestein's algorithm takes over, the next power of two
 * above twice the length instead. Between nothing and four times as much. Not measured.
 *
 * A plan holds device memory until it is destroyed, too: "some cuFFT plans may allocate GPU memory" (PyTorch's notes on
 * CUDA semantics, of the cache that keeps up to 4,096 of them). Published figures (CUDA 12.1, signals of 4,000 + 2i numbers)
 * are 212 MB of the device at 32 plans, 234 at 64, 262 at 128, 2,222 at 4,096. Low: the least of these steps for a plan of
 * such a length, none for another. High: per dimension the most of these steps, or all roots of unity of the padded length
 * where these are more.
 */
#include "outside.h"
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_PLAN = 1, ALLOC_FAILED = 2, INVALID_VALUE = 4, INVALID_SIZE = 8, NOT_SUPPORTED = 16 };
enum { MAX_PLANS = 65536, MAX_RANK = 3, LARGEST_PRIME = 127, HIGH_FACTOR = 4 };
enum { LEAST_BYTES = (262 - 234) * 1000000 / (128 - 64), MOST_BYTES = (234 - 212) * (1 << 20) / (64 - 32) };
enum { SHORTEST = 4000, LONGEST = 4000 + 2 * 4095 };
static const char WHAT[] = "cuFFT plans"; /* explain/rules/allocator.py looks for it */

struct size {
  size_t work, low, high; /* the work area; what the plan holds */
};

struct plan {
  bool allocates_itself; /* until cufftSetAutoAllocation says otherwise */
  void *work_area;       /* its own */
  struct size size;
  int device;
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

static void release(struct plan *plan) {
  if (plan->work_area) deallocate(plan->work_area);
  give_back_outside(plan->device, WHAT, plan->size.low, plan->size.high);
  plan->work_area = NULL;
  plan->size = (struct size){0};
}

API int cufftDestroy(int handle) {
  struct plan *plan = open_plan(handle);
  if (!plan) return INVALID_PLAN;
  release(plan);
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

/* Bytes for `batch` signals of `rank` lengths; no work: no such transform. */
static struct size size_of(int rank, const long long *lengths, int64_t batch, size_t complex_bytes) {
  double elements = (double)batch;
  struct size size = {0};
  if (rank < 1 || rank > MAX_RANK || batch < 1) return size;
  for (int i = 0; i < rank; i++) {
    if (lengths[i] < 1) return size;
    double length = (double)padded_length(lengths[i]), roots = length * (double)complex_bytes;
    size.low += rank == 1 && lengths[i] >= SHORTEST && lengths[i] <= LONGEST ? LEAST_BYTES : 0;
    size.high += roots > MOST_BYTES ? (size_t)roots : MOST_BYTES;
    elements *= length;
  }
  if (elements * (double)complex_bytes < 1e18) size.work = (size_t)elements * complex_bytes;
  return size;
}

/* cufftType: the double ones are D2Z 0x6a, Z2D 0x6c, Z2Z 0x69. */
static size_t complex_bytes_of(int type) { return type == 0x6a || type == 0x6c || type == 0x69 ? 16 : 8; }

/* cudaDataType of the computation: double 1 and 5, half and bfloat16 2, 6, 14, 15. */
static size_t complex_bytes_of_data(int type) { return type == 1 || type == 5 ? 16 : type == 0 || type == 4 ? 8 : 4; }

static struct scratch work_scratch(size_t bytes) { return (struct scratch){"cuFFT work area", 0, bytes, HIGH_FACTOR * bytes}; }

static int answer_size(size_t *result, struct size size) {
  if (!size.work) return INVALID_SIZE;
  if (!result) return INVALID_VALUE;
  *result = size.work;
  const struct scratch scratch = work_scratch(size.work);
  assume_bytes(scratch.what, scratch.low, scratch.answered, scratch.high);
  return SUCCESS;
}

/* What a plan holds of its device, beside PyTorch's allocator; false: there is no room. */
static bool hold(struct plan *plan, struct size size) {
  release(plan);
  plan->device = current_device();
  if (!take_outside(plan->device, WHAT, size.low, size.high)) return false;
  plan->size = size;
  plan->work_area = plan->allocates_itself ? allocate(plan->device, size.work) : NULL;
  return plan->work_area || !plan->allocates_itself;
}

/* Makes the plan; one that allocates itself takes its work area now. */
static int make(int handle, size_t *result, struct size size) {
  struct plan *plan = open_plan(handle);
  if (!plan) return INVALID_PLAN;
  size_t unwanted;
  int status = answer_size(result ? result : &unwanted, size);
  return status || hold(plan, size) ? status : ALLOC_FAILED;
}

#define LENGTHS(...) (const long long[]){__VA_ARGS__}

/* Strides and embeddings change where the signal lies, not how long it is. */
static struct size size_of_many(int rank, const int *n, int64_t batch, int type) {
  long long lengths[MAX_RANK];
  if (!n || rank < 1 || rank > MAX_RANK) return (struct size){0};
  for (int i = 0; i < rank; i++) lengths[i] = n[i];
  return size_of(rank, lengths, batch, complex_bytes_of(type));
}

#define MANY int rank, int *n, int *ie, int is, int id, int *oe, int os, int od, int type, int batch
#define MANY64 int rank, long long *n, long long *ie, long long is, long long id, long long *oe, long long os, long long od, \
               int type, long long batch
#define MANY_XT int rank, long long *n, long long *ie, long long is, long long id, int in, long long *oe, long long os, \
                long long od, int out, long long batch, size_t *result, int execution
#define UNUSED (void)ie, (void)is, (void)id, (void)oe, (void)os, (void)od

#define ESTIMATE(name, size, ...) API int name(__VA_ARGS__, size_t *result) { return answer_size(result, size); }
#define SIZES(get_size, make_plan, size, ...)                                           \
  API int get_size(int handle, __VA_ARGS__) {                                           \
    return open_plan(handle) ? answer_size(result, size) : INVALID_PLAN;                \
  }                                                                                     \
  API int make_plan(int handle, __VA_ARGS__) { return make(handle, result, size); }

#define SIZE_1D size_of(1, LENGTHS(x), batch, complex_bytes_of(type))
#define SIZE_2D size_of(2, LENGTHS(x, y), 1, complex_bytes_of(type))
#define SIZE_3D size_of(3, LENGTHS(x, y, z), 1, complex_bytes_of(type))
#define SIZE_MANY (UNUSED, size_of_many(rank, n, batch, type))
#define SIZE_MANY64 (UNUSED, size_of(n ? rank : 0, n, batch, complex_bytes_of(type)))
#define SIZE_XT (UNUSED, (void)in, (void)out, size_of(n ? rank : 0, n, batch, complex_bytes_of_data(execution)))

ESTIMATE(cufftEstimate1d, SIZE_1D, int x, int type, int batch)
ESTIMATE(cufftEstimate2d, SIZE_2D, int x, int y, int type)
ESTIMATE(cufftEstimate3d, SIZE_3D, int x, int y, int z, int type)
ESTIMATE(cufftEstimateMany, SIZE_MANY, MANY)
SIZES(cufftGetSize1d, cufftMakePlan1d, SIZE_1D, int x, int type, int batch, size_t *result)
SIZES(cufftGetSize2d, cufftMakePlan2d, SIZE_2D, int x, int y, int type, size_t *result)
SIZES(cufftGetSize3d, cufftMakePlan3d, SIZE_3D, int x, int y, int z, int type, size_t *result)
SIZES(cufftGetSizeMany, cufftMakePlanMany, SIZE_MANY, MANY, size_t *result)
SIZES(cufftGetSizeMany64, cufftMakePlanMany64, SIZE_MANY64, MANY64, size_t *result)
SIZES(cufftXtGetSizeMany, cufftXtMakePlanMany, SIZE_XT, MANY_XT)

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
  *result = plan->size.work;
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
  const struct scratch scratch = work_scratch(plan->size.work);
  if (area && plan->size.work) saw_scratch(LIBRARY_CUFFT, area, &scratch);
  return SUCCESS;
}

API int cufftXtSetWorkArea(int handle, void **areas) { return areas ? cufftSetWorkArea(handle, areas[0]) : INVALID_VALUE; }

static int version(void) { return library_version("cufft", 12500); } /* 12.5.0 */

API int cufftGetVersion(int *value) { return ANSWER(value, version(), INVALID_VALUE); }

API int cufftGetProperty(int type, int *value) { return version_part(version(), 1000, type, value) ? SUCCESS : INVALID_VALUE; }

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/cufft.inc"
