// Counts heap allocations of a process, and refuses allocations and threads on demand: preloaded,
// it wraps malloc, calloc, realloc and pthread_create.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);

static long count, refused;
static size_t least_refused = SIZE_MAX;
static int threads_refused;

static int refuses(size_t bytes) { return ++count == refused || bytes >= least_refused; }

void* malloc(size_t bytes) { return refuses(bytes) ? 0 : __libc_malloc(bytes); }

void* calloc(size_t elements, size_t bytes) {
  return refuses(elements * bytes) ? 0 : __libc_calloc(elements, bytes);
}

void* realloc(void* memory, size_t bytes) {
  return refuses(bytes) ? 0 : __libc_realloc(memory, bytes);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                   void* argument) {
  int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (threads_refused) return EAGAIN;
  void* found = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&create, &found, sizeof create);
  return create(thread, attributes, work, argument);
}

long allocations(void) { return count; }
// Refuses the allocation of this number from now on; 0 for none.
void refuse_allocation(long number) { refused = number == 0 ? 0 : count + number; }
// Refuses allocations of at least so many bytes.
void refuse_allocations_from(size_t bytes) { least_refused = bytes; }
void refuse_threads(int on) { threads_refused = on; }
