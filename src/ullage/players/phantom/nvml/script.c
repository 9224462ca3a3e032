/* What a person wants programs to be told of the devices: faults, and figures that nothing here can know.
 *
 * The file `script` has lines "DEVICE NAME VALUE # comment"; DEVICE is a number or * for all, and of lines that say the same the
 * last counts. It is read again whenever it has changed, so that a test replaces it (by renaming) while programs watch.
 *
 *   3 lost 1                          every question about device 3 is answered with NVML_ERROR_GPU_IS_LOST
 *   * nvmlDeviceGetFanSpeed 3         the function returns that nvmlReturn_t, here NVML_ERROR_NOT_SUPPORTED
 *   2 temperature 91                  load.c has the names of figures
 *   0 hide_processes 1                as in a container that does not see the host's processes
 */
#include "nvml.h"
#include "outside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ALL_DEVICES = -1 };
static const double MAX_VALUE = 4e9;

struct line {
  int device;
  char name[64];
  double value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line *lines;
static size_t num_lines;
static struct stat last;

static bool parse_line(const char *text, struct line *line) {
  char device[16], value[32], rest[2], *end;
  if (sscanf(text, "%15s %63s %31s %1s", device, line->name, value, rest) != 3) return false;
  line->value = strncmp(value, "0x", 2) ? strtod(value, &end) : (double)strtoull(value, &end, 16);
  if (*end || !(line->value >= 0 && line->value <= MAX_VALUE)) return false;
  line->device = strcmp(device, "*") ? (int)strtol(device, &end, 10) : ALL_DEVICES;
  return !strcmp(device, "*") || (!*end && line->device >= 0);
}

static void add_line(char *text, int number) {
  struct line line;
  text[strcspn(text, "#")] = 0;
  const char *first = text + strspn(text, " \t\r\n");
  if (!*first) return;
  if (!parse_line(first, &line)) {
    fprintf(stderr, "ullage: line %d of the script for NVML is left out; expected DEVICE NAME VALUE, for example: 3 lost 1\n",
            number);
    return;
  }
  struct line *larger = realloc(lines, (num_lines + 1) * sizeof *lines);
  if (!larger) return;
  lines = larger;
  lines[num_lines++] = line;
}

static bool is_unchanged(const struct stat *now) {
  return now->st_ino == last.st_ino && now->st_size == last.st_size && now->st_mtim.tv_sec == last.st_mtim.tv_sec &&
         now->st_mtim.tv_nsec == last.st_mtim.tv_nsec;
}

static void refresh(void) {
  char path[4096], text[512];
  struct stat now = {0};
  if (!find_in_directory("script", path, sizeof path) || stat(path, &now)) now = (struct stat){0};
  if (is_unchanged(&now)) return;
  last = now;
  num_lines = 0;
  FILE *file = now.st_ino ? fopen(path, "re") : NULL;
  for (int number = 1; file && fgets(text, sizeof text, file); number++) add_line(text, number);
  if (file) fclose(file);
}

static bool find_line(const char *name, int index, double *value) {
  bool is_there = false;
  for (size_t i = 0; i < num_lines; i++)
    if ((lines[i].device == ALL_DEVICES || lines[i].device == index) && !strcmp(lines[i].name, name)) {
      *value = lines[i].value;
      is_there = true;
    }
  return is_there;
}

/* As the question that a program has just begun found the script: card_fault comes first in each. */
bool find_scripted(const char *name, int index, double *value) {
  pthread_mutex_lock(&lock);
  bool is_there = find_line(name, index, value);
  pthread_mutex_unlock(&lock);
  return is_there;
}

/* ---- nvml.h ------------------------------------------------------------------------------------------------------- */

/* A program may ask hundreds of questions a second: each looks once whether the script has changed. */
int card_fault(const char *function, int index) {
  double value;
  pthread_mutex_lock(&lock);
  refresh();
  bool is_lost = find_line("lost", index, &value) && value;
  int fault = is_lost ? GPU_IS_LOST : find_line(function, index, &value) ? (int)value : SUCCESS;
  pthread_mutex_unlock(&lock);
  return fault;
}

/* ---- nvml.h ------------------------------------------------------------------------------------------------------- */

uint64_t card_used_bytes(int index) { return used_by_processes(index, 0); }

uint64_t card_free_bytes(int index) {
  uint64_t used = card_used_bytes(index), total = device(index)->total_bytes;
  return used < total ? total - used : 0;
}

size_t list_uses(int index, struct process_use *uses, size_t room) {
  double is_hidden;
  return find_scripted("hide_processes", index, &is_hidden) && is_hidden ? 0 : list_processes_on(index, uses, room);
}
