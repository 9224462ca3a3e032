/* GPM: how busy the multiprocessors and the memory are, from Hopper on.
 *
 * The virtual clock knows when kernels run, not how many multiprocessors one of them keeps busy: without figures in the
 * script (script.c) a device has no GPM. A sample is only the number of its device, since figures are of now.
 */
#include "nvml.h"
#include "outside.h"

#include <stdlib.h>

enum { METRICS_VERSION = 1, SUPPORT_VERSION = 1, HOPPER = 9 };

struct sample {
  int index; /* -1: nothing was taken yet */
};

struct metric {
  unsigned id;
  int status;
  double value;
  const char *texts[3];
};

struct request {
  unsigned version, count;
  struct sample *first, *second;
  struct metric metrics[];
};

struct support {
  unsigned version, is_supported;
};

static const char *name_of(unsigned metric) {
  enum { SM_UTIL = 2, SM_OCCUPANCY = 3, DRAM_BW_UTIL = 10 };
  return metric == SM_UTIL ? "sm_active" : metric == SM_OCCUPANCY ? "sm_occupancy" : metric == DRAM_BW_UTIL ? "dram_active" : "";
}

static bool has_figures(int index) {
  double value;
  return find_scripted("sm_active", index, &value) || find_scripted("sm_occupancy", index, &value) ||
         find_scripted("dram_active", index, &value);
}

API int nvmlGpmQueryDeviceSupport(void *handle, struct support *support) {
  int index, status = find(handle, support, &index);
  if (status) return status;
  if (support->version != SUPPORT_VERSION) return ARGUMENT_VERSION_MISMATCH;
  support->is_supported = device(index)->major >= HOPPER && has_figures(index);
  return SUCCESS;
}

API int nvmlGpmSampleAlloc(struct sample **sample) {
  if (!is_initialised()) return UNINITIALIZED;
  if (!sample) return INVALID_ARGUMENT;
  *sample = malloc(sizeof **sample);
  if (!*sample) return OUT_OF_MEMORY;
  **sample = (struct sample){-1};
  return SUCCESS;
}

API int nvmlGpmSampleFree(struct sample *sample) {
  if (!is_initialised()) return UNINITIALIZED;
  free(sample);
  return sample ? SUCCESS : INVALID_ARGUMENT;
}

API int nvmlGpmSampleGet(void *handle, struct sample *sample) {
  int index, status = find(handle, sample, &index);
  if (status) return status;
  if (device(index)->major < HOPPER || !has_figures(index)) return NOT_SUPPORTED;
  sample->index = index;
  return SUCCESS;
}

API int nvmlGpmMetricsGet(struct request *request) {
  if (!is_initialised()) return UNINITIALIZED;
  if (!request || !request->first || !request->second) return INVALID_ARGUMENT;
  if (request->version != METRICS_VERSION) return ARGUMENT_VERSION_MISMATCH;
  int index = request->second->index;
  if (index < 0 || request->first->index != index) return INVALID_ARGUMENT;
  for (unsigned i = 0; i < request->count; i++) {
    struct metric *metric = &request->metrics[i];
    metric->status = find_scripted(name_of(metric->id), index, &metric->value) ? SUCCESS : NOT_SUPPORTED;
  }
  return SUCCESS;
}
