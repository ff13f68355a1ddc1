"""Fits the correction of Hopper's cost model (src/kernel/residual.rs) to timings, and writes its weights.

    python scripts/fit_residuals.py     # from docs/benchmarks/chance_h100.json to src/kernel/residual/weights.rs

For each product there are the times of some kernels. A network is to tell the logarithm of how far the model is off, so
that the kernel with the least corrected estimate is the fastest. The loss is what it costs to take a kernel by chance,
the likelier the less its corrected estimate (which is what matters, smoothed); and by how much corrected estimates and
times scatter within a product (which all kernels near the best have a say in). What all corrections of a product have
in common costs a little. Prints what the first kernel takes over the best, of products that were held out, with and
without the correction. Run it again after any change of the model or of the features; it takes two minutes.
(Where there are more or fewer features than before, first give weights.rs arrays of that size, so that it builds.)
"""

import json
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from cutlass_api import _core
from cutlass_api.arguments import GemmArguments
from time_products import MOST_FLOP
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

ROOT = Path(__file__).parent.parent
TIMINGS = ROOT / "docs/benchmarks/chance_h100.json"
WEIGHTS = ROOT / "src/kernel/residual/weights.rs"

HIDDEN = (64, 32)
#: How many kernels are put in order anew, of those that the model puts first; features further from their mean than so
#: many times their spread, and corrections (logarithms) beyond this, are beyond what was timed.
CANDIDATES = 12
FARTHEST = 4.0
LARGEST = 0.3
#: Kernels that the model gives more than so much (as a logarithm) above its least are not looked at. Nor are those that
#: took so many times as long as the fastest: of some there is one replay, now and then several times too long.
WITHIN = 0.34
HOPELESS = 1.95
#: How many of a product's kernels, the fastest, count as timed carefully, and what the others weigh beside them. (Where
#: one of them is not offered any more, a rough one takes its place.)
CAREFULLY = 8
ROUGH = 0.3
#: The temperature of chance; how near (as a logarithm) to the model's least a kernel counts half; beyond what a time is
#: as bad as any; beyond what a residual counts linearly.
TEMPERATURE = 0.05
NEAR = 0.1
WORST = 0.4
OUTLIER = 0.06
#: How much the scatter counts beside the first part, and how much it costs to correct everything by the same.
SCATTER = 100.0
OFFSET = 1.0
EPOCHS, BATCH, RATE, DECAY = 90, 128, 8e-3, 0.01
#: While it is fitted, a product's features are moved by so many times their spread, those of all its kernels alike: as
#: if it were another one.
JITTER = 0.2
FOLDS = 4


class Timings(NamedTuple):
    """Of each product (first dimension), of each kernel (second): logarithms above the product's least, and features.

    ``known``: what a kernel weighs, 0 where there is none. ``torch``: cuBLAS's time over the best, of each product.
    """

    estimates: torch.Tensor
    times: torch.Tensor
    features: torch.Tensor
    known: torch.Tensor
    torch: torch.Tensor

    def of(self, products: torch.Tensor) -> "Timings":
        return Timings(*(each[products] for each in self))


def products() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Estimates, times and features of the kernels of each product that the correction is for, and torch's time."""
    data = json.loads(TIMINGS.read_text())
    kernels = data.pop("kernels")
    del data["note"]
    for m, n, k, layout, torch_time, _, timed in chain.from_iterable(data.values()):
        dtype = torch.bfloat16 if "bf16" in kernels[timed[0][0]] else torch.float16
        like = {"device": "cuda", "dtype": dtype}
        with FakeTensorMode():
            a = torch.empty(m, k, **like) if layout[0] == "t" else torch.empty(k, m, **like).T
            b = torch.empty(k, n, **like) if layout[1] == "t" else torch.empty(n, k, **like).T
            args = GemmArguments(a, b, torch.empty(m, n, **like), torch.float32)
        told = {
            kernel: (seconds, features)
            for kernel, seconds, features in _core.ranking_features(args, 90)
        }
        least = min(time for _, time in timed)
        times = {kernels[index]: time for index, time in timed if time < HOPELESS * least}
        # Some that were timed are not offered any more.
        both = [name for name in times if name in told]
        if len(both) < 2:
            continue
        estimates = np.log([told[name][0] for name in both])
        near = estimates < estimates.min() + WITHIN
        features = np.array([told[name][1] for name in both])
        yield (
            estimates[near],
            np.log([times[name] for name in both])[near],
            features[near],
            torch_time,
        )


def load() -> Timings:
    rows = list(products())
    most = max(len(estimates) for estimates, *_ in rows)
    shape = (len(rows), most)
    estimates, times, known = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    features = torch.zeros(*shape, rows[0][2].shape[1])
    for at, (of_estimates, of_times, of_features, _) in enumerate(rows):
        count = len(of_estimates)
        estimates[at, :count] = torch.tensor(of_estimates - of_estimates.min())
        times[at, :count] = torch.tensor(of_times - of_times.min())
        features[at, :count] = torch.tensor(of_features)
        known[at, :count] = torch.tensor(
            np.where(of_times.argsort().argsort() < CAREFULLY, 1.0, ROUGH)
        )
    beside = torch.tensor(
        [torch_time / np.exp(of_times.min()) for _, of_times, _, torch_time in rows]
    )
    return Timings(estimates, times, features, known, beside)


class Correction(nn.Module):
    """The logarithm of how many times as long as the model says a kernel takes, by its features."""

    def __init__(self, timings: Timings) -> None:
        super().__init__()
        features = timings.features[timings.known > 0]
        self.mean, self.spread = features.mean(0), features.std(0) + 1e-3
        sizes = (features.shape[1], *HIDDEN, 1)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        with torch.no_grad():  # corrections are small
            self.layers[-1].weight *= 0.1
            self.layers[-1].bias *= 0.1

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        values = ((features - self.mean) / self.spread).clamp(-FARTHEST, FARTHEST)
        for layer in self.layers[:-1]:
            values = torch.relu(layer(values))
        return self.layers[-1](values)[..., 0]


def loss(correction: Correction, timings: Timings) -> torch.Tensor:
    estimates, times, features, known, _ = timings
    moved = JITTER * correction.spread * torch.randn(len(features), 1, features.shape[2])
    corrections = correction(features + moved)
    corrected = estimates + corrections
    likely = torch.softmax((-corrected / TEMPERATURE).masked_fill(known == 0, -torch.inf), 1)
    lost = (likely * times.clamp(max=WORST)).sum(1)

    weights = known / (1 + (estimates / NEAR) ** 2)
    weights = weights / weights.sum(1, keepdim=True)
    residuals = corrected - times.clamp(max=1.5 * WORST)
    residuals = residuals - (residuals * weights).sum(1, keepdim=True)
    huber = nn.functional.huber_loss(
        residuals, torch.zeros_like(residuals), delta=OUTLIER, reduction="none"
    )
    scatter = (huber * weights).sum(1)
    offset = (corrections * weights).sum(1) ** 2
    return (lost + SCATTER * scatter + OFFSET * offset).mean()


def fit(timings: Timings) -> Correction:
    torch.manual_seed(0)
    correction = Correction(timings)
    count = len(timings.known)
    steps = EPOCHS * -(-count // BATCH)
    optimizer = torch.optim.AdamW(correction.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(count).split(BATCH):
            optimizer.zero_grad()
            loss(correction, timings.of(chosen)).backward()
            optimizer.step()
            schedule.step()
    return correction


def first_over_best(timings: Timings, correction: Correction | None) -> torch.Tensor:
    """Of each product, the time of the kernel that comes first over that of the best, as a logarithm."""
    estimates = timings.estimates.masked_fill(timings.known == 0, torch.inf)
    few = estimates.argsort(1)[:, :CANDIDATES]
    if correction:
        with torch.no_grad():
            estimates = estimates + correction(timings.features).clamp(-LARGEST, LARGEST)
    first = few.gather(1, estimates.gather(1, few).argmin(1, keepdim=True))
    return timings.times.gather(1, first)[:, 0]


def show(what: str, lost: torch.Tensor, timings: Timings) -> None:
    beside_torch = timings.torch / lost.exp()
    print(
        f"{what}: first over best {lost.mean().exp():.4f}, {int((lost.exp() > 1.2).sum())} beyond 1.2; "
        f"torch over first {beside_torch.log().mean().exp():.4f}, {int((beside_torch < 0.95).sum())} below 0.95"
    )


def rust(correction: Correction) -> str:
    """The source of weights.rs."""

    def numbers(values: torch.Tensor) -> str:
        return "[" + ", ".join(f"{value:.4f}" for value in values.tolist()) + "]"

    def array(name: str, values: torch.Tensor) -> str:
        return f"pub const {name}: [f32; FEATURES] = {numbers(values)};\n"

    names = ("FIRST", "SECOND", "THIRD")
    text = "//! Written by scripts/fit_residuals.py: what `residual` has learnt.\n\n"
    text += "#![allow(clippy::approx_constant)] // some come near to one by chance\n\nuse super::{FEATURES, Layer};\n\n"
    text += f"pub const CANDIDATES: usize = {CANDIDATES};\n"
    text += f"pub const MOST_FLOP: f64 = {MOST_FLOP:.0e};\n".replace("+", "")
    text += f"pub const FARTHEST: f32 = {FARTHEST};\npub const LARGEST: f32 = {LARGEST};\n"
    text += "#[rustfmt::skip]\n" + array("MEAN", correction.mean)
    text += "#[rustfmt::skip]\n" + array("SPREAD", correction.spread)
    for name, layer in zip(names, correction.layers, strict=True):
        outputs, inputs = layer.weight.shape
        rows = "".join(f"        {numbers(row)},\n" for row in layer.weight.T)
        text += f"#[rustfmt::skip]\npub static {name}: Layer<{inputs}, {outputs}> = Layer {{\n"
        text += f"    weights: [\n{rows}    ],\n    bias: {numbers(layer.bias)},\n}};\n"
    return text


def main() -> None:
    torch.set_num_threads(1)  # the same sums on every machine
    timings = load()
    count = len(timings.known)
    show(f"{count} products, the model alone", first_over_best(timings, None), timings)
    folds = torch.randint(FOLDS, (count,), generator=torch.Generator().manual_seed(0))
    held_out = torch.zeros(count)
    for fold in range(FOLDS):
        outside = timings.of(folds == fold)
        held_out[folds == fold] = first_over_best(outside, fit(timings.of(folds != fold)))
    show("corrected, held out", held_out, timings)
    correction = fit(timings)
    show("corrected, all", first_over_best(timings, correction), timings)
    WEIGHTS.write_text(rust(correction))
    print(f"wrote {WEIGHTS.relative_to(ROOT)}; they count once the package is built again")


if __name__ == "__main__":
    main()
