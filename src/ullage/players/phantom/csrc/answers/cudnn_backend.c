/* cuDNN's backend API, which cudnn-frontend (and so PyTorch's convolutions and attention) speaks.
 *
 * A descriptor remembers the attributes it was given; the descriptors among them are held by a count of references, so
 * that destroying one that a graph or plan still needs is harmless. What the library itself would work out is answered
 * here: heuristics find one engine (0), for float data on tensor cores another without them (1), so that a caller who
 * forbids TF32 is left with one, and for a convolution one that needs the least workspace (2). Engines have no knobs and no
 * preferred layouts. A plan knows its workspace size (see cudnn_workspace.c) from the moment it is finalized, also one made
 * from its own JSON; the report has it once it runs.
 */
#include "cudnn.h"
#include "cudnn_descriptor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum descriptor_type {
  DESCRIPTOR_ENGINE = 2, DESCRIPTOR_ENGINE_CONFIG = 3, DESCRIPTOR_HEURISTICS = 4, DESCRIPTOR_PLAN = 5,
  DESCRIPTOR_GRAPH = 15, DESCRIPTOR_KERNEL_CACHE = 34, DESCRIPTOR_DEVICE_PROPERTIES = 38, NUM_DESCRIPTOR_TYPES = 64,
};
enum attribute_name {
  HEURISTICS_GRAPH = 201, HEURISTICS_RESULTS = 202,
  CONFIG_ENGINE = 300, CONFIG_INTERMEDIATE_INFO = 301, CONFIG_KNOB_CHOICES = 302, CONFIG_WORKSPACE_SIZE = 303,
  CONFIG_SHARED_MEMORY_USED = 304,
  PLAN_CONFIG = 401, PLAN_WORKSPACE_SIZE = 402, PLAN_COMPUTED_UIDS = 403, PLAN_RUN_ONLY_UIDS = 404, PLAN_JSON = 405,
  GRAPH_OPERATIONS = 801, GRAPH_ENGINE_COUNT = 802,
  PACK_UIDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003,
  ENGINE_GRAPH = 1300, ENGINE_INDEX = 1301, ENGINE_KNOB_INFO = 1302, ENGINE_NUMERICAL_NOTE = 1303, ENGINE_LAYOUT_INFO = 1304,
  ENGINE_BEHAVIOR_NOTE = 1305, KERNEL_CACHE_IS_CACHED = 2401, KERNEL_CACHE_JSON = 2402, DEVICE_PROPERTIES_JSON = 2702,
};
/* cudnn-frontend builds engines by number where it knows better than the heuristics; the highest it names is 17, and old
 * versions try all up to 60 as a fallback. */
enum { NUM_ENGINES = 64, NOTE_TENSOR_CORE = 0, SHARED_MEMORY_BYTES = 48 << 10 };
enum { ENGINE_WITHOUT_TENSOR_CORES = 1, ENGINE_OF_LEAST_WORKSPACE = 2 };

static const struct backend *graph_of_config(const struct backend *config) {
  return backend_of(backend_of(config, CONFIG_ENGINE, 0), ENGINE_GRAPH, 0);
}

static bool is_convolution(const struct backend *graph) { return read_graph_convolution(graph, &(struct convolution){0}); }

static struct scratch scratch_of_config(const struct backend *config) {
  int64_t engine = int64_of(backend_of(config, CONFIG_ENGINE, 0), ENGINE_INDEX, 0);
  struct scratch scratch = graph_scratch(graph_of_config(config), engine != ENGINE_WITHOUT_TENSOR_CORES);
  if (engine == ENGINE_OF_LEAST_WORKSPACE && is_convolution(graph_of_config(config))) scratch.answered = scratch.low;
  return scratch;
}

/* ---- Answers the library works out ------------------------------------------------------------------------------- */
static int answer(const void *values, int64_t available, size_t bytes, int64_t requested, int64_t *count, void *array) {
  if (count) *count = available;
  if (array && requested > 0) memcpy(array, values, bytes * (size_t)(requested < available ? requested : available));
  return CUDNN_SUCCESS;
}

static bool uses_tensor_cores(const struct backend *engine) {
  int data_type = graph_data_type(backend_of(engine, ENGINE_GRAPH, 0));
  if (int64_of(engine, ENGINE_INDEX, 0) || data_type < 0) return false;
  return data_type_bytes(data_type) > 1 && has_tensor_cores(data_type);
}

static int make_config(struct backend *config, struct backend *graph, int64_t index) {
  struct backend *engine = NULL;
  int status = create_backend(DESCRIPTOR_ENGINE, &engine);
  if (status != CUDNN_SUCCESS) return status;
  if (graph) status = set_backend_attribute(engine, ENGINE_GRAPH, TYPE_BACKEND, 1, &graph);
  if (status == CUDNN_SUCCESS) status = set_backend_attribute(engine, ENGINE_INDEX, TYPE_INT64, 1, &index);
  engine->is_finalized = true;
  drop_attributes(config);
  if (status == CUDNN_SUCCESS) status = set_backend_attribute(config, CONFIG_ENGINE, TYPE_BACKEND, 1, &engine);
  config->is_finalized = true;
  release_backend(engine);
  return status;
}

static int answer_heuristics(const struct backend *heuristics, int64_t requested, int64_t *count, void *array) {
  struct backend *graph = backend_of(heuristics, HEURISTICS_GRAPH, 0);
  int64_t engines[3] = {0}, available = 1;
  if (graph_data_type(graph) == DATA_FLOAT && has_tensor_cores(DATA_FLOAT)) engines[available++] = ENGINE_WITHOUT_TENSOR_CORES;
  if (is_convolution(graph)) engines[available++] = ENGINE_OF_LEAST_WORKSPACE;
  int64_t given = array && requested < available ? requested : available;
  struct backend **configs = array;
  for (int64_t i = 0; configs && i < given; i++) {
    struct backend *config = object_of(configs[i], KIND_BACKEND);
    if (!config || config->type != DESCRIPTOR_ENGINE_CONFIG) return CUDNN_BAD_PARAM;
    int status = make_config(config, graph, engines[i]);
    if (status != CUDNN_SUCCESS) return status;
  }
  if (count) *count = given;
  return CUDNN_SUCCESS;
}

static int answer_json(const struct backend *backend, int64_t requested, int64_t *count, void *array) {
  char text[160] = "{}";
  if (backend->type == DESCRIPTOR_PLAN) {
    const struct backend *config = backend_of(backend, PLAN_CONFIG, 0);
    snprintf(text, sizeof text, "{\"engine\":%lld,\"low\":%zu,\"workspace\":%zu,\"high\":%zu}",
             (long long)int64_of(backend_of(config, CONFIG_ENGINE, 0), ENGINE_INDEX, 0), backend->scratch.low,
             backend->scratch.answered, backend->scratch.high);
  } else if (backend->type == DESCRIPTOR_DEVICE_PROPERTIES) {
    snprintf(text, sizeof text, "{\"device\":%d}", current_device());
  }
  return answer(text, (int64_t)strlen(text), 1, requested, count, array);
}

static int answer_derived(const struct backend *backend, int name, int64_t requested, int64_t *count, void *array) {
  const int64_t num_engines = NUM_ENGINES, workspace = (int64_t)backend->scratch.answered;
  const int shared = SHARED_MEMORY_BYTES, note = NOTE_TENSOR_CORE;
  const bool no = false;
  switch (name) {
    case HEURISTICS_RESULTS: return answer_heuristics(backend, requested, count, array);
    case GRAPH_ENGINE_COUNT: return answer(&num_engines, 1, 8, requested, count, array);
    case PLAN_WORKSPACE_SIZE: return answer(&workspace, 1, 8, requested, count, array);
    case CONFIG_WORKSPACE_SIZE: {
      int64_t of_config = (int64_t)scratch_of_config(backend).answered;
      return answer(&of_config, 1, 8, requested, count, array);
    }
    case CONFIG_SHARED_MEMORY_USED: return answer(&shared, 1, 4, requested, count, array);
    case ENGINE_NUMERICAL_NOTE: return answer(&note, uses_tensor_cores(backend) ? 1 : 0, 4, requested, count, array);
    case KERNEL_CACHE_IS_CACHED: return answer(&no, 1, sizeof no, requested, count, array);
    case PLAN_JSON: case KERNEL_CACHE_JSON: case DEVICE_PROPERTIES_JSON: return answer_json(backend, requested, count, array);
    case CONFIG_INTERMEDIATE_INFO: case CONFIG_KNOB_CHOICES: case PLAN_COMPUTED_UIDS: case PLAN_RUN_ONLY_UIDS:
    case ENGINE_KNOB_INFO: case ENGINE_LAYOUT_INFO: case ENGINE_BEHAVIOR_NOTE:
      if (count) *count = 0; /* none of these */
      return CUDNN_SUCCESS;
    default:
      if (count) *count = 0;
      return refuse("cudnnBackendGetAttribute", CUDNN_NOT_SUPPORTED);
  }
}

/* ---- The API ----------------------------------------------------------------------------------------------------- */
API int cudnnBackendCreateDescriptor(int type, void **descriptor) {
  struct backend *backend = NULL;
  if (!descriptor) return CUDNN_NULL_POINTER;
  if (type < 0 || type >= NUM_DESCRIPTOR_TYPES) return refuse("cudnnBackendCreateDescriptor", CUDNN_NOT_SUPPORTED);
  int status = create_backend(type, &backend);
  if (status == CUDNN_SUCCESS) *descriptor = backend;
  return status;
}

API int cudnnBackendDestroyDescriptor(void *descriptor) {
  release_backend(object_of(descriptor, KIND_BACKEND));
  return CUDNN_SUCCESS;
}

API int cudnnBackendInitialize(void *descriptor) { return object_of(descriptor, KIND_BACKEND) ? CUDNN_SUCCESS : CUDNN_BAD_PARAM; }

API int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) {
  struct backend *backend = object_of(descriptor, KIND_BACKEND);
  if (!backend || backend->is_finalized || count < 0 || (count && !values)) return CUDNN_BAD_PARAM;
  struct backend *const *children = values;
  for (int64_t i = 0; type == TYPE_BACKEND && i < count; i++)
    if (children[i] && !object_of(children[i], KIND_BACKEND)) return CUDNN_BAD_PARAM;
  return set_backend_attribute(backend, name, type, count, values);
}

API int cudnnBackendGetAttribute(const void *descriptor, int name, int type, int64_t requested, int64_t *count,
                                 void *array) {
  const struct backend *backend = object_of(descriptor, KIND_BACKEND);
  if (!backend) return CUDNN_BAD_PARAM;
  const struct attribute *attribute = find_backend_attribute(backend, name);
  if (!attribute) return answer_derived(backend, name, requested, count, array);
  if (attribute->type != type) return CUDNN_ATTRIBUTE_TYPE;
  if (type != TYPE_BACKEND) return answer(attribute->values, attribute->count, type_bytes(type), requested, count, array);
  if (count) *count = attribute->count;
  struct backend **targets = array;
  for (int64_t i = 0; targets && i < requested && i < attribute->count; i++) {
    int status = copy_backend(object_of(targets[i], KIND_BACKEND), backend_of(backend, name, i));
    if (status != CUDNN_SUCCESS) return status;
  }
  return CUDNN_SUCCESS;
}

/* A plan from the JSON of another: engine and sizes as they were. */
static int load_plan(struct backend *plan, const struct attribute *json) {
  char text[160];
  long long engine = 0;
  struct scratch scratch = {.what = "cuDNN workspace of a loaded plan"};
  snprintf(text, sizeof text, "%.*s", (int)json->count, (const char *)json->values);
  if (sscanf(text, "{\"engine\":%lld,\"low\":%zu,\"workspace\":%zu,\"high\":%zu}", &engine, &scratch.low, &scratch.answered,
             &scratch.high) != 4)
    return refuse("cudnnBackendFinalize", CUDNN_NOT_SUPPORTED);
  struct backend *config = NULL;
  int status = create_backend(DESCRIPTOR_ENGINE_CONFIG, &config);
  if (status != CUDNN_SUCCESS) return status;
  status = make_config(config, NULL, engine);
  if (status == CUDNN_SUCCESS) status = set_backend_attribute(plan, PLAN_CONFIG, TYPE_BACKEND, 1, &config);
  release_backend(config);
  plan->scratch = scratch;
  return status;
}

static int finalize_plan(struct backend *plan) {
  const struct backend *config = backend_of(plan, PLAN_CONFIG, 0);
  const struct attribute *json = find_backend_attribute(plan, PLAN_JSON);
  if (config) plan->scratch = scratch_of_config(config);
  else if (!json) return CUDNN_BAD_PARAM;
  return config ? CUDNN_SUCCESS : load_plan(plan, json);
}

API int cudnnBackendFinalize(void *descriptor) {
  struct backend *backend = object_of(descriptor, KIND_BACKEND);
  if (!backend) return CUDNN_BAD_PARAM;
  int status = CUDNN_SUCCESS;
  int64_t index = int64_of(backend, ENGINE_INDEX, 0);
  if (backend->type == DESCRIPTOR_GRAPH && !find_backend_attribute(backend, GRAPH_OPERATIONS)) status = CUDNN_BAD_PARAM;
  if (backend->type == DESCRIPTOR_HEURISTICS && !backend_of(backend, HEURISTICS_GRAPH, 0)) status = CUDNN_BAD_PARAM;
  if (backend->type == DESCRIPTOR_ENGINE && (index < 0 || index >= NUM_ENGINES)) status = CUDNN_NOT_SUPPORTED;
  if (backend->type == DESCRIPTOR_ENGINE_CONFIG && !backend_of(backend, CONFIG_ENGINE, 0)) status = CUDNN_BAD_PARAM;
  if (backend->type == DESCRIPTOR_PLAN) status = finalize_plan(backend);
  if (status == CUDNN_SUCCESS) backend->is_finalized = true;
  return status;
}

/* What the frontend laid into its own share of the workspace is scratch memory too. */
static void see_frontend_scratch(const struct backend *graph, const struct attribute *uids, const struct attribute *pointers) {
  int64_t wanted[8];
  size_t bytes[8];
  int found = uids && pointers ? graph_frontend_scratch(graph, wanted, bytes, 8) : 0;
  for (int i = 0; i < found; i++)
    for (int64_t j = 0; j < uids->count && j < pointers->count; j++)
      if (((const int64_t *)uids->values)[j] == wanted[i])
        saw_workspace(LIBRARY_CUDNN, ((void *const *)pointers->values)[j], bytes[i]);
}

API int cudnnBackendExecute(void *handle, const void *plan_descriptor, const void *pack_descriptor) {
  struct backend *plan = object_of(plan_descriptor, KIND_BACKEND);
  const struct backend *pack = object_of(pack_descriptor, KIND_BACKEND);
  if (!object_of(handle, KIND_HANDLE) || backend_type(plan) != DESCRIPTOR_PLAN || !pack) return CUDNN_BAD_PARAM;
  if (!plan->is_finalized || !pack->is_finalized) return CUDNN_NOT_FINALIZED;
  const struct attribute *pointers = find_backend_attribute(pack, PACK_POINTERS), *workspace = find_backend_attribute(pack, PACK_WORKSPACE);
  /* With nothing needed the pointer may be one past the frontend's share, so in another block. */
  void *given = workspace && workspace->count ? *(void *const *)workspace->values : NULL;
  void *scratch = plan->scratch.answered ? given : NULL;
  const struct backend *graph = graph_of_config(backend_of(plan, PLAN_CONFIG, 0));
  struct scratch sizes = plan->scratch;
  if (is_convolution(graph)) {
    saw_choice(scratch);
    sizes = scratch_in_room(sizes, scratch ? sizes.answered : 0);
    /* A caller who times all engines gives each the workspace that the largest needs. */
    if (!scratch && given) sizes.high = sizes.low;
  }
  if (!plan->is_reported) report_scratch(&sizes);
  plan->is_reported = true;
  saw_scratch(LIBRARY_CUDNN, scratch, &sizes);
  see_frontend_scratch(graph, find_backend_attribute(pack, PACK_UIDS), pointers);
  begin_operands();
  if (pointers) forget_words(pointers->values, (size_t)pointers->count);
  log_graph_work(graph);
  if (scratch) forget(scratch);
  return CUDNN_SUCCESS;
}

API int cudnnGetExecutionPlanWorkspaceSize(void *handle, const void *plan_descriptor, const void *pack, size_t *bytes) {
  (void)handle, (void)pack;
  const struct backend *plan = object_of(plan_descriptor, KIND_BACKEND);
  if (backend_type(plan) != DESCRIPTOR_PLAN || !bytes) return CUDNN_BAD_PARAM;
  *bytes = plan->scratch.answered;
  return CUDNN_SUCCESS;
}
