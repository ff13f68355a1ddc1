// A stand-in for libcuda.so.1, built by the tests. It implements the driver calls that Rutlass
// makes, records launches, fails on demand, and needs no GPU. It also provides tensors that claim
// to be on a CUDA device, through a DLPack exchange table (DLPack 1.3), so that the path from
// `run()` to the launch runs on any machine.
//
// The declarations follow the documentation of the CUDA driver API and of DLPack, as far as needed.
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_SUPPORTED = 801,
  DEVICE_UNAVAILABLE = 46,
  ILLEGAL_ADDRESS = 700,
  CONTEXT_IS_DESTROYED = 709,
  LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900
};

#define DEVICES 2
#define PARAMETER_BYTES 4096

// ---- state that tests read and set ----

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

// ---- the driver ----

static const uint64_t CONTEXT[DEVICES] = {0xC0, 0xC1};
static _Thread_local uint64_t stack[8];
static _Thread_local int depth;
static int is_reset(uint64_t context) { return reset_devices >> (context == CONTEXT[1]) & 1; }

CUresult cuInit(unsigned flags) {
  CALLED();
  initialized = 1;
  return flags == 0 ? SUCCESS : INVALID_VALUE;
}
// NVRTC queries private functions of the driver and does without them.
CUresult cuGetExportTable(const void** functions, const void* id) {
  (void)id;
  *functions = 0;
  return NOT_SUPPORTED;
}
CUresult cuDriverGetVersion(int* version) {
  CALLED();
  *version = (int)driver_version;
  return SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  CALLED();
  *count = DEVICES;
  return SUCCESS;
}
CUresult cuDeviceGet(int* device, int ordinal) {
  CALLED();
  *device = ordinal;
  return SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, int attribute, int device) {
  CALLED();
  (void)device;
  switch (attribute) {  // as an H100 answers
    case 75:
      *value = (int)capability / 10;
      break;  // compute capability, major
    case 76:
      *value = (int)capability % 10;
      break;  // minor
    case 16:
      *value = 132;
      break;  // multiprocessors
    case 13:
      *value = 1980000;
      break;  // clock in kHz
    case 36:
      *value = 2619000;
      break;  // memory clock in kHz
    case 37:
      *value = 5120;
      break;  // memory bus in bits
    case 38:
      *value = l2_bytes;
      break;  // L2 cache in bytes
    case 97:
      *value = 227 << 10;
      break;  // shared memory that a CTA may opt in to
    case 81:
      *value = 228 << 10;
      break;  // shared memory of a multiprocessor
    default:
      return INVALID_VALUE;
  }
  return SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(uint64_t* context, int device) {
  CALLED();
  *context = CONTEXT[device];
  ++contexts_retained;
  return SUCCESS;
}
CUresult cuCtxGetCurrent(uint64_t* context) {
  CALLED();
  *context = depth > 0 ? stack[depth - 1] : 0;
  return SUCCESS;
}
CUresult cuCtxPushCurrent_v2(uint64_t context) {
  CALLED();
  if (is_reset(context)) return CONTEXT_IS_DESTROYED;
  stack[depth++] = context;
  ++contexts_pushed;
  return SUCCESS;
}
CUresult cuCtxPopCurrent_v2(uint64_t* context) {
  RELEASING();
  *context = stack[--depth];
  --contexts_pushed;
  return SUCCESS;
}
CUresult cuLibraryLoadData(uint64_t* library, const void* code, void* a, void* b, unsigned c,
                           void* d, void* e, unsigned f) {
  CALLED();
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  if (memcmp(code, "\177ELF", 4) != 0) return INVALID_VALUE;
  ++libraries_loaded;
  *library = 0x1000 + ++library_numbers;
  // nvrtc_ptx.c puts PTX where the section headers of a cubin would follow.
  if (emulator_load != 0) {
    if (library_numbers >= PROGRAMS) return OUT_OF_MEMORY;
    programs[library_numbers] = emulator_load((const char*)code + 64);
    if (programs[library_numbers] < 0) return LAUNCH_FAILED;
  }
  return SUCCESS;
}
CUresult cuLibraryUnload(uint64_t library) {
  RELEASING();
  (void)library;
  --libraries_loaded;
  return SUCCESS;
}
CUresult cuLibraryGetKernel(uint64_t* kernel, uint64_t library, const char* name) {
  CALLED();
  (void)name;
  *kernel = library + 0x1000;
  return SUCCESS;
}
CUresult cuKernelSetAttribute(int attribute, int value, uint64_t kernel, int device) {
  CALLED();
  (void)attribute, (void)value, (void)kernel, (void)device;
  return SUCCESS;
}
static uint64_t current_context(void) { return depth > 0 ? stack[depth - 1] : 0; }
// A function handle is the kernel handle with the context in the upper half.
CUresult cuKernelGetFunction(uint64_t* function, uint64_t kernel) {
  CALLED();
  if (current_context() == 0) return INVALID_CONTEXT;
  *function = current_context() << 32 | kernel;
  return SUCCESS;
}
CUresult cuStreamGetCtx(uint64_t stream, uint64_t* context) {
  CALLED();
  // Stream handles of the stand-in: 0x5000 and up are device 0's, 0x6000 and up device 1's.
  if (stream < 0x5000 || stream >= 0x7000) return INVALID_HANDLE;
  *context = CONTEXT[stream >= 0x6000];
  return SUCCESS;
}
CUresult cuTensorMapEncodeTiled(TensorMap* map, int type, unsigned rank, uint64_t address,
                                const uint64_t* extents, const uint64_t* strides,
                                const uint32_t* box, const uint32_t* steps, int interleave,
                                int swizzle, int promotion, int fill) {
  CALLED();
  (void)interleave, (void)fill;
  // The errors of the real driver.
  if (depth == 0) return INVALID_CONTEXT;
  if (rank < 1 || rank > 5 || address % 16 != 0) return INVALID_VALUE;
  for (unsigned at = 0; at < rank; ++at)
    if (extents[at] == 0 || extents[at] > 1ull << 32 || box[at] == 0 || box[at] > 256 ||
        steps[at] != 1)
      return INVALID_VALUE;
  // The bytes of an element of each CUtensorMapDataType.
  static const unsigned char element[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  if (type < 0 || type >= (int)sizeof element || box[0] * element[type] % 16 != 0)
    return INVALID_VALUE;
  for (unsigned at = 0; at + 1 < rank; ++at)
    if (strides[at] == 0 || strides[at] % 16 != 0 || strides[at] >= 1ull << 40)
      return INVALID_VALUE;
  map->type = type, map->swizzle = swizzle, map->promotion = promotion, map->address = address;
  map->rank = rank;
  for (unsigned at = 0; at < 5; ++at) {
    map->extents[at] = at < rank ? extents[at] : 1;
    map->box[at] = at < rank ? box[at] : 1;
    if (at < 4) map->strides[at] = at + 1 < rank ? strides[at] : 0;
  }
  return SUCCESS;
}
CUresult cuTensorMapReplaceAddress(TensorMap* map, uint64_t address) {
  CALLED();
  if (depth == 0) return INVALID_CONTEXT;
  if (address % 16 != 0) return INVALID_VALUE;
  map->address = address;
  return SUCCESS;
}
CUresult cuMemPoolCreate(uint64_t* pool, const void* properties) {
  CALLED();
  if (capturing) return CAPTURE_UNSUPPORTED;
  (void)properties;
  *pool = 0x9000;
  ++pools_open;
  return SUCCESS;
}
CUresult cuMemPoolDestroy(uint64_t pool) {
  RELEASING();
  --pools_open;
  return pool == 0x9000 ? SUCCESS : INVALID_VALUE;
}
CUresult cuMemPoolSetAttribute(uint64_t pool, int attribute, void* value) {
  CALLED();
  (void)pool, (void)attribute, (void)value;
  return SUCCESS;
}
CUresult cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, uint64_t pool, uint64_t stream) {
  CALLED();
  (void)pool, (void)stream;
  *address = 0x70000000;
  if (emulator_allow != 0) {
    *address = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset((void*)*address, 0xff, bytes);
    emulator_allow(*address, bytes);
  }
  last_allocation = bytes;
  ++allocations;
  return SUCCESS;
}
CUresult cuMemFreeAsync(uint64_t address, uint64_t stream) {
  CALLED();
  (void)stream;
  if (emulator_forbid != 0) {
    emulator_forbid(address);
    free((void*)address);
  } else if (address != 0x70000000) {
    return INVALID_VALUE;
  }
  --allocations;
  return SUCCESS;
}
typedef struct { unsigned id, padding, value[16]; } LaunchAttribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  uint64_t stream;
  const LaunchAttribute* attributes;
  unsigned count;
} LaunchConfig;
// ---- graphs of one launch ----

// A graph, its node, or its executable graph.
typedef struct {
  Launch launch;
  int nodes;
  _Atomic int launching;
  // A capture: its launches take this long.
  int captured;
  uint64_t nanoseconds;
} Graph;
// As the driver API declares a kernel node.
typedef struct {
  uint64_t function;
  unsigned grid[3], block[3], shared_bytes;
  void **parameters, **extra;
  uint64_t kernel, context;
} Node;
static _Thread_local int capture_mode;  // 0: global, 2: relaxed

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  CALLED();
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return SUCCESS;
}
// Whether a capture prohibits the call: unless the thread's capture mode is relaxed.
static int prohibited(void) {
  const int is = capturing && capture_mode != 2;
  misused += (uint64_t)is;
  return is;
}
static Graph* new_graph(void) {
  ++graphs_open;
  return calloc(1, sizeof(Graph));
}
static CUresult free_graph(Graph* graph) {
  if (prohibited()) return CAPTURE_UNSUPPORTED;
  free(graph);
  --graphs_open;
  return SUCCESS;
}
static CUresult set_node(Launch* launch, const Node* node) {
  if (node->extra != 0 || node->kernel != 0 || node->context != 0) return INVALID_VALUE;
  memcpy(launch->grid, node->grid, sizeof launch->grid);
  memcpy(launch->block, node->block, sizeof launch->block);
  launch->shared_bytes = node->shared_bytes;
  launch->context = node->function >> 32;
  launch->kernel = node->function & UINT32_MAX;
  memcpy(launch->parameters, node->parameters[0], parameter_bytes);
  if (more_bytes != 0) memcpy(launch->more, node->parameters[1], more_bytes);
  return SUCCESS;
}
CUresult cuGraphCreate(Graph** graph, unsigned flags) {
  CALLED();
  if (flags != 0) return INVALID_VALUE;
  *graph = new_graph();
  return SUCCESS;
}
CUresult cuGraphAddKernelNode_v2(Graph** node, Graph* graph, const void* before, size_t count,
                                 const Node* parameters) {
  CALLED();
  if (before != 0 || count != 0 || graph->nodes++ != 0) return INVALID_VALUE;
  for (unsigned at = 0; at < 3; ++at) graph->launch.cluster[at] = 1;
  *node = graph;
  return set_node(&graph->launch, parameters);
}
CUresult cuGraphKernelNodeSetAttribute(Graph* node, int attribute, const unsigned* value) {
  CALLED();
  if (attribute != 4) return INVALID_VALUE;  // cluster dimension
  memcpy(node->launch.cluster, value, sizeof node->launch.cluster);
  return SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(Graph** executable, const Graph* graph,
                                     unsigned long long flags) {
  CALLED();
  if (prohibited()) return CAPTURE_UNSUPPORTED;
  if (flags != 0 || (graph->nodes != 1 && !graph->captured)) return INVALID_VALUE;
  *executable = new_graph();
  memcpy(*executable, graph, sizeof *graph);
  return SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams_v2(Graph* executable, Graph* node, const Node* parameters) {
  CALLED();
  if (prohibited()) return CAPTURE_UNSUPPORTED;
  if (current_context() != executable->launch.context) return INVALID_CONTEXT;
  misused += executable->launching != 0;
  if (executable == node) return INVALID_VALUE;
  return set_node(&executable->launch, parameters);
}
CUresult cuGraphDestroy(Graph* graph) {
  CALLED();
  return free_graph(graph);
}
static void hold(void) {
  if (!atomic_exchange(&hold_next, 0)) return;
  is_holding = 1;
  const struct timespec millisecond = {0, 1000000};
  for (int waited = 0; is_holding && waited < 5000; ++waited) nanosleep(&millisecond, 0);
  misused += (uint64_t)atomic_exchange(&is_holding, 0);
}
CUresult cuGraphExecDestroy(Graph* executable) {
  CALLED();
  hold();
  return free_graph(executable);
}
// Stream handles that end in 0xE0 and up are a green context's.
CUresult cuStreamGetGreenCtx(uint64_t stream, uint64_t* context) {
  CALLED();
  *context = (stream & 0xFF) >= 0xE0 ? 0xEE : 0;
  return SUCCESS;
}
CUresult cuStreamIsCapturing(uint64_t stream, int* status) {
  CALLED();
  (void)stream;
  *status = capturing;
  return SUCCESS;
}

static void block(void) {
  if (blocking_milliseconds) {
    struct timespec pause = {blocking_milliseconds / 1000, blocking_milliseconds % 1000 * 1000000L};
    nanosleep(&pause, 0);
  }
}
// A stream belongs to a context; the default stream belongs to the current one.
static uint64_t context_of(uint64_t stream) {
  return stream >= 0x5000 && stream < 0x7000 ? CONTEXT[stream >= 0x6000] : current_context();
}
static int device_of(uint64_t stream) { return context_of(stream) == CONTEXT[1]; }
CUresult cuGraphLaunch(Graph* graph, uint64_t stream) {
  CALLED();
  misused += (uint64_t)capturing;
  if (capturing) return CAPTURE_UNSUPPORTED;
  misused += graph->launching++ != 0;
  block();
  nanoseconds[device_of(stream)] += graph->nanoseconds;
  if (graph->captured) {
    --graph->launching;
    return SUCCESS;
  }
  const CUresult result = context_of(stream) != graph->launch.context ? INVALID_CONTEXT : SUCCESS;
  if (result == SUCCESS) {
    ++launches;
    ++graph_launches;
    memcpy(&last, &graph->launch, offsetof(Launch, parameters));
    memcpy(last.parameters, graph->launch.parameters, parameter_bytes);
    if (more_bytes != 0) memcpy(last.more, graph->launch.more, more_bytes);
    last.stream = stream;
  }
  --graph->launching;
  return result;
}
// ---- streams, memory and times ----

// The capture on each device, if there is one.
static struct {
  Graph* graph;
  uint64_t stream;
} captures[DEVICES];

CUresult cuDeviceGetName(char* name, int length, int device) {
  CALLED();
  snprintf(name, (size_t)length, "stand-in %d", names_alike ? 0 : device);
  return SUCCESS;
}
CUresult cuStreamCreate(uint64_t* stream, unsigned flags) {
  CALLED();
  if (flags != 1 || current_context() == 0) return INVALID_VALUE;
  *stream = (current_context() == CONTEXT[0] ? 0x5800 : 0x6800) + streams_open++ % 0x80;
  return SUCCESS;
}
CUresult cuStreamDestroy_v2(uint64_t stream) {
  RELEASING();
  (void)stream;
  --streams_open;
  return SUCCESS;
}
CUresult cuCtxSynchronize(void) {
  CALLED();
  return capturing ? CAPTURE_UNSUPPORTED : SUCCESS;
}
CUresult cuStreamSynchronize(uint64_t stream) {
  CALLED();
  (void)stream;
  return SUCCESS;
}
CUresult cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  CALLED();
  if (current_context() == 0 || bytes == 0) return INVALID_VALUE;
  if (memory_open >= memory_left) return OUT_OF_MEMORY;
  // Half a gibibyte for each block.
  *address = 0x100000000000 + (++memory_open << 29);
  if (emulator_allow != 0) {
    *address = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    emulator_allow(*address, bytes);
  }
  return SUCCESS;
}
CUresult cuMemFree_v2(uint64_t address) {
  RELEASING();
  if (emulator_forbid != 0) {
    emulator_forbid(address);
    free((void*)address);
  }
  --memory_open;
  return SUCCESS;
}
// Only the emulator has memory to copy.
CUresult cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, uint64_t stream) {
  CALLED();
  (void)stream;
  if (emulator_allow != 0) memcpy((void*)to, (const void*)from, bytes);
  return SUCCESS;
}
CUresult cuMemcpyPeerAsync(uint64_t to, uint64_t to_context, uint64_t from, uint64_t from_context,
                           size_t bytes, uint64_t stream) {
  CALLED();
  (void)to, (void)from, (void)bytes;
  return to_context == from_context || to_context != context_of(stream) ? INVALID_VALUE : SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, uint64_t stream) {
  CALLED();
  (void)stream;
  if (emulator_allow != 0) memcpy(to, (const void*)from, bytes);
  return SUCCESS;
}
CUresult cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, uint64_t stream) {
  CALLED();
  (void)stream;
  if (emulator_allow != 0) memset((void*)address, byte, bytes);
  return SUCCESS;
}
CUresult cuStreamBeginCapture_v2(uint64_t stream, int mode) {
  CALLED();
  const int at = device_of(stream);
  if (mode != 2 || captures[at].graph != 0) return INVALID_VALUE;
  captures[at].graph = new_graph();
  captures[at].graph->captured = 1;
  captures[at].stream = stream;
  return SUCCESS;
}
CUresult cuStreamEndCapture(uint64_t stream, Graph** graph) {
  const CUresult result = called(__func__);
  const int at = device_of(stream);
  if (captures[at].graph == 0 || stream != captures[at].stream) return INVALID_VALUE;
  // A capture that fails has ended, too, without a graph.
  *graph = result == SUCCESS ? captures[at].graph : 0;
  if (result != SUCCESS) free_graph(captures[at].graph);
  captures[at].graph = 0;
  captures[at].stream = 0;
  return result;
}
// A launch takes longer the more shared memory and the more CTAs it has.
static uint64_t duration(const LaunchConfig* config) {
  return 1000 + config->shared_bytes / 64 + config->grid[0];
}
CUresult cuEventCreate(uint64_t** event, unsigned flags) {
  CALLED();
  if (flags != 0) return INVALID_VALUE;
  *event = calloc(1, sizeof **event);
  ++events_open;
  return SUCCESS;
}
CUresult cuEventDestroy_v2(uint64_t* event) {
  RELEASING();
  free(event);
  --events_open;
  return SUCCESS;
}
CUresult cuEventRecord(uint64_t* event, uint64_t stream) {
  CALLED();
  *event = nanoseconds[device_of(stream)];
  return SUCCESS;
}
CUresult cuEventSynchronize(uint64_t* event) {
  CALLED();
  (void)event;
  return SUCCESS;
}
CUresult cuEventElapsedTime(float* milliseconds, const uint64_t* begin, const uint64_t* end) {
  CALLED();
  *milliseconds = (float)(*end - *begin) * 1e-6f;
  return SUCCESS;
}
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags,
                             int* status) {
  CALLED();
  if (strcmp(name, "cuEventElapsedTime") != 0 || version != 12000 || flags != 0)
    return INVALID_VALUE;
  CUresult (*found)(float*, const uint64_t*, const uint64_t*) = cuEventElapsedTime;
  memcpy(function, &found, sizeof found);
  *status = 0;
  return SUCCESS;
}

// ---- launches ----

CUresult cuLaunchKernelEx(const LaunchConfig* config, uint64_t kernel, void** parameters,
                          void** extra) {
  CALLED();
  (void)extra;
  block();
  const uint64_t stream = config->stream;
  const uint64_t of_stream = context_of(stream);
  if (of_stream == 0 || (strict && current_context() == 0)) return INVALID_CONTEXT;
  if (is_reset(of_stream)) return CONTEXT_IS_DESTROYED;
  if (strict && of_stream != current_context()) return INVALID_HANDLE;
  if (of_stream != kernel >> 32) return INVALID_HANDLE;
  const int at_device = device_of(stream);
  if (captures[at_device].graph != 0 && stream == captures[at_device].stream) {
    captures[at_device].graph->nanoseconds += duration(config);
    return SUCCESS;
  }
  nanoseconds[at_device] += duration(config);
  if (launches++ == skipped_launch) return SUCCESS;
  memcpy(last.grid, config->grid, sizeof last.grid);
  memcpy(last.block, config->block, sizeof last.block);
  last.shared_bytes = config->shared_bytes;
  for (unsigned at = 0; at < 3; ++at) last.cluster[at] = 1;
  last.overlapping = 0;
  for (unsigned at = 0; at < config->count; ++at) {
    const LaunchAttribute* attribute = config->attributes + at;
    if (attribute->id == 4)
      memcpy(last.cluster, attribute->value, sizeof last.cluster);  // cluster dimension
    if (attribute->id == 6)
      last.overlapping = attribute->value[0];  // programmatic stream serialization
  }
  last.stream = config->stream;
  last.context = of_stream;
  last.kernel = kernel & UINT32_MAX;
  if (emulator_launch != 0)
    return emulator_launch(programs[last.kernel - 0x2000], last.grid, last.block, last.cluster,
                           last.shared_bytes, parameters)
               ? LAUNCH_FAILED
               : SUCCESS;
  for (unsigned at = 0; at < parameter_words; ++at)
    memcpy(last.parameters + 8 * at, parameters[at], 8);
  if (parameter_words != 0) return SUCCESS;
  memcpy(last.parameters, parameters[0], parameter_bytes);
  if (more_bytes != 0) memcpy(last.more, parameters[1], more_bytes);
  return SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  switch (error) {
    case INVALID_VALUE:
      *text = "CUDA_ERROR_INVALID_VALUE";
      break;
    case OUT_OF_MEMORY:
      *text = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case NOT_INITIALIZED:
      *text = "CUDA_ERROR_NOT_INITIALIZED";
      break;
    case CONTEXT_IS_DESTROYED:
      *text = "CUDA_ERROR_CONTEXT_IS_DESTROYED";
      break;
    case INVALID_CONTEXT:
      *text = "CUDA_ERROR_INVALID_CONTEXT";
      break;
    case INVALID_HANDLE:
      *text = "CUDA_ERROR_INVALID_HANDLE";
      break;
    case DEVICE_UNAVAILABLE:
      *text = "CUDA_ERROR_DEVICE_UNAVAILABLE";
      break;
    case ILLEGAL_ADDRESS:
      *text = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case CAPTURE_UNSUPPORTED:
      *text = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
      break;
    case LAUNCH_FAILED:
      *text = "CUDA_ERROR_LAUNCH_FAILED";
      break;
    default:
      return INVALID_VALUE;
  }
  return SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  const int described = error == LAUNCH_FAILED && emulator_fault != 0;
  *text = described ? emulator_fault() : "as the test asked";
  return SUCCESS;
}

// ---- tensors on a device that does not exist ----

typedef struct { int32_t device_type, device_id; } Device;
typedef struct {
  void* data;
  Device device;
  int32_t rank;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

// The tensors that were described last, by the address of the test's Python object.
#define TENSORS 64
static struct {
  void* object;
  uint64_t described;  // the number of this description; 0 for none
  Tensor tensor;
  int64_t shape[3], strides[3];
} tensors[TENSORS];
static uint64_t descriptions;
// ctypes releases the GIL while it describes a tensor.
static pthread_mutex_t describing = PTHREAD_MUTEX_INITIALIZER;
static uint64_t current_stream;

void stand_in_describe(void* object, uint64_t data, int device, int rank, int code, int bits,
                       const int64_t* shape, const int64_t* strides) {
  pthread_mutex_lock(&describing);
  int at = 0;
  for (int other = 0; other < TENSORS; ++other) {
    if (tensors[other].object == object) {
      at = other;
      break;
    }
    if (tensors[other].described < tensors[at].described) at = other;
  }
  tensors[at].object = object;
  tensors[at].described = ++descriptions;
  memcpy(tensors[at].shape, shape, sizeof(int64_t) * (size_t)rank);
  memcpy(tensors[at].strides, strides, sizeof(int64_t) * (size_t)rank);
  Tensor* tensor = &tensors[at].tensor;
  tensor->data = (void*)data;
  tensor->device.device_type = 2;  // kDLCUDA
  tensor->device.device_id = device;
  tensor->rank = rank;
  tensor->dtype.code = (uint8_t)code;
  tensor->dtype.bits = (uint8_t)bits;
  tensor->dtype.lanes = 1;
  tensor->shape = tensors[at].shape;
  tensor->strides = tensors[at].strides;
  tensor->byte_offset = 0;
  pthread_mutex_unlock(&describing);
}
void stand_in_set_current_stream(uint64_t stream) { current_stream = stream; }

// No thread describes `object` meanwhile. Hence no lock, whose instructions would count as those of
// the hot path.
static int view(void* object, Tensor* out) {
  for (int at = 0; at < TENSORS; ++at) {
    if (tensors[at].object == object) {
      *out = tensors[at].tensor;
      return 0;
    }
  }
  return -1;
}
static int stream(int device_type, int32_t device, void** out) {
  (void)device_type, (void)device;
  *out = (void*)current_stream;
  return 0;
}
static const struct {
  uint32_t major, minor;
  void *previous, *allocate, *export_managed, *import_managed;
  int (*view)(void*, Tensor*);
  int (*stream)(int, int32_t, void**);
} table = {1, 3, 0, 0, 0, 0, view, stream};
const void* stand_in_exchange_table(void) { return &table; }

// ---- breakpoints for count.c ----

void stand_in_begin(void) { __asm__ volatile("int3"); }
void stand_in_end(void) { __asm__ volatile("int3"); }
