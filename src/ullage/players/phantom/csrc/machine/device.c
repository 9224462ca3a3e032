/* The devices: data from the environment, read once.
 *
 * ULLAGE_PHANTOM=1 makes devices appear; without it there are none, so that a program started outside `ullage run`
 * sees a machine without a GPU. ULLAGE_DEVICE holds "key=value;key=value", ULLAGE_NUM_DEVICES their number (all alike),
 * ULLAGE_LIBRARIES the versions of the libraries this torch was built for, in the same form. ULLAGE_PLATFORM is the system
 * whose driver's order of addresses they have: "windows", else Linux.
 */
#include "device_text.h"
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct device the_device;
static int places[MAX_DEVICES], num_places;
static int device_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int current;

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
  read_device_text(getenv("ULLAGE_DEVICE"), &the_device);
  const char *platform = getenv("ULLAGE_PLATFORM");
  the_device.address_order = platform && !strcmp(platform, "windows") ? WINDOWS_ORDER : LINUX_ORDER;
}

int num_devices_there(void) {
  pthread_once(&once, read_environment);
  return num_places;
}

int place_of(int index) { return index >= 0 && index < num_devices() ? places[index] : index; }

API int ullage_place(int index) { return place_of(index); }

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

int library_version(const char *library, int fallback) {
  return (int)read_number(getenv("ULLAGE_LIBRARIES"), library, fallback);
}

bool version_part(int version, int unit, int part, int *value) {
  if (!value || part < 0 || part > 2) return false;
  *value = part == 0 ? version / unit : part == 1 ? version / 100 % (unit / 100) : version % 100;
  return true;
}
