/* A library calls the functions of others by way of slots in its procedure linkage table. The loader fills them; they can
 * be written again at any time, and put back.
 */
#include "slots.h"
#include "libc10.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_SLOTS = 128 };

struct order {
  const char *library;
  const struct replacement *list;
};

void *function_of(const char *name) {
  void *function = dlsym(RTLD_DEFAULT, name);
  if (!function) function = in_libc10(name);
  if (function) return function;
  void *torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD); /* with all that it depends on */
  return torch ? dlsym(torch, name) : NULL;
}

struct slot {
  void **place, *before;
  bool is_read_only;
};

static struct slot slots[MAX_SLOTS];
static size_t num_slots;

static void write_slot(void **place, void *value, bool is_read_only) {
  long page = sysconf(_SC_PAGESIZE);
  void *begin = (void *)((uintptr_t)place & ~(uintptr_t)(page - 1));
  if (is_read_only && mprotect(begin, (size_t)page, PROT_READ | PROT_WRITE)) return;
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
  if (is_read_only) mprotect(begin, (size_t)page, PROT_READ);
}

struct tables {
  const ElfW(Sym) *symbols;
  const char *names;
  const ElfW(Rela) *lists[2];
  size_t sizes[2];
};

static struct tables find_tables(const struct dl_phdr_info *info) {
  struct tables t = {0};
  const ElfW(Dyn) *entry = NULL;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  for (; entry && entry->d_tag != DT_NULL; entry++) {
    uintptr_t value = entry->d_un.d_ptr;
    uintptr_t address = value < info->dlpi_addr ? info->dlpi_addr + value : value; /* glibc has made it absolute */
    if (entry->d_tag == DT_SYMTAB) t.symbols = (const ElfW(Sym) *)address;
    if (entry->d_tag == DT_STRTAB) t.names = (const char *)address;
    if (entry->d_tag == DT_JMPREL) t.lists[0] = (const ElfW(Rela) *)address;
    if (entry->d_tag == DT_PLTRELSZ) t.sizes[0] = value / sizeof(ElfW(Rela));
    if (entry->d_tag == DT_RELA) t.lists[1] = (const ElfW(Rela) *)address;
    if (entry->d_tag == DT_RELASZ) t.sizes[1] = value / sizeof(ElfW(Rela));
  }
  return t;
}

/* Whether a slot is in the part that the loader has made read-only. */
static bool is_relro(const struct dl_phdr_info *info, const void *place) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + p->p_vaddr;
    if (p->p_type == PT_GNU_RELRO && (uintptr_t)place >= begin && (uintptr_t)place < begin + p->p_memsz) return true;
  }
  return false;
}

static bool is_slot(uint64_t type) {
#if defined(__x86_64__)
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
#else
  (void)type;
  return false;
#endif
}

static const void *replacement_of(const struct replacement *list, const char *name) {
  for (; list->name; list++)
    if (!strcmp(list->name, name)) return list->function;
  return NULL;
}

static int look_into(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  const struct order *order = data;
  const char *slash = strrchr(info->dlpi_name, '/');
  if (strcmp(slash ? slash + 1 : info->dlpi_name, order->library)) return 0;
  struct tables t = find_tables(info);
  for (int list = 0; t.symbols && t.names && list < 2; list++) {
    for (size_t i = 0; t.lists[list] && i < t.sizes[list]; i++) {
      const ElfW(Rela) *r = &t.lists[list][i];
      if (!is_slot(ELF64_R_TYPE(r->r_info)) || num_slots == MAX_SLOTS) continue;
      const void *replacement = replacement_of(order->list, t.names + t.symbols[ELF64_R_SYM(r->r_info)].st_name);
      void **place = (void **)(info->dlpi_addr + r->r_offset);
      if (!replacement || *place == replacement) continue;
      slots[num_slots] = (struct slot){place, *place, is_relro(info, place)};
      write_slot(place, (void *)(uintptr_t)replacement, slots[num_slots++].is_read_only);
    }
  }
  return 0;
}

size_t replace_calls(const char *library, const struct replacement *list) {
  size_t before = num_slots;
  struct order order = {library, list};
  dl_iterate_phdr(look_into, &order);
  return num_slots - before;
}

void restore_calls(void) {
  for (size_t i = 0; i < num_slots; i++) write_slot(slots[i].place, slots[i].before, slots[i].is_read_only);
  num_slots = 0;
}
