"""The calls of the driver that Rutlass makes, each named once."""

import re

#: The calls that each group of paths makes, one name after another.
CALLS = {
    group: set(names.split())
    for group, names in {
        "opening": """
            cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName
            cuDevicePrimaryCtxRetain cuDriverGetVersion cuInit
        """,
        "run": """
            cuCtxGetCurrent cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuKernelGetFunction
            cuKernelSetAttribute cuLaunchKernelEx cuLibraryGetKernel cuLibraryLoadData
            cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolCreate cuMemPoolSetAttribute
            cuStreamGetCtx cuTensorMapEncodeTiled cuTensorMapReplaceAddress
        """,
        "graphs": """
            cuGraphAddKernelNode_v2 cuGraphCreate cuGraphExecKernelNodeSetParams_v2
            cuGraphInstantiateWithFlags cuGraphKernelNodeSetAttribute cuGraphLaunch
            cuStreamGetGreenCtx cuStreamIsCapturing cuThreadExchangeStreamCaptureMode
        """,
        "products": """
            cuLaunchKernelEx cuMemAllocFromPoolAsync cuTensorMapEncodeTiled
        """,
        "tuner": """
            cuCtxSynchronize cuEventCreate cuEventDestroy_v2 cuEventElapsedTime cuEventRecord
            cuEventSynchronize cuGetProcAddress_v2 cuGraphDestroy cuGraphExecDestroy
            cuMemAlloc_v2 cuMemFree_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemsetD8Async
            cuStreamBeginCapture_v2 cuStreamCreate cuStreamDestroy_v2 cuStreamEndCapture
            cuStreamSynchronize
        """,
    }.items()
}
#: Calls that these paths make after another call has failed, or from another device.
OTHERS = {
    *("cuGetErrorName", "cuGetErrorString"),
    *("cuLibraryUnload", "cuMemPoolDestroy", "cuMemcpyPeerAsync"),
}
ALL = OTHERS.union(*CALLS.values())
#: Calls that may precede a release. If one fails, what is released is released all the same.
BEFORE_RELEASES = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2"}
#: Calls that promotion to a graph makes. If one fails, the launch is made without a graph.
GRAPHS = CALLS["graphs"] | BEFORE_RELEASES
#: Calls whose failure raises nothing: what they release stays.
RELEASES = {name for name in ALL if re.search(r"Destroy|Free_|PopCurrent|Unload", name)}
