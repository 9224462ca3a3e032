/* Load, temperature, power, clocks and errors of the devices.
 *
 * Nothing here knows them, but for the load where the programs run on the virtual clock: they are refused, unless the
 * script gives a figure (script.c).
 */
#include "nvml.h"
#include "outside.h"

#include <limits.h>

enum { CORRECTED = 0, SM_CLOCK = 1, MEMORY_CLOCK = 2, SLOWDOWN = 1, SENT = 0, MILLI = 1000, PERIOD_US = 1000000 };

static int read_scripted(const char *name, int index, double scale, unsigned *out) {
  double value;
  if (!find_scripted(name, index, &value)) return NOT_SUPPORTED;
  if (value * scale > UINT_MAX) return INVALID_ARGUMENT;
  *out = (unsigned)(value * scale);
  return SUCCESS;
}

#define SCRIPTED(name, text, scale)                                                                              \
  static int name##_value(int index, unsigned *out) { return read_scripted(text, index, scale, out); }           \
  API int name(void *handle, unsigned *out) { return write_number(__func__, handle, out, name##_value); }
SCRIPTED(nvmlDeviceGetPowerUsage, "power", MILLI)
SCRIPTED(nvmlDeviceGetPowerManagementLimit, "power_limit", MILLI)
SCRIPTED(nvmlDeviceGetEnforcedPowerLimit, "power_limit", MILLI)
SCRIPTED(nvmlDeviceGetFanSpeed, "fan", 1)
SCRIPTED(nvmlDeviceGetPerformanceState, "performance_state", 1)
SCRIPTED(nvmlDeviceGetPowerState, "performance_state", 1)

static int answer(const char *function, void *handle, const char *name, unsigned *out) {
  int index, status = find_card(function, handle, out, &index);
  return status ? status : read_scripted(name, index, 1, out);
}

/* ---- Temperature and clocks --------------------------------------------------------------------------------------- */

API int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
  return sensor ? INVALID_ARGUMENT : answer(__func__, handle, "temperature", celsius);
}

struct temperature {
  unsigned version;
  int sensor, celsius;
};
API int nvmlDeviceGetTemperatureV(void *handle, struct temperature *temperature) {
  return answer(__func__, handle, "temperature", temperature ? (unsigned *)&temperature->celsius : NULL);
}

API int nvmlDeviceGetTemperatureThreshold(void *handle, int kind, unsigned *celsius) {
  return answer(__func__, handle, kind == SLOWDOWN ? "temperature_limit" : "", celsius);
}

static const char *name_of_clock(int kind) { return kind == MEMORY_CLOCK ? "memory_clock" : kind <= SM_CLOCK ? "sm_clock" : ""; }
API int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) { return answer(__func__, handle, name_of_clock(kind), mhz); }
API int nvmlDeviceGetClock(void *handle, int kind, int id, unsigned *mhz) {
  return answer(__func__, handle, id ? "" : name_of_clock(kind), mhz);
}
API int nvmlDeviceGetApplicationsClock(void *handle, int kind, unsigned *mhz) { return (void)kind, answer(__func__, handle, "", mhz); }

static int write_reasons(const char *function, void *handle, unsigned long long *reasons) {
  int index, status = find_card(function, handle, reasons, &index);
  double value;
  if (status) return status;
  if (!find_scripted("throttle", index, &value)) return NOT_SUPPORTED;
  *reasons = (unsigned long long)value;
  return SUCCESS;
}
API int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *r) { return write_reasons(__func__, handle, r); }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *r) { return write_reasons(__func__, handle, r); }

/* ---- Load --------------------------------------------------------------------------------------------------------- */

struct utilization {
  unsigned gpu, memory;
};
API int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *utilization) {
  int percent, memory_percent, index, status = find(handle, utilization, &index);
  if (status) return status;
  double scripted = 0, scripted_memory = 0;
  bool is_scripted = find_scripted("utilization", index, &scripted);
  find_scripted("memory_utilization", index, &scripted_memory);
  if (is_scripted) *utilization = (struct utilization){(unsigned)scripted, (unsigned)scripted_memory};
  else if (load_of(index, &percent, &memory_percent)) *utilization = (struct utilization){(unsigned)percent, (unsigned)memory_percent};
  else return NOT_SUPPORTED;
  return SUCCESS;
}

API int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned *kb_per_s) {
  return answer(__func__, handle, counter == SENT ? "pcie_sent" : "pcie_received", kb_per_s);
}

/* Bytes since the driver was loaded. As for a driver without counters, the function refuses where the script has none. */
struct field_value {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  int type, status;
  unsigned long long value;
};
static const char *name_of_field(unsigned field) {
  enum { PCIE_COUNT_TX_BYTES = 197, PCIE_COUNT_RX_BYTES = 198 };
  return field == PCIE_COUNT_TX_BYTES ? "pcie_sent_bytes" : field == PCIE_COUNT_RX_BYTES ? "pcie_received_bytes" : "";
}
API int nvmlDeviceGetFieldValues(void *handle, int num_values, struct field_value *values) {
  enum { UNSIGNED_LONG_LONG = 3 };
  int num_known = 0, index, status = find(handle, values, &index);
  if (status) return status;
  for (int i = 0; i < num_values; i++) {
    double value = 0;
    bool is_known = find_scripted(name_of_field(values[i].field), index, &value);
    values[i].type = UNSIGNED_LONG_LONG;
    values[i].status = is_known ? SUCCESS : NOT_SUPPORTED;
    values[i].value = (unsigned long long)value;
    num_known += is_known;
  }
  return num_known ? SUCCESS : NOT_SUPPORTED;
}

static int write_engine(const char *function, void *handle, const char *name, unsigned *percent, unsigned *period_us) {
  int status = answer(function, handle, name, period_us ? percent : NULL);
  if (!status) *period_us = PERIOD_US;
  return status;
}
#define ENGINE(name, text)                                               \
  API int name(void *handle, unsigned *percent, unsigned *period_us) {   \
    return write_engine(__func__, handle, text, percent, period_us);     \
  }
ENGINE(nvmlDeviceGetDecoderUtilization, "decoder")
ENGINE(nvmlDeviceGetEncoderUtilization, "encoder")
ENGINE(nvmlDeviceGetJpgUtilization, "jpeg")
ENGINE(nvmlDeviceGetOfaUtilization, "optical_flow")

/* ---- Errors ------------------------------------------------------------------------------------------------------- */

static int write_errors(const char *function, void *handle, int kind, unsigned long long *count) {
  int index, status = find_card(function, handle, count, &index);
  double value;
  if (status) return status;
  if (!find_scripted(kind == CORRECTED ? "ecc_corrected" : "ecc_uncorrected", index, &value)) return NOT_SUPPORTED;
  *count = (unsigned long long)value;
  return SUCCESS;
}

/* Since the driver was loaded and for the device's life alike; of all its memory. */
API int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int since, unsigned long long *count) {
  return (void)since, write_errors(__func__, handle, kind, count);
}
API int nvmlDeviceGetMemoryErrorCounter(void *handle, int kind, int since, int place, unsigned long long *count) {
  enum { DEVICE_MEMORY = 2 };
  int status = write_errors(__func__, handle, kind, count);
  (void)since;
  return !status && place != DEVICE_MEMORY ? NOT_SUPPORTED : status;
}

API int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending) {
  int status = answer(__func__, handle, "ecc_mode", pending ? current : NULL);
  if (!status) *pending = *current;
  return status;
}
