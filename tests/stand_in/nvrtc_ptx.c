// NVRTC for the emulator. Its "cubin" is 64 bytes that look like an ELF header, then the program's
// PTX.
#include "nvrtc_real.h"

enum { HEADER_BYTES = 64 };

static PASS_ON_AS(compile, "nvrtcCompileProgram",
                  (void* program, int count, const char* const* options), program, count, options);

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
