/* CUPTI: a profiler may subscribe. Under the virtual clock it gets records of what the device was given (cupti_records.c);
 * without that clock it finds that nothing ran on the device, and no buffer is ever asked for.
 */
#include "activity.h"
#include "phantom.h"

#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_PARAMETER = 1, SIZE_NOT_SUFFICIENT = 10, MAX_LIMIT_REACHED = 12, QUEUE_EMPTY = 18,
       INVALID_KIND = 21, NOT_SUPPORTED = 27, LEGACY_PROFILER_NOT_SUPPORTED = 38 };
enum { NUM_ATTRIBUTES = 64 };

API int cuptiGetVersion(uint32_t *version) {
  if (!version) return INVALID_PARAMETER;
  /* CUPTI counts as 130200 what the runtime counts as 13020. */
  *version = (uint32_t)library_version("cupti", 10 * library_version("cudart", 13020));
  return SUCCESS;
}

static const char *status_name(int status) {
  switch (status) {
    case SUCCESS: return "CUPTI_SUCCESS";
    case INVALID_PARAMETER: return "CUPTI_ERROR_INVALID_PARAMETER";
    case SIZE_NOT_SUFFICIENT: return "CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT";
    case MAX_LIMIT_REACHED: return "CUPTI_ERROR_MAX_LIMIT_REACHED";
    case QUEUE_EMPTY: return "CUPTI_ERROR_QUEUE_EMPTY";
    case INVALID_KIND: return "CUPTI_ERROR_INVALID_KIND";
    case NOT_SUPPORTED: return "CUPTI_ERROR_NOT_SUPPORTED";
    case LEGACY_PROFILER_NOT_SUPPORTED: return "CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED";
    default: return "CUPTI_ERROR_UNKNOWN";
  }
}

API int cuptiGetResultString(int status, const char **text) {
  return ANSWER(text, status_name(status), INVALID_PARAMETER);
}
API int cuptiGetErrorMessage(int status, const char **text) { return cuptiGetResultString(status, text); }
API int cuptiGetLastError(void) { return SUCCESS; }

API int cuptiSubscribe(void **subscriber, void *callback, void *data) {
  return (void)callback, (void)data, ANSWER(subscriber, new_handle(), INVALID_PARAMETER);
}
API int cuptiSubscribe_v2(void **subscriber, void *callback, void *data, void *parameters) {
  return (void)parameters, cuptiSubscribe(subscriber, callback, data);
}

API int cuptiGetDeviceId(void *context, uint32_t *device_index) {
  return (void)context, ANSWER(device_index, (uint32_t)current_device(), INVALID_PARAMETER);
}

API int cuptiGetTimestamp(uint64_t *ns) {
  struct timespec now;
  if (!ns) return INVALID_PARAMETER;
  timespec_get(&now, TIME_UTC);
  *ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  return SUCCESS;
}
API int cuptiGetTimestamp_v2(void *subscriber, uint64_t *ns) { return (void)subscriber, cuptiGetTimestamp(ns); }

/* ---- Activity ---------------------------------------------------------------------------------------------------- */

API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
  return (void)context, (void)stream, ANSWER(dropped, 0, INVALID_PARAMETER);
}
API int cuptiActivityGetNumDroppedRecords_v2(void *subscriber, void *context, uint32_t stream, size_t *dropped) {
  return (void)subscriber, cuptiActivityGetNumDroppedRecords(context, stream, dropped);
}

API int cuptiActivityPushExternalCorrelationId(unsigned kind, uint64_t id) { return push_external(kind, id); }
API int cuptiActivityPushExternalCorrelationId_v2(void *subscriber, unsigned kind, uint64_t id) {
  return (void)subscriber, cuptiActivityPushExternalCorrelationId(kind, id);
}

API int cuptiActivityPopExternalCorrelationId(unsigned kind, uint64_t *last) { return pop_external(kind, last); }
API int cuptiActivityPopExternalCorrelationId_v2(void *subscriber, unsigned kind, uint64_t *last) {
  return (void)subscriber, cuptiActivityPopExternalCorrelationId(kind, last);
}

/* Attributes up to 8 bytes (sizes, limits, switches) come back as they were set. */
static uint64_t attributes[NUM_ATTRIBUTES];
static size_t attribute_bytes[NUM_ATTRIBUTES];

API int cuptiActivitySetAttribute(unsigned attribute, size_t *bytes, void *value) {
  if (!bytes || !value) return INVALID_PARAMETER;
  if (attribute < NUM_ATTRIBUTES && *bytes <= sizeof *attributes) {
    memcpy(&attributes[attribute], value, *bytes);
    attribute_bytes[attribute] = *bytes;
  }
  return SUCCESS;
}
API int cuptiActivitySetAttribute_v2(void *subscriber, unsigned attribute, size_t *bytes, void *value) {
  return (void)subscriber, cuptiActivitySetAttribute(attribute, bytes, value);
}

API int cuptiActivityGetAttribute(unsigned attribute, size_t *bytes, void *value) {
  if (!bytes || !value) return INVALID_PARAMETER;
  if (attribute >= NUM_ATTRIBUTES || !attribute_bytes[attribute]) return refuse("cuptiActivityGetAttribute", NOT_SUPPORTED);
  if (*bytes < attribute_bytes[attribute]) return SIZE_NOT_SUFFICIENT;
  memcpy(value, &attributes[attribute], *bytes = attribute_bytes[attribute]);
  return SUCCESS;
}
API int cuptiActivityGetAttribute_v2(void *subscriber, unsigned attribute, size_t *bytes, void *value) {
  return (void)subscriber, cuptiActivityGetAttribute(attribute, bytes, value);
}

/* ---- Callbacks: none is ever called ------------------------------------------------------------------------------- */

#define DO(name) API int name(void) { return SUCCESS; }
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
/* Events and metrics: the real one refuses them as well, on every device since Turing. */
#define LEGACY(name) API int name(void) { return refuse(#name, LEGACY_PROFILER_NOT_SUPPORTED); }
#include "tables/cupti.inc"
