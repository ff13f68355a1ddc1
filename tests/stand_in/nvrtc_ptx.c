// NVRTC for the emulator. Its "cubin" is 64 bytes that look like an ELF header, then the program's
// PTX. It calls the real library, whose path is in EMULATED_NVRTC. That is not a dependency: of two
// loaded libraries of the name libnvrtc, Rutlass would find the real one.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 64 };

static void* real(const char* name) {
  static void* library;
  if (library == 0) library = dlopen(getenv("EMULATED_NVRTC"), RTLD_NOW | RTLD_LOCAL);
  void* function = library == 0 ? 0 : dlsym(library, name);
  if (function == 0) {
    fprintf(stderr, "nvrtc_ptx.c: %s\n", dlerror());
    exit(1);
  }
  return function;
}

// A function of NVRTC that is passed on, with its parameters and their names.
#define PASS_ON(NAME, PARAMETERS, ...) PASS_ON_AS(NAME, #NAME, PARAMETERS, __VA_ARGS__)
#define PASS_ON_AS(NAME, TEXT, PARAMETERS, ...) \
  int NAME PARAMETERS {                         \
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
static PASS_ON_AS(compile, "nvrtcCompileProgram",
                  (void* program, int count, const char* const* options), program, count, options);
PASS_ON(nvrtcGetPTXSize, (void* program, size_t* bytes), program, bytes);
PASS_ON(nvrtcGetPTX, (void* program, char* code), program, code);

const char* nvrtcGetErrorString(int result) {
  const char* (*function)(int);
  void* found = real("nvrtcGetErrorString");
  memcpy(&function, &found, sizeof found);
  return function(result);
}

// Compiles for the virtual architecture: the result is PTX without machine code.
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  static const char machine[] = "--gpu-architecture=sm_", virtual[] = "--gpu-architecture=compute_";
  const char** changed = calloc((size_t)count + 1, sizeof *changed);
  char architecture[64];
  for (int at = 0; at < count; ++at) {
    changed[at] = options[at];
    if (strncmp(options[at], machine, sizeof machine - 1) != 0) continue;
    snprintf(architecture, sizeof architecture, "%s%s", virtual, options[at] + sizeof machine - 1);
    changed[at] = architecture;
  }
  int result = compile(program, count, changed);
  free(changed);
  return result;
}

int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  int result = nvrtcGetPTXSize(program, bytes);
  *bytes += HEADER_BYTES;
  return result;
}

int nvrtcGetCUBIN(void* program, char* code) {
  memset(code, 0, HEADER_BYTES);
  memcpy(code, "\177ELF", 4);
  return nvrtcGetPTX(program, code + HEADER_BYTES);
}
