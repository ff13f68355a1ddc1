// NVRTC whose calls fail on demand. Calls are numbered from 1.
#include <string.h>

static int fails(const char* name);
#define FAILS(name) fails(name)
#include "nvrtc_real.h"

PASS_ON(nvrtcCompileProgram, (void* program, int count, const char* const* options), program, count,
        options)
PASS_ON(nvrtcGetCUBINSize, (void* program, size_t* bytes), program, bytes)
PASS_ON(nvrtcGetCUBIN, (void* program, char* code), program, code)

#define NUMBERED 64
static const char* names[NUMBERED];
static int numbered, faulty_call, faulty_code, programs;

static int fails(const char* name) {
  if (++numbered < NUMBERED) names[numbered] = name;
  if (numbered == faulty_call) return faulty_code;
  programs += strcmp(name, "nvrtcCreateProgram") == 0;
  programs -= strcmp(name, "nvrtcDestroyProgram") == 0;
  return 0;
}

// Numbers the calls from now on. The one of this number fails with this code; 0 for none.
void fault(int call, int code) { numbered = 0, faulty_call = call, faulty_code = code; }
// How many calls were numbered since, and their names.
int calls(void) { return numbered; }
const char* name_of(int call) { return call > 0 && call < NUMBERED ? names[call] : ""; }
// Programs that exist.
int open_programs(void) { return programs; }
