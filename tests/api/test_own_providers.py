"""Providers written in Python."""

import cutlass_api
import pytest
from support.helpers import names, run_python

PROVIDER = """
import numpy as np
import pytest
import cutlass_api
from cutlass_api.arguments import GemmArguments
from cutlass_api.artifact import CompiledArtifact
from cutlass_api.metadata import (
    BLASDesignMetadata,
    DenseTensorAttributes,
    GemmOperandsMetadata,
    KernelMetadata,
)
from cutlass_api.providers import ProviderBase, available_providers, register_provider

def args_of(dtype=np.float32, m=4):
    a, b = np.ones((m, 5), dtype), np.ones((5, 6), dtype)
    return GemmArguments(a, b, np.zeros((m, 6), dtype), accumulator_type="float32")

@register_provider("mine")
class Mine(ProviderBase):
    "Kernels of one's own."

asked = []

@Mine.register
class Numpy(cutlass_api.Kernel):
    def compile(self, args, cc=None):
        return CompiledArtifact(np.matmul, self)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        a, b, out = (operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out))
        compiled_artifact.compiled_obj(a, b, out=out)

    def _supports(self, args):
        return (
            cutlass_api.Status.success()
            if args.A.shape[0] < 100
            else cutlass_api.Status.fail("too many rows")
        )

    @staticmethod
    def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
        asked.append((metadata_filter, epilogue_args, cc))
        for name, dtype, min_cc in (("mine_f32", "float32", 0), ("mine_f64", "float64", 90)):
            dense = DenseTensorAttributes(dtype)
            operands = GemmOperandsMetadata(dense, dense, dense, "float32")
            metadata = KernelMetadata(
                name, Numpy, min_cc, operands, BLASDesignMetadata((1, 1, 1), (1, 1, 1))
            )
            if metadata_filter(metadata):
                yield Numpy(metadata)

def names(kernels):
    return [kernel.metadata.kernel_name for kernel in kernels]

def mine(*args, **kwargs):
    found = names(cutlass_api.get_kernels(*args, **kwargs))
    return [name for name in found if name.startswith("mine")]
"""

CHECKS = {
    "without arguments": 'assert mine() == ["mine_f32", "mine_f64"]',
    "the built-in ones stay": """
        built_in = cutlass_api.get_kernels(providers=["nvrtc", "reference"])
        assert len(cutlass_api.get_kernels()) == len(mine()) + len(built_in)
    """,
    "with arguments": """
        assert mine(args_of()) == ["mine_f32"]
        assert mine(args_of(m=100)) == []
        assert mine(args_of(np.float16)) == []
        assert len(cutlass_api.get_kernels(args_of())) == 2
    """,
    "by capability": """
        assert mine(cc=90) == ["mine_f32", "mine_f64"]
        assert mine(cc=80) == ["mine_f32"]
        accept, epilogue, cc = asked[-1]
        assert (epilogue, cc) == (None, 80)
        assert accept(None) is True and accept(metadata=None) is True
    """,
    "by filter": """
        double = lambda metadata: metadata.operands.A.dtype == "float64"
        assert mine(metadata_filter=double) == ["mine_f64"]
        assert asked[-1][0] is double
        assert mine(metadata_filter=lambda metadata: False) == []
    """,
    "by provider": """
        assert mine(providers=["mine"]) == ["mine_f32", "mine_f64"]
        assert len(cutlass_api.get_kernels(providers=["mine"])) == 2
        assert mine(providers=["nvrtc", "reference"]) == []
        assert names(cutlass_api.get_kernels(args_of(), providers=["mine"])) == ["mine_f32"]
        assert names(Mine.generate_kernels()) == ["mine_f32", "mine_f64"]
        assert names(Mine.generate_kernels(None, None, 80)) == ["mine_f32"]
    """,
    "it runs": """
        args = args_of()
        cutlass_api.get_kernels(args, providers=["mine"])[0].run(args)
        assert (args.out.tensor.runtime_tensor == 5).all()
    """,
    "for grouped GEMM and elementwise arguments": """
        from cutlass_api.arguments import ElementwiseArguments, GroupedGemmArguments
        from cutlass_api.metadata import ElementwiseOperandsMetadata, GroupedGemmOperandsMetadata

        dense, ends = DenseTensorAttributes("float32"), DenseTensorAttributes("int32")
        described = {
            "mine_grouped": GroupedGemmOperandsMetadata(dense, dense, dense, ends, "float32"),
            "mine_add": ElementwiseOperandsMetadata(dense, dense, dense),
        }

        @Mine.register
        class More(cutlass_api.Kernel):
            def compile(self, args, cc=None):
                return CompiledArtifact(self.metadata.kernel_name, self)

            def _run(self, args, compiled_artifact, stream, workspace=None):
                tensor = lambda name: getattr(args, name).tensor.runtime_tensor
                a, b, out = map(tensor, ("A", "B", "out"))
                if compiled_artifact.compiled_obj == "mine_add":
                    out[:] = a + b
                else:
                    for start, end, factor in zip([0, *tensor("offsets")], tensor("offsets"), b):
                        out[start:end] = a[start:end] @ factor

            @staticmethod
            def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
                for name, operands in described.items():
                    metadata = KernelMetadata(name, More, 0, operands)
                    if metadata_filter(metadata):
                        yield More(metadata)

        zeros = lambda *shape: np.zeros(shape, np.float32)
        a, b = np.ones((5, 3), np.float32), np.ones((2, 3, 4), np.float32)
        grouped = GroupedGemmArguments(a, b, zeros(5, 4), "float32", np.array([2, 5], np.int32))
        add = ElementwiseArguments(a, a, zeros(5, 3))
        for args, name, value in ((grouped, "mine_grouped", 3), (add, "mine_add", 2)):
            assert mine(args) == [name]
            assert mine(args, metadata_filter=lambda metadata: False) == []
            cutlass_api.get_kernels(args, providers=["mine"])[0].run(args)
            assert (args.out.tensor.runtime_tensor == value).all()
        assert mine(ElementwiseArguments(*(x.astype(np.float64) for x in (a, a, a)))) == []
    """,
    "in a manifest": """
        manifest = cutlass_api.Manifest()
        manifest.add_kernels(args_of(), providers=["mine"])
        manifest.add_kernels(args_of())
        assert names(manifest.kernels).count("mine_f32") == 1, "each kernel once"
    """,
    "known by name": """
        assert available_providers["mine"] is Mine and Mine.name == "mine"
        assert set(available_providers) == {"nvrtc", "reference", "mine"}
        with pytest.raises(ValueError, match="mine"):
            register_provider("mine")(ProviderBase)
    """,
    "registered once": """
        assert Mine.register(Numpy) is Numpy
        assert mine() == ["mine_f32", "mine_f64"]
    """,
    "errors reach the caller": """
        @Mine.register
        class Broken(cutlass_api.Kernel):
            @staticmethod
            def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
                raise KeyError("broken")
        with pytest.raises(KeyError) as raised:
            cutlass_api.get_kernels()
        assert "Broken" in getattr(raised.value, "__notes__", ["Broken"])[0]
        assert mine(providers=["nvrtc"]) == []
    """,
    "what is no kernel class is refused": """
        class NoKernel: pass
        for wrong in (3, None, NoKernel, Numpy.generate_kernels([]), "Numpy"):
            with pytest.raises(TypeError, match="is not a kernel class"):
                Mine.register(wrong)
        assert mine() == ["mine_f32", "mine_f64"]
    """,
    "a CudaKernel that lacks something is refused": """
        for has, lacks in (
            ({}, "source, function, operands"),
            ({"source": "", "operands": None}, "lacks function"),
        ):
            with pytest.raises(TypeError, match=f"Mine.*{lacks}"):
                Mine.register(type("Mine", (cutlass_api.CudaKernel,), has))
        class Family(cutlass_api.CudaKernel):
            @classmethod
            def generate_kernels(cls, metadata_filter=None, epilogue_args=None, cc=None):
                return []
        Mine.register(Family)
        assert mine() == ["mine_f32", "mine_f64"]
    """,
    "what is no kernel is refused with its class": """
        class Odd(cutlass_api.Kernel):
            @staticmethod
            def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
                return given
        Mine.register(Odd)
        for given in (None, 3, [3], [Odd]):
            with pytest.raises(TypeError, match="generate_kernels of Odd returned"):
                cutlass_api.get_kernels()
        given = []
        assert mine() == ["mine_f32", "mine_f64"]
    """,
    "names are each one kernel's": """
        taken = cutlass_api.get_kernels()[0].metadata.kernel_name
        class Twin(cutlass_api.Kernel):
            @staticmethod
            def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
                return [Twin(KernelMetadata(name, Twin, 0, None))]
        Mine.register(Twin)
        for name in (taken, "mine_f64"):
            message = f'Twin has a kernel named "{name}", a name that another'
            with pytest.raises(ValueError, match=message):
                cutlass_api.get_kernels()
        name = "mine_twin"
        assert mine() == ["mine_f32", "mine_f64", "mine_twin"]
    """,
    "a class defined anew takes the place of the earlier": """
        earlier = Numpy
        class Numpy(earlier):
            pass
        Mine.register(Numpy)
        assert mine() == ["mine_f32", "mine_f64"]
        assert type(cutlass_api.get_kernels(providers=["mine"])[0]) is Numpy
    """,
    "an epilogue is handed on": """
        a = np.ones((4, 4), np.float32)
        out = np.zeros((4, 4), np.float32)
        source = "def f(accum):\\n    D = accum\\n    return D"
        epilogue = cutlass_api.arguments.EpilogueArguments(source, D=out)
        cutlass_api.get_kernels(GemmArguments(a, a, out, "float32", epilogue))
        assert asked[-1][1] is epilogue
    """,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_provider(check):
    run_python(
        PROVIDER + "\n".join(line.removeprefix(" " * 8) for line in check.strip("\n").splitlines())
    )


def test_the_providers_that_there_are():
    from cutlass_api import providers

    assert list(providers.available_providers) == ["nvrtc", "reference"]
    for name, provider in providers.available_providers.items():
        assert issubclass(provider, providers.ProviderBase)
        assert provider.name == name
        assert names(provider.generate_kernels()) == names(
            cutlass_api.get_kernels(providers=[name])
        )
