// NVRTC whose compilations hold a lock, and hold it 0.3 s longer than they take, so that a fork
// finds it locked.
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "nvrtc_real.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int begun;

static PASS_ON_AS(compile, "nvrtcCompileProgram",
                  (void* program, int count, const char* const* options), program, count, options);
PASS_ON(nvrtcGetCUBINSize, (void* program, size_t* bytes), program, bytes)
PASS_ON(nvrtcGetCUBIN, (void* program, char* code), program, code)

int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  pthread_mutex_lock(&lock);
  ++begun;
  const int result = compile(program, count, options);
  usleep(300000);
  pthread_mutex_unlock(&lock);
  return result;
}

// How many compilations have begun.
int compilations(void) { return begun; }
