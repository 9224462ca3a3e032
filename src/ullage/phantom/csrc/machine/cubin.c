/* What parameters a kernel has, from device code.
 *
 * A cubin is an ELF file. Of each kernel it has a section .nv.info.NAME of records: one for each parameter, with its number,
 * its offset among all parameters, and its size. NVIDIA does not describe the records; their names and layout are those
 * that cuobjdump -elf prints (EIATTR_KPARAM_INFO). A kernel whose parameters have gaps in their numbers is left out.
 */
#define _GNU_SOURCE
#include "cubin.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMETERS = 1024, LONG_RECORD = 4, PARAMETER = 0x17, PARAMETER_BYTES = 12 };
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

/* The parameters of a section's records. NULL: they have gaps. */
static struct parameters *read_records(const unsigned char *at, size_t bytes) {
  struct parameter found[MAX_PARAMETERS] = {{0, 0}};
  uint32_t count = 0, num_seen = 0;
  while (bytes >= 4) {
    int format = at[0], attribute = at[1];
    size_t length = format == LONG_RECORD ? at[2] + 256u * at[3] : 0;
    at += 4, bytes -= 4;
    if (length > bytes) return NULL;
    if (format == LONG_RECORD && attribute == PARAMETER && length >= PARAMETER_BYTES) {
      uint16_t number, offset;
      uint32_t packed; /* the size above 18 bits for alignment and memory */
      memcpy(&number, at + 4, sizeof number);
      memcpy(&offset, at + 6, sizeof offset);
      memcpy(&packed, at + 8, sizeof packed);
      if (number >= MAX_PARAMETERS || found[number].bytes) return NULL;
      found[number] = (struct parameter){offset, (uint16_t)(packed >> 18)};
      if (number >= count) count = number + 1u;
      num_seen++;
    }
    at += length, bytes -= length;
  }
  struct parameters *parameters = num_seen == count ? malloc(sizeof *parameters + count * sizeof *found) : NULL;
  if (!parameters) return NULL;
  parameters->count = count;
  memcpy(parameters->each, found, count * sizeof *found);
  return parameters;
}

static bool add_kernel(struct kernels *kernels, const char *name, struct parameters *parameters) {
  if (kernels->count == kernels->room) {
    size_t room = kernels->room ? 2 * kernels->room : 64;
    struct kernel *larger = realloc(kernels->each, room * sizeof *larger);
    if (!larger) return false;
    kernels->each = larger;
    kernels->room = room;
  }
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
    struct parameters *parameters = read_records(elf + section.sh_offset, section.sh_size);
    if (parameters && !add_kernel(kernels, name + sizeof INFO - 1, parameters)) return free(parameters), false;
  }
  return true;
}

const struct parameters *find_kernel(const struct kernels *kernels, const char *name) {
  for (size_t i = 0; i < kernels->count; i++)
    if (!strcmp(kernels->each[i].name, name)) return kernels->each[i].parameters;
  return NULL;
}
