"""Scripts that tune kernels on the stand-in driver."""

#: Keeps warnings in a list.
CAUGHT = """
import warnings
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, *more, **others: caught.append(str(message))
"""
#: Names of what `get_kernels(args)` returns, the number of open handles, and times of kernels.
HELPERS = """
    from cutlass_api import tuning
    from cutlass_api.tuning import _tuner

    def names(args=args):
        return [kernel.metadata.kernel_name for kernel in cutlass_api.get_kernels(args)]

    def handles():
        library = device.library
        open_ = (library.stand_in_open_memory, library.stand_in_open_streams)
        open_ += (library.stand_in_open_events, library.stand_in_open_graphs)
        return [count() for count in open_]

    def times(kernels=None):
        benchmark = cutlass_api._core.TuningBenchmark(args)
        kernels = kernels or cutlass_api.get_kernels(args)[:6]
        return {
            kernel.metadata.kernel_name: benchmark.record(benchmark.compile(kernel)).turn(3)
            for kernel in kernels
        }
"""
