"""What ``bench model`` times: layers of transformers' models, and ``generate``.

Methods: ``eager``; ``compiled``, by ``torch.compile`` with max-autotune; ``ours``, the same with
`cutlass_api.inductor` enabled; and, for each scheme, the same with the weights that
``cutlass_api.nn.convert`` makes. Every method compiles with caches of its own. Programs of our own
stay in memory from one row to the next. A method's output is compared with eager's with the same
weights, on an input that the warm-up has not seen; with a larger error than the limit it is not
timed.

Layers: each method is captured into a CUDA graph, and the graphs take turns. The weights exceed the
L2 cache.

``generate``: as users call it, with a static cache and the compiled forward of transformers, whose
CUDA graphs are Inductor's. All methods use one model, for which Dynamo and that forward are reset
between the methods; so one is timed after the other.
"""

import gc
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from cutlass_api.bench.architectures import ARCHITECTURES, Architecture
from cutlass_api.bench.compiling import (
    ERROR_LIMIT,
    cache_folder,
    check_error,
    failure,
    largest_error,
    own_caches,
    own_entry,
    seconds,
    settings,
    start_compiler,
)
from cutlass_api.bench.layers import LEAST_LAYERS, Layers, in_bfloat16, stack_size, weight_bytes
from cutlass_api.bench.model import COMPILED, EAGER, METHODS, Case, Row
from cutlass_api.bench.timing import ROUNDS, Timed, capture, in_turns
from cutlass_api.nn import convert
from cutlass_api.nn._schemes import SCHEMES

#: The same as `ERROR_LIMIT` if activations are quantized: a rounding of the input can become a step
#: of 8 bits.
QUANTIZED_ERROR_LIMIT = 0.1
#: Calls of `generate` that are timed.
GENERATE_ROUNDS = 5

Log = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to measure.

    - ``copy_rate``: bytes per second, for the limits.
    - ``mode``, ``generate_mode``: of ``torch.compile``, for layers and for ``generate``.
    - ``schemes``: of ``cutlass_api.nn.convert``.
    - ``layers``: of a call; None: as many as `stack_size` says.
    - ``cache``: a folder that keeps all caches between runs, or None for empty ones. Compile times
      mean nothing with it.
    - ``architectures``: the models by name.
    """

    copy_rate: float
    device: str = "cuda"
    mode: str = "max-autotune-no-cudagraphs"
    generate_mode: str = "max-autotune"
    rounds: int = ROUNDS
    schemes: Sequence[str] = ()
    layers: int | None = None
    cache: Path | None = None
    architectures: Mapping[str, Architecture] = field(default_factory=lambda: ARCHITECTURES)


def measure(cases: Iterable[Case], options: Options, log: Log = lambda _: None) -> Iterator[Row]:
    """Yields the row of each case. Calls ``log`` with each step.

    A failure of one method is noted in its row, and the others go on.
    """
    with torch.no_grad():
        spent = start_compiler(options.mode, options.device)
        log(f"compiler started, {spent:.1f} s")
        free(options.device)
        for case in cases:
            with cache_folder(options.cache, str(case)) as folder:
                kind = GenerateMeasurement if case.generated else LayersMeasurement
                yield kind(case, options, folder, log).run()
            free(options.device)


def free(device: str) -> None:
    """Frees what compiled code holds: the weights and the memory of CUDA graphs."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


class Measurement:
    """All methods of one case."""

    def __init__(self, case: Case, options: Options, folder: Path, log: Log) -> None:
        self.case, self.options, self._folder, self._log = case, options, folder, log
        self.architecture = options.architectures[case.model]
        self.row = Row(case.model, case.batch, case.tokens, case.generated, self.layers())

    def run(self) -> Row:
        for scheme in (None, *self.options.schemes):
            methods = METHODS if scheme is None else (scheme,)
            try:
                read = self.build(scheme)
            except Exception as error:
                self.row.failures |= dict.fromkeys(methods, failure(error))
                continue
            limit = 1e6 * read / self.options.copy_rate
            self.row.limits |= dict.fromkeys(methods, limit)
            for method in methods:
                self._try(method)
        self.finish()
        return self.row

    def _try(self, method: str) -> None:
        def call() -> None:
            try:
                self.add(method)
            except Exception as error:
                self.row.failures[method] = failure(error)

        spent = seconds(call, self.options.device)
        notes = [f"{self.case}: {method}", f"{spent:.1f} s"]
        self._log(", ".join([*notes, *filter(None, [self.row.failures.get(method)])]))

    def layers(self) -> int:
        """How many layers the model has."""
        raise NotImplementedError

    def build(self, scheme: str | None) -> int:
        """Makes the model of the next methods. Returns the bytes of the weights that a call
        reads."""
        raise NotImplementedError

    def add(self, method: str) -> None:
        """Compiles, compares the output with eager's, and times or prepares the timing."""
        raise NotImplementedError

    def finish(self) -> None:
        """Times what `add` has prepared."""

    def record(self, method: str, times: Sequence[float]) -> None:
        self.row.turns[method] = [round(time, 3) for time in times]
        self.row.microseconds[method] = median(times)

    @contextmanager
    def compiling(self, method: str) -> Iterator[None]:
        """The caches and settings of a method."""
        own = self._folder / method
        programs = None if self.options.cache else own / "programs"
        with own_caches(own, own / "triton", programs), settings(method != COMPILED):
            yield

    def check(self, method: str, out: Any, expected: Any) -> None:
        """Records the error of an output. Raises ArithmeticError if it is too large."""
        self.row.errors[method] = largest_error(out, expected)
        is_quantized = method in SCHEMES and SCHEMES[method].activations is not None
        limit = QUANTIZED_ERROR_LIMIT if is_quantized else ERROR_LIMIT
        # Roundings of layers add up as random numbers do.
        limit *= max(1.0, self.row.layers / LEAST_LAYERS) ** 0.5
        check_error(self.row.errors[method], limit)

    def converted(self, make: Callable[[], nn.Module], scheme: str | None) -> Any:
        """The module with random weights, the same for each scheme before the conversion."""
        module = in_bfloat16(make, self.options.device)
        if scheme:
            with redirect_stdout(io.StringIO()):
                report = convert(module, scheme)
            self._log(f"{self.case}: {str(report).splitlines()[0]}")
        return module


class LayersMeasurement(Measurement):
    """The layers of a model, in CUDA graphs."""

    def __init__(self, *others: Any) -> None:
        super().__init__(*others)
        self._timed: dict[str, Timed] = {}
        self._stream = torch.cuda.Stream() if self.options.device == "cuda" else None

    def layers(self) -> int:
        return self.options.layers or stack_size(self.architecture)

    def build(self, scheme: str | None) -> int:
        stack = self.converted(lambda: Layers(self.architecture, self.row.layers), scheme)
        torch.manual_seed(1)
        size = (self.case.batch, self.case.tokens, stack.config.hidden_size)
        options: Any = {"device": self.options.device, "dtype": torch.bfloat16}
        hidden, other = (torch.randn(*size, **options) for _ in range(2))
        tables = stack.tables(hidden)
        self._stack = stack
        self._inputs, self._other_inputs = (hidden, *tables), (other, *tables)
        self._expected = stack(*self._other_inputs)
        return weight_bytes(stack)

    def add(self, method: str) -> None:
        function = self._stack
        if method != EAGER:
            name = f"{self.case} {method}".replace(" ", "_")
            # A graph break would leave frames whose compiled code all methods share.
            function = torch.compile(
                own_entry(self._stack, name), mode=self.options.mode, dynamic=False, fullgraph=True
            )
            with self.compiling(method):
                first = partial(function, *self._inputs)
                self.row.compile_seconds[method] = seconds(first, self.options.device)
                self.check(method, function(*self._other_inputs), self._expected)
        self._timed[method] = capture(self._stream, [partial(function, *self._inputs)], least=1)

    def finish(self) -> None:
        in_turns(self._timed, self.options.rounds)
        for method, timed in self._timed.items():
            self.record(method, timed.times)


class GenerateMeasurement(Measurement):
    """``generate`` of a whole model. A time is of one step: a token of each sequence."""

    _model: Any = None

    def layers(self) -> int:
        return int(self.architecture.make_config().num_hidden_layers)

    def build(self, scheme: str | None) -> int:
        # Two models may not fit.
        self._model = None
        free(self.options.device)
        causal = self.architecture.class_of("modeling", self.architecture.causal)
        config = self.architecture.make_config()
        model = self._model = self.converted(lambda: causal(config), scheme)
        # All sequences have the same length.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        torch.manual_seed(1)
        size = (self.case.batch, self.case.tokens)
        self._prompt = torch.randint(config.vocab_size, size, device=self.options.device)
        self._expected = self._generate(EAGER).logits
        # Of the embeddings, a step reads a row, unless they also make the logits.
        rows, last = model.get_input_embeddings().weight, model.get_output_embeddings()
        return weight_bytes(model) - (0 if getattr(last, "weight", None) is rows else rows.nbytes)

    def _generate(self, method: str) -> Any:
        from transformers import CompileConfig

        config = CompileConfig(mode=self.options.generate_mode)
        config._compile_all_devices = True
        compiles: dict[str, Any] = (
            {"disable_compile": True} if method == EAGER else {"compile_config": config}
        )
        out = self._model.generate(
            self._prompt,
            attention_mask=torch.ones_like(self._prompt),
            max_new_tokens=self.case.generated,
            do_sample=False,
            cache_implementation="static",
            return_dict_in_generate=True,
            output_logits=True,
            **compiles,
        )
        if len(out.logits) != self.case.generated:
            raise RuntimeError(f"generate has ended after {len(out.logits)} tokens")
        return out

    def add(self, method: str) -> None:
        if method == EAGER:
            self._time(method)
            return
        # The compiled forward of the method before.
        self._model.__dict__.pop("_compiled_call", None)
        free(self.options.device)
        with self.compiling(method):
            found: list[Any] = []
            self.row.compile_seconds[method] = seconds(
                lambda: found.append(self._generate(method)), self.options.device
            )
            if "_compiled_call" not in self._model.__dict__:
                raise RuntimeError("transformers has not compiled the model")
            # The first token is eager's, so that the second step has the same input.
            self.check(method, found[0].logits[1], self._expected[1])
            self._time(method)

    def _time(self, method: str) -> None:
        call = partial(self._generate, method)
        call()  # CUDA graphs of Inductor are captured in the second call
        steps = 1e6 / self.case.generated
        times = [steps * seconds(call, self.options.device) for _ in range(GENERATE_ROUNDS)]
        self.record(method, times)
