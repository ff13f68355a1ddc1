// Functions of NVRTC that pass calls on to the real library, whose path is in REAL_NVRTC. That is
// not a dependency: of two loaded libraries of the name libnvrtc, Rutlass would find the real one.
// `FAILS(name)`: the error of a call that fails, else 0.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAILS
#define FAILS(name) 0
#endif

static void* real(const char* name) {
  static void* library;
  if (library == 0) library = dlopen(getenv("REAL_NVRTC"), RTLD_NOW | RTLD_LOCAL);
  void* function = library == 0 ? 0 : dlsym(library, name);
  if (function == 0) {
    fprintf(stderr, "nvrtc_real.h: %s\n", dlerror());
    exit(1);
  }
  return function;
}

// A function of NVRTC that is passed on, with its parameters and their names.
#define PASS_ON(NAME, PARAMETERS, ...) PASS_ON_AS(NAME, #NAME, PARAMETERS, __VA_ARGS__)
#define PASS_ON_AS(NAME, TEXT, PARAMETERS, ...) \
  int NAME PARAMETERS {                         \
    const int failure = FAILS(TEXT);            \
    if (failure != 0) return failure;           \
    int(*function) PARAMETERS;                  \
    void* found = real(TEXT);                   \
    memcpy(&function, &found, sizeof found);    \
    return function(__VA_ARGS__);               \
  }
PASS_ON(nvrtcVersion, (int* major, int* minor), major, minor);
PASS_ON(nvrtcGetNumSupportedArchs, (int* count), count);
PASS_ON(nvrtcGetSupportedArchs, (int* list), list);
PASS_ON(nvrtcCreateProgram,
        (void** program, const char* source, const char* name, int count,
         const char* const* headers, const char* const* names),
        program, source, name, count, headers, names);
PASS_ON(nvrtcDestroyProgram, (void** program), program);
PASS_ON(nvrtcGetProgramLogSize, (void* program, size_t* bytes), program, bytes);
PASS_ON(nvrtcGetProgramLog, (void* program, char* log), program, log);
PASS_ON(nvrtcAddNameExpression, (void* program, const char* name), program, name);
PASS_ON(nvrtcGetLoweredName, (void* program, const char* name, const char** lowered), program, name,
        lowered);
PASS_ON(nvrtcGetPTXSize, (void* program, size_t* bytes), program, bytes);
PASS_ON(nvrtcGetPTX, (void* program, char* code), program, code);

const char* nvrtcGetErrorString(int result) {
  const char* (*function)(int);
  void* found = real("nvrtcGetErrorString");
  memcpy(&function, &found, sizeof found);
  return function(result);
}
