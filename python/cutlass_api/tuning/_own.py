"""The autotuner of users' own kernels."""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any

from cutlass_api import _core
from cutlass_api._core import CudaBenchmark, CudaFunction
from cutlass_api.tuning._result import TuningResult
from cutlass_api.tuning._tuner import Candidate, Key, stored_of, tune

#: The parameters of one variant of a kernel, by name.
Config = Mapping[str, Any]
#: A device, and what the key says of the arguments on it.
Place = tuple[int, tuple[str, ...]]


def autotuned(
    configs: Sequence[Config], key: "Sequence[str] | Callable[..., Any] | None" = None
) -> "Callable[[Callable[..., CudaFunction]], AutotunedKernel]":
    """Decorates a function that makes a kernel from a config. The decorated function is called like
    the kernel, and launches the fastest of its configs::

        @cutlass_api.autotuned(configs=[{"threads": 128}, {"threads": 256}], key=["n"])
        def square(threads):
            return cutlass_api.cuda_kernel(
                SOURCE,
                "square",
                grid=lambda x, out, n: cutlass_api.utils.ceil_div(n, threads),
                block=threads,
                options=[f"-DTHREADS={threads}"],
            )

        square(x, out, x.numel())

    - ``configs``: the arguments of the decorated function, by name, for each variant.
    - ``key``: which launches share a result. None: those with the same dtypes, numbers of elements
      and numbers; parameter names: those whose arguments of these names are the same; a function of
      the arguments: those for which its results have the same ``repr``. The dtypes and the device
      always belong to the key.

    The first launch of a key times all configs on copies of the tensors, unless the store has
    results of them; during a stream capture, it raises RuntimeError. The kernel must not access
    memory outside of its tensors. With ``CUTLASS_API_TUNE=off``, the first config is launched
    untimed. Raises ValueError if ``configs`` is empty or has equal configs.
    """
    return lambda make: AutotunedKernel(make, configs, key)


class AutotunedKernel:
    """A kernel of several configs; calls launch the fastest. :func:`autotuned` makes it."""

    def __init__(
        self,
        make: Callable[..., CudaFunction],
        configs: Sequence[Config],
        key: "Sequence[str] | Callable[..., Any] | None" = None,
    ) -> None:
        self._name = make.__name__
        if isinstance(key, str):
            raise ValueError(f"key is {key!r}; pass a list of parameter names: {[key]}")
        self.configs = {_name(config): config for config in configs}
        if not configs or len(self.configs) < len(configs):
            raise ValueError("configs is empty or has equal configs; pass one for each variant")
        self._make, self._key = make, key
        self._functions: dict[str, CudaFunction] = {}
        self._fastest: dict[Place, str] = {}
        self._search = threading.Lock()
        # Threads of a search make and compile functions.
        self._making = threading.Lock()
        update_wrapper(self, make)

    def __call__(self, *args: Any, stream: Any = None) -> None:
        """Launches the fastest config. Arguments and errors are those of the kernel; in addition,
        the first launch of a key raises RuntimeError if no config can be timed."""
        place = self._place(args)
        name = self._fastest.get(place)
        if name is None:
            name = self._find(place, args)
        self._functions[name](*args, stream=stream)

    def tune(self, *args: Any, progress: bool = True) -> TuningResult:
        """Times all configs on copies of the tensors among the arguments, and stores the results,
        in place of earlier ones of the same key. The winner is a config."""
        with self._search:
            return self._tune(self._place(args), args, progress)

    def fastest(self, *args: Any) -> Config:
        """The config that a call with these arguments launches. Times configs as a call does."""
        place = self._place(args)
        return self.configs[self._fastest.get(place) or self._find(place, args)]

    def _find(self, place: Place, args: tuple[Any, ...]) -> str:
        with self._search:
            if place in self._fastest:  # another thread was first
                return self._fastest[place]
            if _core.tuning_mode() == "off":
                return self._remember(place, next(iter(self.configs)))
            benchmark, key = self._problem(place, args)
            for name, program in stored_of(benchmark, key):
                if name in self.configs and self._function(name).fingerprint == program:
                    return self._remember(place, name)
            self._tune(place, args, progress=False)
            return self._fastest[place]

    def _tune(self, place: Place, args: tuple[Any, ...], progress: bool) -> TuningResult:
        benchmark, key = self._problem(place, args)
        candidates = {
            name: Candidate(
                config, partial(self._compile, name, args), partial(self._identity, name)
            )
            for name, config in self.configs.items()
        }
        result = tune([benchmark], candidates, key, progress=progress)
        self._remember(place, result.trials[0].kernel)
        return result

    def _remember(self, place: Place, name: str) -> str:
        self._function(name)
        self._fastest[place] = name
        return name

    def _place(self, args: tuple[Any, ...]) -> Place:
        some = self._any_function()
        signature = some.signature(*args)
        if self._key is None:
            chosen = tuple(signature)
        elif callable(self._key):
            chosen = (repr(self._key(*args)), *_dtypes(signature))
        else:
            names = some.parameters
            unknown = [name for name in self._key if name not in names]
            if unknown:
                raise ValueError(
                    f"key has {unknown[0]!r}, and the parameters of {some.name} are {names}"
                )
            of_names = zip(names, signature, strict=False)
            chosen = (*(text for name, text in of_names if name in self._key), *_dtypes(signature))
        return some.device_index(*args), chosen

    def _problem(self, place: Place, args: tuple[Any, ...]) -> tuple[CudaBenchmark, Key]:
        some = self._any_function()
        configs = hashlib.blake2b(repr(sorted(self.configs)).encode(), digest_size=8).hexdigest()
        name = f"{self._make.__module__}.{self._make.__qualname__}"
        text = f"own {name} {' '.join(place[1])} configs {configs}"
        return CudaBenchmark(some, args), Key(text)

    def _any_function(self) -> CudaFunction:
        """The kernel of a config that can be made."""
        if not self._functions:
            error: Exception | None = None
            for name in self.configs:
                try:
                    return self._function(name)
                except ValueError as wrong:  # such as a block of too many threads
                    error = error or wrong
            raise error or ValueError("there is no config")
        return next(iter(self._functions.values()))

    def _function(self, name: str) -> CudaFunction:
        with self._making:
            if name not in self._functions:
                function = self._make(**self.configs[name])
                if not isinstance(function, CudaFunction):
                    raise TypeError(
                        f"{self._name} returned {function!r}; return a cutlass_api.cuda_kernel"
                    )
                self._functions[name] = function
            return self._functions[name]

    def _compile(self, name: str, args: tuple[Any, ...]) -> CudaFunction:
        function = self._function(name)
        function.compile(*args)
        return function

    def _identity(self, name: str) -> tuple[str, str]:
        return name, self._function(name).fingerprint

    def __repr__(self) -> str:
        return f"<AutotunedKernel {self._name} of {len(self.configs)} configs>"


def _name(config: Config) -> str:
    return " ".join(f"{name}={value!r}" for name, value in config.items())


def _dtypes(signature: Sequence[str]) -> list[str]:
    """The dtypes of the tensors: "float32" of "float32[1024]"."""
    return [text.partition("[")[0] for text in signature if text.endswith("]")]


__all__ = ["AutotunedKernel", "autotuned"]
