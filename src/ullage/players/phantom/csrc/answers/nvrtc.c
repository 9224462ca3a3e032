/* NVRTC: every program compiles, to a PTX that holds nothing.
 *
 * A kernel's name stands for itself: what is asked for as an expression is found in the module under the same name.
 */
#include "phantom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, INVALID_PROGRAM = 4, NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
       NAME_EXPRESSION_NOT_VALID = 10, NOT_SUPPORTED = 11 }; /* NVRTC has no "not supported": internal error */
enum { MAGIC = 0x6e767274, TEXT_BYTES = 128, BEFORE_CUDA_13 = 8 };

struct name {
  struct name *next;
  char text[];
};
struct program {
  uint32_t magic;
  bool is_compiled;
  struct name *names;
  char ptx[TEXT_BYTES];
};

static struct program *open_program(void *p) {
  struct program *program = p;
  return program && program->magic == MAGIC ? program : NULL;
}

API int nvrtcVersion(int *major, int *minor) {
  int version = library_version("nvrtc", library_version("cudart", 13020));
  if (!major || !minor) return INVALID_INPUT;
  *major = version / 1000;
  *minor = version / 10 % 100;
  return SUCCESS;
}

/* Compute capabilities: the first eight went with CUDA 13 (release notes), the later ones are enough for what exists. */
static const int ARCHITECTURES[] = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121};

static int first_architecture(void) {
  int major, minor;
  nvrtcVersion(&major, &minor);
  return major < 13 ? 0 : BEFORE_CUDA_13;
}
static int num_architectures(void) { return (int)(sizeof ARCHITECTURES / sizeof *ARCHITECTURES) - first_architecture(); }

API int nvrtcGetNumSupportedArchs(int *count) { return ANSWER(count, num_architectures(), INVALID_INPUT); }

API int nvrtcGetSupportedArchs(int *list) {
  if (!list) return INVALID_INPUT;
  memcpy(list, ARCHITECTURES + first_architecture(), (size_t)num_architectures() * sizeof *list);
  return SUCCESS;
}

API const char *nvrtcGetErrorString(int status) {
  static const char *const TEXTS[] = {"NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
      "NVRTC_ERROR_INVALID_INPUT", "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION", "NVRTC_ERROR_COMPILATION",
      "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
      "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION", "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID", "NVRTC_ERROR_INTERNAL_ERROR"};
  return status >= 0 && status < (int)(sizeof TEXTS / sizeof *TEXTS) ? TEXTS[status] : "NVRTC_ERROR unknown";
}

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

API int nvrtcCreateProgram(void **result, const char *source, const char *name, int num_headers, const char *const *headers,
                           const char *const *include_names) {
  (void)name, (void)num_headers, (void)headers, (void)include_names;
  if (!result || !source) return INVALID_INPUT;
  struct program *program = calloc(1, sizeof *program);
  if (!program) return OUT_OF_MEMORY;
  program->magic = MAGIC;
  *result = program;
  return SUCCESS;
}

API int nvrtcDestroyProgram(void **p) {
  struct program *program = p ? open_program(*p) : NULL;
  if (!program) return INVALID_PROGRAM;
  while (program->names) {
    struct name *next = program->names->next;
    free(program->names);
    program->names = next;
  }
  program->magic = 0;
  free(program);
  *p = NULL;
  return SUCCESS;
}

API int nvrtcAddNameExpression(void *p, const char *expression) {
  struct program *program = open_program(p);
  if (!program) return INVALID_PROGRAM;
  if (!expression) return INVALID_INPUT;
  size_t bytes = strlen(expression) + 1;
  struct name *name = malloc(sizeof *name + bytes);
  if (!name) return OUT_OF_MEMORY;
  memcpy(name->text, expression, bytes);
  name->next = program->names;
  program->names = name;
  return SUCCESS;
}

API int nvrtcGetLoweredName(void *p, const char *expression, const char **lowered) {
  struct program *program = open_program(p);
  if (!program) return INVALID_PROGRAM;
  if (!expression || !lowered) return INVALID_INPUT;
  if (!program->is_compiled) return NO_LOWERED_NAMES_BEFORE_COMPILATION;
  for (struct name *name = program->names; name; name = name->next)
    if (!strcmp(name->text, expression)) return *lowered = name->text, SUCCESS;
  return NAME_EXPRESSION_NOT_VALID;
}

API int nvrtcCompileProgram(void *p, int num_options, const char *const *options) {
  struct program *program = open_program(p);
  (void)num_options, (void)options;
  if (!program) return INVALID_PROGRAM;
  const struct device *d = device(current_device());
  snprintf(program->ptx, sizeof program->ptx, "// ullage phantom: no code\n.version 8.0\n.target sm_%d%d\n.address_size 64\n",
           d->major, d->minor);
  program->is_compiled = true;
  return SUCCESS;
}

/* Every form of the result is the same text, its end included in the size, as with the real PTX. */
static int write_size(void *p, size_t *bytes) {
  struct program *program = open_program(p);
  if (!program) return INVALID_PROGRAM;
  return ANSWER(bytes, strlen(program->ptx) + 1, INVALID_INPUT);
}
static int write_text(void *p, char *text) {
  struct program *program = open_program(p);
  if (!program) return INVALID_PROGRAM;
  if (!text) return INVALID_INPUT;
  strcpy(text, program->ptx);
  return SUCCESS;
}
#define RESULT(noun)                                                                     \
  API int nvrtcGet##noun##Size(void *p, size_t *bytes) { return write_size(p, bytes); }  \
  API int nvrtcGet##noun(void *p, char *text) { return write_text(p, text); }
RESULT(PTX)
RESULT(CUBIN)
RESULT(LTOIR)
RESULT(OptiXIR)
RESULT(TileIR)

API int nvrtcGetProgramLogSize(void *p, size_t *bytes) {
  if (!open_program(p)) return INVALID_PROGRAM;
  return ANSWER(bytes, 1, INVALID_INPUT);
}
API int nvrtcGetProgramLog(void *p, char *text) {
  if (!open_program(p)) return INVALID_PROGRAM;
  return ANSWER(text, 0, INVALID_INPUT);
}

#define DO(name) API int name(void) { return SUCCESS; }
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/nvrtc.inc"
