/* What parameters a kernel has, from device code.
 *
 * A cubin is an ELF file. Of each kernel it has a section .nv.info.NAME of records: one for each parameter, with its number,
 * its offset among all parameters, and its size, and one with the end of the last. NVIDIA does not describe the records;
 * their names and layout are those that cuobjdump -elf prints (EIATTR_KPARAM_INFO, from 4 KiB of parameters on
 * EIATTR_KPARAM_INFO_V2, and EIATTR_CBANK_PARAM_SIZE). A kernel whose parameters have gaps in their numbers, or another end
 * than is said, is left out.
 */
#define _GNU_SOURCE
#include "cubin.h"
#include "room.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMETERS = 1024, PARAMETER_BYTES = 12 };
enum { NUMBER_RECORD = 3, LONG_RECORD = 4, PARAMETER = 0x17, END = 0x19, PARAMETER_V2 = 0x45 }; /* formats, and kinds */
static const char INFO[] = ".nv.info.";

static bool is_inside(uint64_t offset, uint64_t bytes, size_t room) { return offset <= room && bytes <= room - offset; }

size_t cubin_bytes(const unsigned char *elf) {
  Elf64_Ehdr header;
  memcpy(&header, elf, SELFMAG);
  if (memcmp(&header, ELFMAG, SELFMAG)) return 0;
  memcpy(&header, elf, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return 0;
  size_t sections = header.e_shoff + (size_t)header.e_shnum * sizeof(Elf64_Shdr);
  size_t segments = header.e_phoff + (size_t)header.e_phnum * sizeof(Elf64_Phdr);
  return sections > segments ? sections : segments; /* the tables come last */
}

struct records {
  struct parameter each[MAX_PARAMETERS];
  bool is_seen[MAX_PARAMETERS];
  uint32_t count, num_seen, end; /* end: as a record says; 0: none does, as of a kernel without parameters */
};

/* False: there are two of a number, or too many. */
static bool read_parameter(struct records *records, const unsigned char *record, bool is_v2) {
  uint16_t number, offset;
  uint32_t size;
  memcpy(&number, record + 4, sizeof number);
  memcpy(&offset, record + 6, sizeof offset);
  memcpy(&size, record + 8, sizeof size);
  if (!is_v2) size >>= 18; /* below it the alignment, and which memory */
  if (number >= MAX_PARAMETERS || records->is_seen[number] || size > UINT16_MAX) return false;
  records->each[number] = (struct parameter){offset, (uint16_t)size};
  records->is_seen[number] = true;
  records->num_seen++;
  if (number >= records->count) records->count = number + 1u;
  return true;
}

static bool read_records(struct records *records, const unsigned char *at, size_t bytes) {
  while (bytes >= 4) {
    int format = at[0], attribute = at[1];
    uint32_t number = at[2] + 256u * at[3], length = format == LONG_RECORD ? number : 0;
    at += 4, bytes -= 4;
    if (length > bytes) return false;
    if (format == NUMBER_RECORD && attribute == END) records->end = number;
    bool is_parameter = format == LONG_RECORD && (attribute == PARAMETER || attribute == PARAMETER_V2);
    if (is_parameter && (length < PARAMETER_BYTES || !read_parameter(records, at, attribute == PARAMETER_V2))) return false;
    at += length, bytes -= length;
  }
  return true;
}

/* The parameters of a section's records. NULL: they are not all there. */
static struct parameters *read_parameters(const unsigned char *at, size_t bytes) {
  struct records records = {0};
  if (!read_records(&records, at, bytes) || records.num_seen != records.count) return NULL;
  uint32_t end = 0;
  for (uint32_t i = 0; i < records.count; i++) {
    uint32_t own_end = (uint32_t)records.each[i].offset + records.each[i].bytes;
    if (own_end > end) end = own_end;
  }
  if (end != records.end) return NULL;
  struct parameters *parameters = malloc(sizeof *parameters + records.count * sizeof *records.each);
  if (!parameters) return NULL;
  parameters->count = records.count;
  memcpy(parameters->each, records.each, records.count * sizeof *records.each);
  return parameters;
}

static bool add_kernel(struct kernels *kernels, const char *name, struct parameters *parameters) {
  if (!has_room_for_row(&kernels->each, &kernels->room, kernels->count, sizeof *kernels->each, SIZE_MAX)) return false;
  char *copy = strdup(name);
  if (copy) kernels->each[kernels->count++] = (struct kernel){copy, parameters};
  return copy;
}

/* The name of a section, which ends within its table; NULL: it does not. */
static const char *name_of(const unsigned char *elf, const Elf64_Shdr *names, uint32_t offset) {
  if (offset >= names->sh_size) return NULL;
  const char *name = (const char *)elf + names->sh_offset + offset;
  return memchr(name, 0, names->sh_size - offset) ? name : NULL;
}

bool add_cubin(struct kernels *kernels, const unsigned char *elf, size_t bytes) {
  Elf64_Ehdr header;
  if (bytes < sizeof header || !cubin_bytes(elf) || cubin_bytes(elf) > bytes) return false;
  memcpy(&header, elf, sizeof header);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) return false;
  if (!is_inside(header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr), bytes)) return false;
  Elf64_Shdr names, section;
  memcpy(&names, elf + header.e_shoff + header.e_shstrndx * sizeof names, sizeof names);
  if (!is_inside(names.sh_offset, names.sh_size, bytes)) return false;
  for (int i = 0; i < header.e_shnum; i++) {
    memcpy(&section, elf + header.e_shoff + i * sizeof section, sizeof section);
    const char *name = name_of(elf, &names, section.sh_name);
    if (!name || strncmp(name, INFO, sizeof INFO - 1) || !is_inside(section.sh_offset, section.sh_size, bytes)) continue;
    struct parameters *parameters = read_parameters(elf + section.sh_offset, section.sh_size);
    if (parameters && !add_kernel(kernels, name + sizeof INFO - 1, parameters)) return free(parameters), false;
  }
  return true;
}

const struct parameters *find_kernel(const struct kernels *kernels, const char *name) {
  for (size_t i = 0; i < kernels->count; i++)
    if (!strcmp(kernels->each[i].name, name)) return kernels->each[i].parameters;
  return NULL;
}
