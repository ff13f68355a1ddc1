// Counts heap allocations of a process: preloaded, it wraps malloc, calloc and realloc.
#include <stddef.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);

static long count;

void* malloc(size_t bytes) {
  ++count;
  return __libc_malloc(bytes);
}

void* calloc(size_t elements, size_t bytes) {
  ++count;
  return __libc_calloc(elements, bytes);
}

void* realloc(void* memory, size_t bytes) {
  ++count;
  return __libc_realloc(memory, bytes);
}

long allocations(void) { return count; }
