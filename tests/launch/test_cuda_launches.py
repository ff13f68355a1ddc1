"""Launches of users' kernels: parameters, clusters, and arguments that do not fit."""

import pytest
import torch
from cutlass_api import cuda_kernel
from support.cuda_launches import SQUARE, run
from support.helpers import fake


def test_a_launch_carries_every_parameter():
    run(
        """
        kernel = cuda_kernel(
            "__global__ void f(const float* x, float* out, int n, long long big, float alpha,"
            " double beta, bool on, unsigned char small, const void* any, float* none) {}",
            "f", grid=lambda x, out, n, *rest: (n, 2, 3), block=(16, 4, 2), shared_bytes=4096)
        device.expect_words(10)
        kernel(x, out, -5 + 12, -(2**40), 0.5, 0.1, True, 255, x, None)
        grid, block, cluster, shared, words = device.last_launch(10)
        assert (grid, block, cluster, shared) == ((7, 2, 3), (16, 4, 2), (1, 1, 1), 4096)
        assert words[:3] == (X, OUT, 7)
        assert words[3] == 2**64 - 2**40
        assert as_float(words[4]) == 0.5 and struct.pack("<Q", words[5]) == struct.pack("<d", 0.1)
        assert words[6:] == (1, 255, X, 0)
        assert device.library.stand_in_last_stream() == 0x5010, "torch's current one"
        kernel(x, out, 1, 0, 1, 2, False, 0, None, None, stream=0x5020)
        assert device.library.stand_in_last_stream() == 0x5020
        assert as_float(device.last_launch(10).words[4]) == 1, "an int is a number, too"
        """
    )


def test_a_typedef_may_have_the_name_of_an_element_type():
    run(
        """
        half = Tensor(X, (6, 128))
        mine = cuda_kernel("using f16 = float; __global__ void f(f16* x) {}", "f", grid=1)
        mine(x)
        with raises(TypeError, "x of f points to float32, and the tensor has dtype float16"):
            mine(half)
        source = '#include "common/types.cuh"\\n__global__ void f(f16* x) {}'
        own = cuda_kernel(source, "f", grid=1)
        own(half)
        with raises(TypeError, "x of f points to f16, and the tensor has dtype float32"):
            own(x)
        # A struct that is cast to takes a tensor of any element type.
        source = "struct f16 { float x; }; __global__ void f(void* x) { ((f16*)x)->x = 1; }"
        cuda_kernel(source, "f", grid=1)(x)
        """
    )


def test_clusters():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=(8, 4), cluster=(2, 2))
        kernel(x)
        assert device.last_launch(1).cluster == (2, 2, 1)
        with raises(ValueError, "grid [3, 1, 1] is not a multiple of cluster [2, 1, 1]"):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=3, cluster=2)(x)
        """
    )


def test_clusters_need_hopper():
    run(
        """
        device.library.stand_in_set_capability(80)
        with raises(ValueError, "cluster is [2, 1, 1]", "8.0"):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=4, cluster=2)(x)
        """
    )


def test_arguments_that_do_not_fit_are_refused_by_name():
    run(
        """
        square = cuda_kernel(
            "__global__ void square(const float* x, float* out, int n) {}", "square", grid=1
        )
        half = Tensor(X, (6, 128))
        with raises(
            TypeError, "x of square points to float32", "dtype float16", "pass one of float32"
        ):
            square(half, out, 1)
        with raises(TypeError, "square takes 3 arguments (x, out, n), and 2 were passed"):
            square(x, out)
        computed = cuda_kernel("__global__ void f(float* x, int n) {}", "f", grid=lambda x, n: n)
        with raises(TypeError, "f takes 2 arguments (x, n), and 1 were passed"):
            computed(x)
        with raises(TypeError, "n of square is int32, and the argument is 1.5; pass an int"):
            square(x, out, 1.5)
        with raises(TypeError, "n of square is int32, and the argument is 'three'"):
            square(x, out, "three")
        with raises(OverflowError, "n of square is int32, which does not hold 2147483648"):
            square(x, out, 2**31)
        with raises(OverflowError, "n of square is int32"):
            square(x, out, 2**80)
        with raises(TypeError, "n of square is a number (int32), and the argument is a tensor"):
            square(x, out, x)
        with raises(TypeError, "n of square is a number (int32), and the argument is None"):
            square(x, out, None)
        with raises(TypeError, "x of square is a pointer, and the argument is 3; pass a tensor"):
            square(3, out, 1)
        with raises(ValueError, "x of square is on cuda:0, and out of square on cuda:1"):
            square(x, f32(OUT, 6, 128, device=1), 1)
        with raises(ValueError, "no tensor among the arguments"):
            square(None, None, 1)
        """
    )


def test_numbers_that_their_type_does_not_hold():
    run(
        """
        f = cuda_kernel(
            "__global__ void f(float* x, float a, unsigned b, signed char c, bool d) {}",
            "f",
            grid=1,
        )
        device.expect_words(5)
        f(x, float("inf"), 2**32 - 1, -128, True)
        assert device.last_launch(5).words[2] == 2**32 - 1
        with raises(ValueError, "cc is -1; pass ten times major plus minor"):
            f.compile(cc=-1)
        with raises(OverflowError, "a of f is float32, which does not hold 1e+300"):
            f(x, 1e300, 0, 0, True)
        with raises(OverflowError, "b of f is uint32, which does not hold -1"):
            f(x, 0, -1, 0, True)
        with raises(OverflowError, "c of f is int8, which does not hold 128"):
            f(x, 0, 0, 128, True)
        with raises(TypeError, "d of f is bool, and the argument is 1; pass True or False"):
            f(x, 0, 0, 0, 1)
        """
    )


def test_numpy_numbers_and_tensors_of_any_rank():
    run(
        """
        import numpy
        f = cuda_kernel("__global__ void f(float* x, int n, float a) {}", "f", grid=1)
        device.expect_words(3)
        f(f32(X, 2, 3, 4), numpy.int64(7), numpy.float32(0.25))
        words = device.last_launch(3).words
        assert words[1] & 0xFFFFFFFF == 7 and as_float(words[2]) == 0.25
        """
    )


def test_memory_that_a_pointer_alone_does_not_describe():
    run(
        """
        source = "__global__ void f(const float4* x) {}"
        f = cuda_kernel(source, "f", grid=1)
        f(x)
        with raises(
            ValueError,
            "x of f points to float4, which the kernel reads at multiples of 16 bytes",
            hex(X + 4),
        ):
            f(f32(X + 4, 8))
        x.describe(X, (128, 6), strides=(1, 128), bits=32)
        with raises(ValueError, "x of f is not contiguous", "contiguous=False"):
            f(x)
        cuda_kernel(source, "f", grid=1, contiguous=False)(x)
        """
    )


def test_grids_of_nothing():
    run(
        """
        kernel = cuda_kernel(
            "__global__ void f(float* x, int n) {}", "f", grid=lambda x, n: n // 256
        )
        with raises(ValueError, "grid is [0, 1, 1], so the launch would compute nothing; round up"):
            kernel(x, 100)
        before = device.launches()
        kernel(f32(X, 0, 5), 0)
        assert device.launches() == before, "an empty tensor: nothing to do, and no error"
        with raises(ValueError, "grid is [1, 65536, 1]", "65535"):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=(1, 65536))(x)
        with raises(ZeroDivisionError):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=lambda x: 1 // 0)(x)
        """
    )


def test_the_tensors_device_is_used():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=1)
        kernel(f32(X, 8, device=1), stream=0x6010)
        assert device.library.stand_in_last_context() == 0xC1
        assert device.library.stand_in_open_contexts() == 0
        with raises(ValueError, "stream 0x5010 belongs to another device"):
            kernel(f32(X, 8, device=1), stream=0x5010)
        """
    )


def test_a_failing_launch_has_cuda_s_name():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=1)
        kernel.compile(x)
        device.fail("cuLaunchKernelEx")
        with raises(RuntimeError, "CUDA_ERROR_LAUNCH_FAILED"):
            kernel(x)
        """
    )


def test_another_function_s_program_is_refused():
    run(
        """
        one, other = (
            cuda_kernel(
                "__global__ void f(const float* x, float* out) { *out = *x + %d; }" % add,
                "f",
                grid=1,
            )
            for add in (1, 2)
        )
        with raises(ValueError, "pass the one that compile() of f returned"):
            one.launch((x, out), 1, None, other.compile())
        one.launch((x, out), 1, None, one.compile())
        assert device.launches() == 1
        """
    )


def test_after_compile_a_call_loads_nothing():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=1)
        assert kernel.compile().architecture == "sm_90a"
        loaded = device.library.stand_in_libraries()
        kernel(x)
        assert device.library.stand_in_libraries() == loaded
        """
    )


def test_tensors_on_the_cpu_and_fake_ones():
    kernel = cuda_kernel(SQUARE, "square", grid=1)
    with pytest.raises(ValueError, match="on the CPU, and square runs on a CUDA device"):
        kernel(torch.ones(3), torch.ones(3), 3)
    described = fake(4, 4, dtype=torch.float32)
    assert kernel.compile(described, described, 3, cc=90).architecture == "sm_90a"
