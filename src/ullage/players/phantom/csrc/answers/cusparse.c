/* cuSPARSE: handles and descriptors, which remember what they were made with. The work is in cusparse_work.c. */
#include "cusparse.h"
#include "handle.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

enum { MAGIC = 0x63737061, LEGACY = 0x63736d64 };
enum { CSR = 1, CSC = 2, COO = 3, BLOCKED_ELL = 5, BSR = 6, SLICED_ELL = 7, DENSE = 0, ORDER_COLUMN = 1 };

HANDLE(cusparseCreate, cusparseDestroy)
FIELD(cusparseSetPointerMode, cusparseGetPointerMode, int, pointer_mode)
STREAM(cusparseSetStream, cusparseGetStream)

static int version(void) { return library_version("cusparse", 12904); } /* 12.9.4 */

API int cusparseGetVersion(void *h, int *value) {
  if (!handle_of(h, MAGIC)) return NOT_INITIALIZED;
  return ANSWER(value, version(), INVALID_VALUE);
}

API int cusparseGetProperty(int type, int *value) { return version_part(version(), 1000, type, value) ? SUCCESS : INVALID_VALUE; }

static const char *const STATUS_NAMES[] = {"CUSPARSE_STATUS_SUCCESS", "CUSPARSE_STATUS_NOT_INITIALIZED",
    "CUSPARSE_STATUS_ALLOC_FAILED", "CUSPARSE_STATUS_INVALID_VALUE", "CUSPARSE_STATUS_ARCH_MISMATCH",
    "CUSPARSE_STATUS_MAPPING_ERROR", "CUSPARSE_STATUS_EXECUTION_FAILED", "CUSPARSE_STATUS_INTERNAL_ERROR",
    "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED", "CUSPARSE_STATUS_ZERO_PIVOT", "CUSPARSE_STATUS_NOT_SUPPORTED",
    "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES"};
static const char *const STATUS_TEXTS[] = {"success", "initialization error", "resource allocation failed", "invalid value",
    "architecture mismatch", "memory mapping error", "kernel launch failure", "internal error", "matrix type not supported",
    "zero pivot", "operation not supported", "insufficient resources"};
enum { NUM_STATUSES = sizeof STATUS_NAMES / sizeof *STATUS_NAMES };

API const char *cusparseGetErrorName(int status) {
  return status >= 0 && status < NUM_STATUSES ? STATUS_NAMES[status] : "unrecognized error code";
}
API const char *cusparseGetErrorString(int status) {
  return status >= 0 && status < NUM_STATUSES ? STATUS_TEXTS[status] : "unrecognized error code";
}

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *operands; /* tsearch tree of those that live: any word may be looked up in it */

static int by_address(const void *a, const void *b) { return (a > b) - (a < b); }

struct operand *find_operand(const void *d) {
  pthread_mutex_lock(&lock);
  void *found = d ? tfind(d, &operands, by_address) : NULL;
  pthread_mutex_unlock(&lock);
  return found ? (struct operand *)d : NULL;
}

static int create(void **result, struct operand values) {
  if (!result || values.rows < 0 || values.cols < 0 || values.nonzeros < 0) return INVALID_VALUE;
  struct operand *operand = malloc(sizeof *operand);
  if (!operand) return ALLOC_FAILED;
  *operand = values;
  operand->batch_count = 1;
  pthread_mutex_lock(&lock);
  tsearch(operand, &operands, by_address);
  pthread_mutex_unlock(&lock);
  *result = operand;
  return SUCCESS;
}

static int destroy(void *d) {
  if (!d) return SUCCESS;
  if (!find_operand(d)) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  tdelete(d, &operands, by_address);
  pthread_mutex_unlock(&lock);
  free(d);
  return SUCCESS;
}
API int cusparseDestroySpMat(void *d) { return destroy(d); }
API int cusparseDestroySpVec(void *d) { return destroy(d); }
API int cusparseDestroyDnMat(void *d) { return destroy(d); }
API int cusparseDestroyDnVec(void *d) { return destroy(d); }

size_t value_bytes(const struct operand *operand) {
  switch (operand->value_type) { /* cudaDataType */
    case 1: case 4: return 8;                       /* double; complex float */
    case 5: return 16;
    case 2: case 14: return 2;
    case 3: case 8: return 1;
    default: return 4;
  }
}

size_t index_bytes(const struct operand *operand) { return operand->index_type == 3 ? 8 : operand->index_type == 1 ? 2 : 4; }

#define COMPRESSED(name, kind)                                                                                       \
  API int name(void **d, int64_t rows, int64_t cols, int64_t nonzeros, void *offsets, void *indices, void *values,   \
               int offset_type, int index_type, int base, int type) {                                                \
    return create(d, (struct operand){.rows = rows, .cols = cols, .nonzeros = nonzeros, .offsets = offsets,          \
        .indices = indices, .values = values, .format = kind, .index_base = base, .value_type = type,                \
        .offset_type = offset_type, .index_type = index_type});                                                      \
  }
#define COORDINATES(name)                                                                                            \
  API int name(void **d, int64_t rows, int64_t cols, int64_t nonzeros, void *row, void *col, void *values,           \
               int index_type, int base, int type) {                                                                 \
    return create(d, (struct operand){.rows = rows, .cols = cols, .nonzeros = nonzeros, .offsets = row,              \
        .indices = col, .values = values, .format = COO, .index_base = base, .value_type = type,                     \
        .offset_type = index_type, .index_type = index_type});                                                       \
  }
#define BLOCKS(name)                                                                                                 \
  API int name(void **d, int64_t rows, int64_t cols, int64_t blocks, int64_t height, int64_t width, void *offsets,   \
               void *indices, void *values, int offset_type, int index_type, int base, int type, int order) {        \
    return create(d, (struct operand){.rows = rows * height, .cols = cols * width,                                   \
        .nonzeros = blocks * height * width, .offsets = offsets, .indices = indices, .values = values,               \
        .format = BSR, .index_base = base, .value_type = type, .order = order, .offset_type = offset_type,           \
        .index_type = index_type});                                                                                  \
  }
#define DENSE_MATRIX(name)                                                                                           \
  API int name(void **d, int64_t rows, int64_t cols, int64_t leading, void *values, int type, int order) {           \
    return create(d, (struct operand){.rows = rows, .cols = cols, .nonzeros = rows * cols, .leading = leading,       \
        .values = values, .value_type = type, .order = order});                                                      \
  }
#define DENSE_VECTOR(name)                                                                                           \
  API int name(void **d, int64_t size, void *values, int type) {                                                     \
    return create(d, (struct operand){.rows = size, .cols = 1, .nonzeros = size, .leading = size, .values = values,  \
        .value_type = type, .order = ORDER_COLUMN});                                                                 \
  }
#define SPARSE_VECTOR(name)                                                                                          \
  API int name(void **d, int64_t size, int64_t nonzeros, void *indices, void *values, int index_type, int base, int type) { \
    return create(d, (struct operand){.rows = size, .cols = 1, .nonzeros = nonzeros, .indices = indices,             \
        .values = values, .format = COO, .index_base = base, .value_type = type, .index_type = index_type});         \
  }
COMPRESSED(cusparseCreateCsr, CSR) COMPRESSED(cusparseCreateConstCsr, CSR)
COMPRESSED(cusparseCreateCsc, CSC) COMPRESSED(cusparseCreateConstCsc, CSC)
COORDINATES(cusparseCreateCoo) COORDINATES(cusparseCreateConstCoo)
BLOCKS(cusparseCreateBsr) BLOCKS(cusparseCreateConstBsr)
DENSE_MATRIX(cusparseCreateDnMat) DENSE_MATRIX(cusparseCreateConstDnMat)
DENSE_VECTOR(cusparseCreateDnVec) DENSE_VECTOR(cusparseCreateConstDnVec)
SPARSE_VECTOR(cusparseCreateSpVec) SPARSE_VECTOR(cusparseCreateConstSpVec)

/* The block that begins each of the functions below. */
#define OPERAND(d)                               \
  struct operand *operand = find_operand(d);     \
  if (!operand) return INVALID_VALUE

#define SET_POINTERS(name)                                                     \
  API int name(void *d, void *offsets, void *indices, void *values) {          \
    OPERAND(d);                                                                \
    operand->offsets = offsets;                                                \
    operand->indices = indices;                                                \
    operand->values = values;                                                  \
    return SUCCESS;                                                            \
  }
SET_POINTERS(cusparseCsrSetPointers)
SET_POINTERS(cusparseCscSetPointers)
SET_POINTERS(cusparseCooSetPointers)
SET_POINTERS(cusparseBsrSetPointers)

#define VALUES(noun)                                                  \
  API int cusparse##noun##SetValues(void *d, void *values) {          \
    OPERAND(d);                                                       \
    operand->values = values;                                         \
    return SUCCESS;                                                   \
  }                                                                   \
  API int cusparse##noun##GetValues(void *d, void **values) {         \
    OPERAND(d);                                                       \
    if (!values) return INVALID_VALUE;                                \
    *values = operand->values;                                        \
    return SUCCESS;                                                   \
  }                                                                   \
  API int cusparseConst##noun##GetValues(void *d, void **values) { return cusparse##noun##GetValues(d, values); }
VALUES(SpMat) VALUES(DnMat) VALUES(DnVec) VALUES(SpVec)

static int set_batch(void *d, int count, int64_t stride) {
  OPERAND(d);
  if (count < 1) return INVALID_VALUE;
  operand->batch_count = count;
  operand->batch_stride = stride;
  return SUCCESS;
}
API int cusparseDnMatSetStridedBatch(void *d, int count, int64_t stride) { return set_batch(d, count, stride); }
API int cusparseCooSetStridedBatch(void *d, int count, int64_t stride) { return set_batch(d, count, stride); }
API int cusparseCsrSetStridedBatch(void *d, int count, int64_t offsets, int64_t stride) {
  return (void)offsets, set_batch(d, count, stride);
}
API int cusparseBsrSetStridedBatch(void *d, int count, int64_t offsets, int64_t indices, int64_t stride) {
  return (void)offsets, (void)indices, set_batch(d, count, stride);
}

API int cusparseDnMatGetStridedBatch(void *d, int *count, int64_t *stride) {
  OPERAND(d);
  if (!count || !stride) return INVALID_VALUE;
  *count = operand->batch_count;
  *stride = operand->batch_stride;
  return SUCCESS;
}

#define NUMBER(name, field)                    \
  API int name(void *d, int *value) {          \
    OPERAND(d);                                \
    if (!value) return INVALID_VALUE;          \
    *value = operand->field;                   \
    return SUCCESS;                            \
  }
NUMBER(cusparseSpMatGetFormat, format)
NUMBER(cusparseSpMatGetIndexBase, index_base)
NUMBER(cusparseSpVecGetIndexBase, index_base)
NUMBER(cusparseSpMatGetStridedBatch, batch_count)

API int cusparseSpMatGetSize(void *d, int64_t *rows, int64_t *cols, int64_t *nonzeros) {
  OPERAND(d);
  if (!rows || !cols || !nonzeros) return INVALID_VALUE;
  *rows = operand->rows;
  *cols = operand->cols;
  *nonzeros = operand->nonzeros;
  return SUCCESS;
}

API int cusparseDnMatGet(void *d, int64_t *rows, int64_t *cols, int64_t *leading, void **values, int *type, int *order) {
  OPERAND(d);
  if (!rows || !cols || !leading || !values || !type || !order) return INVALID_VALUE;
  *rows = operand->rows;
  *cols = operand->cols;
  *leading = operand->leading;
  *values = operand->values;
  *type = operand->value_type;
  *order = operand->order;
  return SUCCESS;
}

API int cusparseDnVecGet(void *d, int64_t *size, void **values, int *type) {
  OPERAND(d);
  if (!size || !values || !type) return INVALID_VALUE;
  *size = operand->rows;
  *values = operand->values;
  *type = operand->value_type;
  return SUCCESS;
}

/* Fill mode (0) and diagonal type (1). */
API int cusparseSpMatSetAttribute(void *d, int attribute, const int *value, size_t bytes) {
  OPERAND(d);
  if (attribute < 0 || attribute > 1 || !value || bytes != sizeof *value) return INVALID_VALUE;
  operand->attributes[attribute] = *value;
  return SUCCESS;
}

API int cusparseSpMatGetAttribute(void *d, int attribute, int *value, size_t bytes) {
  OPERAND(d);
  if (attribute < 0 || attribute > 1 || !value || bytes != sizeof *value) return INVALID_VALUE;
  *value = operand->attributes[attribute];
  return SUCCESS;
}

/* ---- Descriptors of the older, typed API ------------------------------------------------------------------------- */

struct legacy {
  uint32_t magic;
  int MatType, MatFillMode, MatDiagType, MatIndexBase;
};

API int cusparseCreateMatDescr(void **d) {
  if (!d) return INVALID_VALUE;
  struct legacy *legacy = calloc(1, sizeof *legacy);
  if (!legacy) return ALLOC_FAILED;
  legacy->magic = LEGACY;
  *d = legacy;
  return SUCCESS;
}

API int cusparseDestroyMatDescr(void *d) {
  free(d);
  return SUCCESS;
}

#define LEGACY_FIELD(noun)                                                                           \
  API int cusparseSet##noun(void *d, int value) {                                                    \
    struct legacy *legacy = d;                                                                       \
    if (!legacy || legacy->magic != LEGACY) return INVALID_VALUE;                                    \
    legacy->noun = value;                                                                            \
    return SUCCESS;                                                                                  \
  }                                                                                                  \
  API int cusparseGet##noun(const void *d) { return d ? ((const struct legacy *)d)->noun : 0; }
LEGACY_FIELD(MatType)
LEGACY_FIELD(MatFillMode)
LEGACY_FIELD(MatDiagType)
LEGACY_FIELD(MatIndexBase)
