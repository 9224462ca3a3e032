/* The devices: data from the environment, read once.
 *
 * ULLAGE_PHANTOM=1 makes devices appear; without it there are none, so that a program started outside `ullage run`
 * sees a machine without a GPU. ULLAGE_DEVICE holds "key=value;key=value", ULLAGE_NUM_DEVICES their number (all alike),
 * ULLAGE_LIBRARIES the versions of the libraries this torch was built for, in the same form.
 */
#include "phantom.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device the_device;
static int places[MAX_DEVICES], num_places;
static int device_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int current;

/* The value of key in "key=value;key=value", or NULL; end is set to one past its last character. */
static const char *find_value(const char *text, const char *key, const char **end) {
  size_t length = strlen(key);
  while (text && *text) {
    const char *stop = strchr(text, ';');
    if (!stop) stop = text + strlen(text);
    if (!strncmp(text, key, length) && text[length] == '=') {
      *end = stop;
      return text + length + 1;
    }
    text = *stop ? stop + 1 : stop;
  }
  return NULL;
}

static long long find_number(const char *text, const char *key, long long fallback) {
  const char *end, *value = find_value(text, key, &end);
  return value ? strtoll(value, NULL, 10) : fallback;
}

/* An H100 SXM5, where a figure was not told. */
static void read_device(const char *text) {
  const char *end, *name = find_value(text, "name", &end);
  if (name) snprintf(the_device.name, sizeof the_device.name, "%.*s", (int)(end - name), name);
  else snprintf(the_device.name, sizeof the_device.name, "NVIDIA H100 80GB HBM3");
  const char *capability = find_value(text, "capability", &end);
  if (!capability || sscanf(capability, "%d.%d", &the_device.major, &the_device.minor) != 2) {
    the_device.major = 9;
    the_device.minor = 0;
  }
  the_device.total_bytes = (uint64_t)find_number(text, "total_bytes", 85028896768);
  the_device.usable_bytes = (uint64_t)find_number(text, "budget_bytes", (long long)the_device.total_bytes);
  the_device.context_bytes = (uint64_t)find_number(text, "context_bytes", 0);
  the_device.unlimited = find_number(text, "unlimited", 0) != 0;
  the_device.peer_access = find_number(text, "peer_access", 1) != 0;
  the_device.multicast = find_number(text, "multicast", 0) != 0;
  the_device.nccl_low_bytes = (uint64_t)find_number(text, "nccl_low_bytes", 0);
  the_device.nccl_high_bytes = (uint64_t)find_number(text, "nccl_high_bytes", 0);
  the_device.multiprocessors = (int)find_number(text, "multiprocessors", 132);
  the_device.shared_bytes_per_block = (int)find_number(text, "shared_bytes_per_block", 232448);
  the_device.shared_bytes_per_multiprocessor = (int)find_number(text, "shared_bytes_per_multiprocessor", 233472);
  the_device.threads_per_multiprocessor = (int)find_number(text, "threads_per_multiprocessor", 2048);
  the_device.blocks_per_multiprocessor = (int)find_number(text, "blocks_per_multiprocessor", 32);
  the_device.l2_bytes = (int)find_number(text, "l2_bytes", 50 << 20);
  the_device.bus_bits = (int)find_number(text, "bus_bits", 5120);
  the_device.clock_khz = (int)find_number(text, "clock_khz", 1980000);
  the_device.memory_clock_khz = (int)find_number(text, "memory_clock_khz", 2619000);
}

/* CUDA_VISIBLE_DEVICES: as the real driver has it, an empty list, or one that begins with -1, hides every device. A list
 * that names others than there are was made for another machine: no more are seen than there are, and NVML, which
 * PyTorch asks, has as many as are named. What is no number is a name of the device at that place. */
static void choose_visible(const char *visible) {
  int count = 0;
  while (*visible && *visible != '-' && count < device_count) {
    char *end;
    long place = strtol(visible, &end, 10);
    places[count] = end == visible || place < 0 || place >= MAX_DEVICES ? count : (int)place;
    if (places[count] >= num_places) num_places = places[count] + 1;
    count++;
    const char *comma = strchr(visible, ',');
    visible = comma ? comma + 1 : "";
  }
  device_count = count;
}

static void read_environment(void) {
  const char *phantom = getenv("ULLAGE_PHANTOM");
  if (!phantom || strcmp(phantom, "1")) return;
  const char *count = getenv("ULLAGE_NUM_DEVICES");
  int number = count ? atoi(count) : 1;
  number = number < 0 ? 0 : number > MAX_DEVICES ? MAX_DEVICES : number;
  for (int i = 0; i < number; i++) places[i] = i;
  device_count = num_places = number;
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible) choose_visible(visible);
  read_device(getenv("ULLAGE_DEVICE"));
}

int num_devices_there(void) {
  pthread_once(&once, read_environment);
  return num_places;
}

int place_of(int index) { return index >= 0 && index < num_devices() ? places[index] : index; }

int device_at(int place) {
  for (int i = 0; i < num_devices(); i++)
    if (places[i] == place) return i;
  return -1;
}

int num_devices(void) {
  pthread_once(&once, read_environment);
  return device_count;
}

const struct device *device(int index) {
  (void)index; /* all alike */
  pthread_once(&once, read_environment);
  return &the_device;
}

/* Whether the device runs out of memory is another answer from now on. */
API void ullage_never_runs_out(int unlimited) {
  pthread_once(&once, read_environment);
  the_device.unlimited = unlimited != 0;
}

int current_device(void) { return current; }

bool set_current_device(int index) {
  if (index < 0 || index >= num_devices()) return false;
  current = index;
  return true;
}

void device_uuid(int place, unsigned char uuid[16]) {
  /* "ullage phantom" and the place: the mark by which a program can tell that no GPU is there. */
  memcpy(uuid, "ullage phantom", 14);
  uuid[14] = 0;
  uuid[15] = (unsigned char)place;
}

int library_version(const char *library, int fallback) {
  return (int)find_number(getenv("ULLAGE_LIBRARIES"), library, fallback);
}
