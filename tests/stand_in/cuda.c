// A stand-in for libcuda.so.1, built by the tests. It implements the driver calls that Rutlass
// makes, records launches, fails on demand, and needs no GPU. It also provides tensors that claim
// to be on a CUDA device, through a DLPack exchange table (DLPack 1.3), so that the path from
// `run()` to the launch runs on any machine.
//
// The declarations follow the documentation of the CUDA driver API and of DLPack, as far as needed.
#include "cuda_state.h"

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
  if (capturing) return STREAM_CAPTURE_UNSUPPORTED;
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

#include "cuda_graphs.h"

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
  return capturing ? STREAM_CAPTURE_UNSUPPORTED : SUCCESS;
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
#define ERROR(name, code)        \
  case code:                     \
    *text = "CUDA_ERROR_" #name; \
    return SUCCESS;
  switch (error) {
    ERRORS(ERROR)
    default:
      return INVALID_VALUE;
  }
#undef ERROR
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  const int described = error == LAUNCH_FAILED && emulator_fault != 0;
  *text = described ? emulator_fault() : "as the test asked";
  return SUCCESS;
}

#include "cuda_tensors.h"

// ---- breakpoints for count.c ----

void stand_in_begin(void) { __asm__ volatile("int3"); }
void stand_in_end(void) { __asm__ volatile("int3"); }
