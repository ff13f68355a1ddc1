// What the stand-in for the driver holds: errors, counts, faults, and the functions by which tests
// read and set them.
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
// The errors that the stand-in returns, and their codes.
#define ERRORS(ERROR)              \
  ERROR(INVALID_VALUE, 1)          \
  ERROR(OUT_OF_MEMORY, 2)          \
  ERROR(NOT_INITIALIZED, 3)        \
  ERROR(DEVICE_UNAVAILABLE, 46)    \
  ERROR(INVALID_CONTEXT, 201)      \
  ERROR(INVALID_HANDLE, 400)       \
  ERROR(ILLEGAL_ADDRESS, 700)      \
  ERROR(CONTEXT_IS_DESTROYED, 709) \
  ERROR(LAUNCH_FAILED, 719)        \
  ERROR(NOT_SUPPORTED, 801)        \
  ERROR(STREAM_CAPTURE_UNSUPPORTED, 900)
#define ERROR(name, code) name = code,
enum { SUCCESS = 0, ERRORS(ERROR) };
#undef ERROR

#define DEVICES 2
#define PARAMETER_BYTES 4096

// A tensor map as the stand-in encodes it: the plain arguments, 128 bytes.
typedef struct {
  int32_t type, swizzle;
  // 1 beyond the rank, as the box; strides are 0 there.
  uint64_t address, extents[5], strides[4];
  uint32_t box[5];
  int32_t promotion;
  uint32_t rank;
  unsigned char padding[12];
} TensorMap;
_Static_assert(sizeof(TensorMap) == 128, "CUtensorMap");

typedef struct {
  unsigned grid[3], block[3], shared_bytes, cluster[3], overlapping;
  uint64_t stream, context, kernel;
  unsigned char parameters[PARAMETER_BYTES], more[PARAMETER_BYTES];
} Launch;
static Launch last;
static _Atomic uint64_t launches, calls, contexts_pushed, libraries_loaded;
static char failing_call[64];
static int failing_code;
// The fault: calls are numbered from 1, and this one fails, and so do all later ones if it lasts.
#define NUMBERED 8192
static _Atomic uint64_t numbered;
static const char* names[NUMBERED];
static uint64_t faulty_call;
static int faulty_code, fault_lasts;
// Whether calls are numbered, or calls of some names or of this process fail.
static int watched;
// Whether this process is a fork of one that has called cuInit.
static int is_forked;
// The devices that were reset, as bits.
static _Atomic unsigned reset_devices;
static unsigned capability = 90;
static unsigned parameter_bytes = 128, more_bytes = 0, parameter_words = 0;
static _Atomic int blocking_milliseconds;
// Whether the next destruction of a graph waits, or one waits.
static _Atomic int hold_next, is_holding;
static _Atomic uint64_t allocations, last_allocation;
static int capturing, strict;
static unsigned driver_version = 13000;
// The emulator's functions, if launches are executed (emulated.py): load a program, run a grid,
// describe the last error, allow memory and forbid it.
static int64_t (*emulator_load)(const char*);
static int (*emulator_launch)(int64_t, const unsigned*, const unsigned*, const unsigned*, unsigned,
                              void* const*);
static const char* (*emulator_fault)(void);
static void (*emulator_allow)(uint64_t, uint64_t);
static void (*emulator_forbid)(uint64_t);
// The emulator's programs by the number of their library.
#define PROGRAMS 65536
static int64_t programs[PROGRAMS];
static _Atomic uint64_t library_numbers;
static _Atomic uint64_t graphs_open, graph_launches, misused;
static _Atomic uint64_t pools_open, contexts_retained;
// Each device's clock, which launches advance; streams, events and memory that exist.
static _Atomic uint64_t nanoseconds[DEVICES], streams_open, events_open, memory_open;
static uint64_t memory_left = UINT64_MAX;
static int l2_bytes = 50 << 20;
static int names_alike;
static uint64_t skipped_launch = UINT64_MAX;

uint64_t stand_in_launches(void) { return launches; }
uint64_t stand_in_calls(void) { return calls; }
uint64_t stand_in_open_contexts(void) { return contexts_pushed; }
uint64_t stand_in_libraries(void) { return libraries_loaded; }
uint64_t stand_in_last_stream(void) { return last.stream; }
uint64_t stand_in_last_context(void) { return last.context; }
uint64_t stand_in_allocations(void) { return allocations; }
// Graphs and executable graphs that exist; and launches of graphs.
uint64_t stand_in_open_graphs(void) { return graphs_open; }
uint64_t stand_in_graph_launches(void) { return graph_launches; }
// Calls that would invalidate a capture, or use a graph from two threads at once.
uint64_t stand_in_misused(void) { return misused; }
uint64_t stand_in_open_streams(void) { return streams_open; }
uint64_t stand_in_open_events(void) { return events_open; }
uint64_t stand_in_open_pools(void) { return pools_open; }
uint64_t stand_in_retained_contexts(void) { return contexts_retained; }
void stand_in_set_l2(int bytes) { l2_bytes = bytes; }
// Blocks of memory of cuMemAlloc that exist, and how many more there may be.
uint64_t stand_in_open_memory(void) { return memory_open; }
void stand_in_limit_memory(uint64_t blocks) { memory_left = blocks; }
// Names all devices alike.
void stand_in_name_alike(void) { names_alike = 1; }
// The next launch but this many does nothing: a kernel that writes no output.
void stand_in_skip_launch(uint64_t after) { skipped_launch = launches + after; }
void stand_in_emulate(void* load, void* launch, void* fault, void* allow, void* forbid) {
  memcpy(&emulator_load, &load, sizeof load);
  memcpy(&emulator_launch, &launch, sizeof launch);
  memcpy(&emulator_fault, &fault, sizeof fault);
  memcpy(&emulator_allow, &allow, sizeof allow);
  memcpy(&emulator_forbid, &forbid, sizeof forbid);
}
void stand_in_set_driver_version(unsigned version) { driver_version = version; }
uint64_t stand_in_last_allocation(void) { return last_allocation; }
// Whether a stream is being captured. During a capture, some calls are prohibited.
void stand_in_capture(int on) { capturing = on; }
// Whether a launch fails if its stream belongs to another context than the current one.
void stand_in_launch_in_current_context_alone(int on) { strict = on; }
void stand_in_forget_allocations(void) { allocations = 0; }
void stand_in_expect(unsigned bytes) { parameter_bytes = bytes; }
unsigned stand_in_last_cluster(void) { return last.cluster[0] * last.cluster[1] * last.cluster[2]; }
unsigned stand_in_last_overlapping(void) { return last.overlapping; }
unsigned stand_in_last_grid(void) { return last.grid[0]; }
unsigned stand_in_last_block(void) { return last.block[0]; }
unsigned stand_in_last_shared_bytes(void) { return last.shared_bytes; }
const unsigned char* stand_in_last_parameters(void) { return last.parameters; }
// The second kernel parameter; its size is set with stand_in_expect_more.
const unsigned char* stand_in_last_more(void) { return last.more; }
// Sets the number of kernel parameters of up to 8 bytes, each recorded in a word; 0: one parameter
// block.
void stand_in_expect_words(unsigned words) { parameter_words = words; }
const unsigned* stand_in_last_extents(int of) {
  return of == 0 ? last.grid : of == 1 ? last.block : last.cluster;
}
void stand_in_expect_more(unsigned bytes) { more_bytes = bytes; }
void stand_in_set_capability(unsigned cc) { capability = cc; }
// Makes each launch take this long, as when the stream's queue is full.
void stand_in_block(int milliseconds) { blocking_milliseconds = milliseconds; }
// Makes the next destruction of an executable graph wait until it is released. After 5 seconds, the
// wait ends as a misuse.
void stand_in_hold_destruction(void) { hold_next = 1; }
int stand_in_is_holding(void) { return is_holding; }
void stand_in_release_destruction(void) { is_holding = 0; }

// Calls of these names, separated by spaces, fail with this code; an empty string ends that.
void stand_in_fail(const char* call, int code) {
  snprintf(failing_call, sizeof failing_call, "%s", call);
  failing_code = code;
  watched = call[0] != 0;
}
// Numbers the calls from now on. The one of this number fails with this code, and so does every
// later one if the fault lasts; 0 for none.
void stand_in_fault(uint64_t call, int code, int lasts) {
  faulty_call = call, faulty_code = code, fault_lasts = lasts;
  numbered = 0;
  watched = 1;
}
// Ends the fault. Returns how many calls were numbered; `stand_in_numbered` names them.
uint64_t stand_in_end_fault(void) {
  faulty_call = 0;
  watched = failing_call[0] != 0;
  return numbered;
}
const char* stand_in_numbered(uint64_t call) {
  return call >= 1 && call <= numbered && call < NUMBERED ? names[call] : "";
}

static _Atomic int initialized;
static void mark_child(void) {
  is_forked = initialized;
  watched |= is_forked;
}
// From now on, the driver does not survive a fork, as the real one. Without it, tests fork after
// they have opened a device.
void stand_in_end_in_forks(void) { pthread_atfork(0, 0, mark_child); }
// Another library resets a device.
void stand_in_reset(int device) { reset_devices |= 1u << device; }

static CUresult watch(const char* name) {
  if (is_forked) return NOT_INITIALIZED;
  const uint64_t number = ++numbered;
  if (number < NUMBERED) names[number] = name;
  if (faulty_call != 0 && (number == faulty_call || (fault_lasts && number > faulty_call)))
    return faulty_code;
  if (failing_call[0] == 0) return SUCCESS;
  const size_t length = strlen(name);
  for (const char* at = failing_call; (at = strstr(at, name)) != 0; at += length)
    if ((at == failing_call || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
      return failing_code;
  return SUCCESS;
}
static CUresult called(const char* name) {
  ++calls;
  return watched ? watch(name) : SUCCESS;
}
// At the start of each call of the driver.
#define CALLED()                            \
  do {                                      \
    CUresult result_ = called(__func__);    \
    if (result_ != SUCCESS) return result_; \
  } while (0)
// At the start of a call that releases something, which `stand_in_calls` leaves out.
#define RELEASING()                                         \
  do {                                                      \
    CUresult result_ = watched ? watch(__func__) : SUCCESS; \
    if (result_ != SUCCESS) return result_;                 \
  } while (0)
