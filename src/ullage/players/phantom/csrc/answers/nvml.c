/* NVML: what a monitoring program may ask about devices and their memory.
 *
 * Who uses the memory, load, temperature and power are in nvml.h. What a GPU without NVLink, MIG, ECC or fabric would
 * refuse, and what nobody knows, is refused.
 */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { P2P_WRITE = 1, P2P_NOT_SUPPORTED = 5 };

/* The driver that came with CUDA 13.0; newer toolkits run on it. */
static const char DRIVER_VERSION[] = "580.00.00";

static int write_text(char *text, unsigned room, const char *value) {
  if (!text) return INVALID_ARGUMENT;
  if (strlen(value) >= room) return INSUFFICIENT_SIZE;
  strcpy(text, value);
  return SUCCESS;
}

/* ---- The system -------------------------------------------------------------------------------------------------- */

API int nvmlSystemGetDriverVersion(char *text, unsigned room) { return write_text(text, room, DRIVER_VERSION); }

API int nvmlSystemGetNVMLVersion(char *text, unsigned room) {
  char version[32];
  snprintf(version, sizeof version, "%d.%s", library_version("cudart", 13020) / 1000, DRIVER_VERSION);
  return write_text(text, room, version);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  return ANSWER(version, library_version("cudart", 13020), INVALID_ARGUMENT);
}
API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned room) {
  char path[64], name[256] = "";
  if (!text) return INVALID_ARGUMENT;
  snprintf(path, sizeof path, "/proc/%u/comm", pid);
  FILE *file = fopen(path, "r");
  if (!file) return NOT_FOUND;
  if (fgets(name, sizeof name, file)) name[strcspn(name, "\n")] = 0;
  fclose(file);
  return write_text(text, room, name);
}

API const char *nvmlErrorString(int status) {
  static const char *const TEXTS[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
      "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
      "Driver Not Loaded", "Timeout"};
  if (status == GPU_IS_LOST) return "GPU is lost";
  if (status == ARGUMENT_VERSION_MISMATCH) return "Argument Version Mismatch";
  return status >= 0 && status < (int)(sizeof TEXTS / sizeof *TEXTS) ? TEXTS[status] : "Unknown Error";
}

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetCount_v2(unsigned *count);
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
API int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

static void write_uuid(int index, char text[48]) {
  unsigned char u[16];
  device_uuid(index, u);
  snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4],
           u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  if (!is_initialised()) return UNINITIALIZED;
  if (!uuid || !handle) return INVALID_ARGUMENT;
  for (int i = 0; i < num_devices_there(); i++) {
    char text[48];
    write_uuid(i, text);
    if (!strcasecmp(text, uuid)) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, handle);
  }
  return NOT_FOUND;
}

/* "0000:01:00.0" or "00000000:01:00.0": device i sits alone on bus i + 1. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
  unsigned domain, bus, slot;
  if (!is_initialised()) return UNINITIALIZED;
  if (!bus_id || !handle || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID_ARGUMENT;
  if (domain || slot || bus < 1 || bus > (unsigned)num_devices_there()) return NOT_FOUND;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}
API int nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

/* ---- Identity ---------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetName(void *handle, char *text, unsigned room) {
  int index, status = find(handle, text, &index);
  return status ? status : write_text(text, room, device(index)->name);
}

API int nvmlDeviceGetUUID(void *handle, char *text, unsigned room) {
  char uuid[48];
  int index, status = find(handle, text, &index);
  if (status) return status;
  write_uuid(index, uuid);
  return write_text(text, room, uuid);
}

struct pci_legacy {
  char bus_id[16];
  unsigned domain, bus, slot, device_id, subsystem_id;
};
struct pci {
  struct pci_legacy legacy;
  char bus_id[32];
};

/* Device and subsystem ids are not in the catalogue: vendor 10de alone. */
static int write_pci(const char *function, void *handle, struct pci_legacy *pci) {
  int index, status = find_card(function, handle, pci, &index);
  if (status) return status;
  *pci = (struct pci_legacy){.bus = (unsigned)index + 1, .device_id = 0x10de};
  snprintf(pci->bus_id, sizeof pci->bus_id, "0000:%02X:00.0", (unsigned char)(index + 1));
  return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) {
  int status = write_pci(__func__, handle, pci ? &pci->legacy : NULL);
  if (!status) snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", (unsigned char)pci->legacy.bus);
  return status;
}
API int nvmlDeviceGetPciInfo_v2(void *handle, struct pci_legacy *pci) { return write_pci(__func__, handle, pci); }
API int nvmlDeviceGetPciInfo(void *handle, struct pci_legacy *pci) { return write_pci(__func__, handle, pci); }

API int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  int index, status = find(handle, minor, &index);
  if (status || !major) return status ? status : INVALID_ARGUMENT;
  *major = device(index)->major;
  *minor = device(index)->minor;
  return SUCCESS;
}

/* NVML's number of an architecture, from the compute capability. */
static unsigned architecture(int index) {
  int major = device(index)->major, minor = device(index)->minor;
  if (major < 7) return major == 6 ? 4 : major == 5 ? 3 : 2; /* Pascal, Maxwell, Kepler */
  if (major == 7) return minor >= 5 ? 6 : 5;                 /* Turing, Volta */
  if (major == 8) return minor == 9 ? 8 : 7;                 /* Ada, Ampere */
  return major == 9 ? 9 : 10;                                /* Hopper, Blackwell */
}

/* NVML_BRAND_: GeForce 5, Titan 6, NVIDIA RTX 13, Tesla 2 on Volta and Turing, NVIDIA 14 since. */
static unsigned brand(int index) {
  const char *name = device(index)->name;
  if (strstr(name, "GeForce")) return 5;
  if (strstr(name, "TITAN")) return 6;
  if (strstr(name, "RTX")) return 13;
  return device(index)->major < 8 ? 2 : 14;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct memory {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
enum { MEMORY_V2 = sizeof(struct memory_v2) | 2 << 24 };

API int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
  int index, status = find(handle, memory, &index);
  if (!status) *memory = (struct memory){device(index)->total_bytes, card_free_bytes(index), card_used_bytes(index)};
  return status;
}

API int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
  int index, status = find(handle, memory, &index);
  if (status) return status;
  if (memory->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
  *memory = (struct memory_v2){MEMORY_V2, device(index)->total_bytes, 0, card_free_bytes(index), card_used_bytes(index)};
  return SUCCESS;
}

struct process_v1 {
  unsigned pid;
  unsigned long long used_bytes;
};
struct process {
  struct process_v1 v1;
  unsigned gpu_instance, compute_instance;
};
enum { NO_INSTANCE = -1 };

/* The caller's array has *count places of item_bytes. More processes may begin between two calls. */
static int list_processes(const char *function, void *handle, unsigned *count, void *list, size_t item_bytes) {
  int index, status = find_card(function, handle, count, &index);
  if (status) return status;
  size_t room = list ? *count : 0;
  struct process_use *uses = calloc(room + 1, sizeof *uses);
  if (!uses) return OUT_OF_MEMORY;
  size_t length = list_uses(index, uses, room);
  *count = (unsigned)length;
  for (size_t i = 0; i < length && length <= room; i++) {
    struct process process = {{uses[i].pid, uses[i].bytes}, (unsigned)NO_INSTANCE, (unsigned)NO_INSTANCE};
    memcpy((char *)list + i * item_bytes, &process, item_bytes);
  }
  free(uses);
  return length > room ? INSUFFICIENT_SIZE : SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *list) {
  return list_processes(__func__, handle, count, list, sizeof(struct process_v1));
}
API int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, void *list) {
  return list_processes(__func__, handle, count, list, sizeof(struct process));
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *list) {
  return list_processes(__func__, handle, count, list, sizeof(struct process));
}

static int list_nobody(const char *function, void *handle, unsigned *count) {
  int index, status = find_card(function, handle, count, &index);
  if (!status) *count = 0;
  return status;
}
#define NOBODY(name) API int name(void *handle, unsigned *count, void *list) { return (void)list, list_nobody(__func__, handle, count); }

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

NUMBER(nvmlDeviceGetIndex, index)
NUMBER(nvmlDeviceGetMinorNumber, index)
NUMBER(nvmlDeviceGetArchitecture, architecture(index))
NUMBER(nvmlDeviceGetBrand, brand(index))
NUMBER(nvmlDeviceGetMemoryBusWidth, device(index)->bus_bits)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, 0)

/* Graphics, SM, memory, video: kHz in the catalogue, MHz here. */
API int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *mhz) {
  int index, status = find(handle, mhz, &index);
  if (status) return status;
  if (kind < 0 || kind > 3) return INVALID_ARGUMENT;
  *mhz = (unsigned)(kind == 2 ? device(index)->memory_clock_khz : device(index)->clock_khz) / 1000;
  return SUCCESS;
}

/* ---- Devices side by side ---------------------------------------------------------------------------------------- */

/* As the runtime says: each reads and writes the memory of the others, over PCIe. */
API int nvmlDeviceGetP2PStatus(void *handle, void *other, int capability, int *p2p_status) {
  int index, status = find(handle, p2p_status, &index);
  if (status || card_index(other) < 0) return status ? status : INVALID_ARGUMENT;
  *p2p_status = capability <= P2P_WRITE && device(index)->peer_access ? 0 : P2P_NOT_SUPPORTED;
  return SUCCESS;
}

API int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *is_active) {
  int index, status = find(handle, is_active, &index);
  (void)link;
  if (status) return status;
  *is_active = 0; /* some callers read it without looking at the status */
  return refuse(__func__, NOT_SUPPORTED);
}

/* No fabric between nodes: all zeros say so. GPUs before Hopper refuse the question. */
enum { FABRIC_INFO_V2 = 36 | 2 << 24, FABRIC_INFO_V3 = 40 | 3 << 24 };

API int nvmlDeviceGetGpuFabricInfoV(void *handle, unsigned *info) {
  int index, status = find(handle, info, &index);
  if (status) return status;
  if (device(index)->major < 9) return refuse(__func__, NOT_SUPPORTED);
  if (*info != FABRIC_INFO_V2 && *info != FABRIC_INFO_V3) return ARGUMENT_VERSION_MISMATCH;
  memset(info + 1, 0, (*info & 0xffffff) - sizeof *info);
  return SUCCESS;
}

API int nvmlDeviceOnSameBoard(void *handle, void *other, int *is_same) {
  int index, status = find(handle, is_same, &index);
  if (!status) *is_same = handle == other;
  return status;
}

API int nvmlUnitGetCount(unsigned *count) { return ANSWER(count, 0, INVALID_ARGUMENT); }

#define REFUSE(name) API int name(void *handle) { return refuse_card(#name, handle); }
#include "tables/nvml.inc"
