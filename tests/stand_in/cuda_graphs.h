// Graphs of one launch.
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
  if (prohibited()) return STREAM_CAPTURE_UNSUPPORTED;
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
  if (prohibited()) return STREAM_CAPTURE_UNSUPPORTED;
  if (flags != 0 || (graph->nodes != 1 && !graph->captured)) return INVALID_VALUE;
  *executable = new_graph();
  memcpy(*executable, graph, sizeof *graph);
  return SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams_v2(Graph* executable, Graph* node, const Node* parameters) {
  CALLED();
  if (prohibited()) return STREAM_CAPTURE_UNSUPPORTED;
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
  // As the real driver, which breaks the parent's context.
  if (is_forked) return SUCCESS;
  CALLED();
  misused += (uint64_t)capturing;
  if (capturing) return STREAM_CAPTURE_UNSUPPORTED;
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
