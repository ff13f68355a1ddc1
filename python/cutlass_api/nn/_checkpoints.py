"""Folders of safetensors and ``config.json``, by the names of their tensors."""

import json
import warnings
from collections import Counter
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0
from cutlass_api.weights._formats import names

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
#: Dtypes by the names of safetensors' headers. Others, as F4, are whatever ``get_tensor`` returns.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": E8M0,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
#: Files that are not read, and what to do.
OTHERS = {
    "*.gguf": "cutlass_api.weights.from_gguf reads each tensor",
    "*.bin": "model.save_pretrained of transformers writes safetensors",
    "*.pt*": "safetensors.torch.save_file writes its tensors",
}


class Header(NamedTuple):
    """What a file says about a tensor. ``dtype``: None for dtypes that torch does not have."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    #: The dtype by its name in the file.
    name: str

    def __str__(self) -> str:
        return f"{str(self.dtype or self.name).removeprefix('torch.')} {list(self.shape)}"


class Checkpoint:
    """The tensors of a folder. Files are mapped: :meth:`read` returns views of their pages. A file
    is closed when as many of its tensors have been read as :meth:`expect` names.

    Raises FileNotFoundError for a folder or shards that do not exist, and ValueError for a file
    that is no safetensors, and for an index that names tensors which its shards lack.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        if not isinstance(folder, (str, PathLike)):
            raise TypeError(f"load: folder is {folder!r}; pass the path of a folder")
        self.folder = Path(folder)
        if not self.folder.is_dir():
            is_file = self.folder.is_file()
            raise FileNotFoundError(
                f"load: {folder} is {'a file' if is_file else 'no folder'}; pass a folder with "
                "safetensors and config.json, such as huggingface_hub.snapshot_download returns"
            )
        self.config = self._json("config.json")
        self.headers: dict[str, Header] = {}
        self.metadata: dict[str, str] = {}
        self.file_of: dict[str, str] = {}
        self._open: dict[str, Any] = {}
        self._pending: Counter[str] = Counter()
        for file in self._find_files():
            self._add(file)
        self._check_index()

    def _json(self, name: str) -> dict[str, Any]:
        """A file of JSON; {} if there is none."""
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"load: {path} is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"load: {path} is no JSON object")
        return found

    def _find_files(self) -> list[str]:
        # A single file comes before an index, as in transformers.
        is_whole = (self.folder / WHOLE).is_file()
        if is_whole and (self.folder / INDEX).is_file():
            warnings.warn(
                f"load: {self.folder} has {WHOLE} and {INDEX}, of which one is older: {WHOLE} is "
                "read, as by transformers. Delete the other model's files",
                stacklevel=5,
            )
        self._index = {} if is_whole else self._json(INDEX).get("weight_map", {})
        if self._index:
            files = sorted(set(self._index.values()))
            missing = [file for file in files if not (self.folder / file).is_file()]
            if missing:
                raise FileNotFoundError(
                    f"load: {self.folder} lacks {names(missing)}, {len(missing)} of {len(files)} "
                    f"shards that {INDEX} names; download the folder again"
                )
            return files
        files = sorted(path.name for path in self.folder.glob("*.safetensors"))
        if is_whole:
            return [WHOLE]
        if len(files) != 1:
            found = f"{names(files)} and no {INDEX}" if files else "no file of safetensors"
            raise FileNotFoundError(
                f"load: {self.folder} has {found}; pass a folder with {WHOLE}, or with {INDEX} and "
                f"its shards{self._others()}"
            )
        return files

    def _others(self) -> str:
        """What to do with files of other formats."""
        for pattern, advice in OTHERS.items():
            if files := sorted(path.name for path in self.folder.glob(pattern)):
                return f". {files[0]} is another format: {advice}"
        return ""

    def _add(self, file: str) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise ImportError(
                "load: safetensors is not installed; install the extra rutlass[models]"
            ) from None
        path = self.folder / file
        try:
            opened = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(
                f"load: {path} is no file of safetensors, or is cut off: {error}"
            ) from None
        self._open[file] = opened
        self.metadata.update(opened.metadata() or {})
        for name in opened.keys():  # noqa: SIM118
            found = opened.get_slice(name)
            dtype = found.get_dtype()
            self.headers[name] = Header(tuple(found.get_shape()), DTYPES.get(dtype), dtype)
            self.file_of[name] = file

    def _check_index(self) -> None:
        lacking = [name for name in self._index if name not in self.headers]
        if lacking:
            rows = [f"{name}: not in {self._index[name]}" for name in lacking]
            raise ValueError(f"load: shards of {self.folder} lack tensors of {INDEX}{listed(rows)}")

    @property
    def quantization(self) -> dict[str, Any]:
        """How the checkpoint says that it is quantized: ``quantization_config``, or a file of its
        own, as GPTQ and ModelOpt write it. {} if it does not say.
        """
        text = self.config.get("text_config")
        for config in (self.config, text if isinstance(text, dict) else {}):
            for key in ("quantization_config", "compression_config"):
                if isinstance(config.get(key), dict):
                    return dict(config[key])
        if found := self._json("hf_quant_config.json"):
            return {"quant_method": "modelopt", **found.get("quantization", {})}
        if found := self._json("quantize_config.json"):
            return {"quant_method": "gptq", **found}
        return {}

    def expect(self, wanted: Iterable[str]) -> None:
        """Says which tensors will be read, each once. Files without one are closed."""
        self._pending = Counter(self.file_of[name] for name in wanted)
        for file in list(self._open):
            if not self._pending[file]:
                del self._open[file]

    def read(self, name: str) -> Tensor:
        """A tensor, whose memory is the file. Clone what outlives the load."""
        file, tensor = self.file_of[name], self.peek(name)
        self._pending[file] -= 1
        if not self._pending[file]:
            del self._open[file]
        return tensor

    def peek(self, name: str) -> Tensor:
        """:meth:`read`, in addition to what :meth:`expect` names."""
        tensor: Tensor = self._open[self.file_of[name]].get_tensor(name)
        return tensor


def listed(rows: list[str], limit: int = 20) -> str:
    """Lines of a message."""
    more = [f"... and {len(rows) - limit} more"] if len(rows) > limit else []
    return "".join(f"\n  {row}" for row in [*rows[:limit], *more])
