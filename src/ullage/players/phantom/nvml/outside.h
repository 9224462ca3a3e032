/* What the parts of libnvidia-ml.so.1 for other programs share. The directory in which the library lies stands for a
 * machine: the file `machine` says which GPUs it has, PID.use what a process uses of them (processes.c), and `script`
 * what a person wants to be told of them (script.c).
 */
#ifndef ULLAGE_OUTSIDE_NVML_H
#define ULLAGE_OUTSIDE_NVML_H

#include <stdbool.h>
#include <stddef.h>

/* script.c: the value that the script gives a device; false: none. */
bool find_scripted(const char *name, int index, double *value);

#endif
