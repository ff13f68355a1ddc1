"""Tables of kernels, estimates and stored results."""

import pickle
from html.parser import HTMLParser

import cutlass_api
import torch
from cutlass_api import _core, metadata, profiling, tuning
from cutlass_api.arguments import GemmArguments
from cutlass_api.explanation import KernelList
from support.helpers import fake_gemm
from support.shown import RESULT, STORED, TIMING, gemm, kernel


class Page(HTMLParser):
    """The cells of the rows of a table. Raises for a tag that is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.outside = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ("table", "tr", "th", "td", "p") and not attributes
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        else:
            self.outside += data


def page(shown):
    return Page(shown._repr_html_())


def test_a_list_of_kernels_is_a_table():
    kernels = cutlass_api.get_kernels(fake_gemm())
    shown = page(kernels)
    titles, first, *others = shown.rows
    assert titles == ["kernel", "family", "from", "tile", "cluster", "stages", "us, estimated"]
    metadata = kernels[0].metadata
    tile, cluster = metadata.design.tile_shape, metadata.design.cluster_shape
    seconds = kernels[0].estimate(fake_gemm(), cc=90).total_seconds
    assert first == [
        metadata.kernel_name,
        type(kernels[0]).__name__,
        f"{metadata.min_cc // 10}.{metadata.min_cc % 10}",
        "x".join(map(str, tile)),
        "x".join(map(str, cluster)),
        str(metadata.design.stages),
        f"{1e6 * seconds:.2f}",
    ]
    assert len(others) == 49 and shown.outside == f"{len(kernels) - 50} more"


def test_slices_are_tables_too():
    kernels = cutlass_api.get_kernels(fake_gemm())
    assert type(kernels) is KernelList and type(kernels[:3]) is KernelList
    assert page(kernels[:3]).rows == page(kernels).rows[:4]
    assert page(kernels[:3]).outside == ""
    assert kernels[:3] + kernels[3:5] == list(kernels)[:5]
    assert kernels[-1] is list(kernels)[-1] and next(reversed(kernels)) is kernels[-1]
    # Kernels of other problems have no time.
    kernels.append(kernel("simt_elem"))
    assert page(kernels[-2:]).rows[2][-1] == "" != page(kernels[-2:]).rows[1][-1]
    # Without arguments, times are unknown.
    chosen = KernelList(each for each in cutlass_api.get_kernels(cc=90) if "sm90" in repr(each))
    assert page(chosen).rows[0][-1] == "stages"
    manifest = cutlass_api.Manifest()
    manifest.add_kernels(gemm())
    row = ["reference_gemm_f32xf32_f32_f32", "ReferenceKernel", "0.0", "", "", ""]
    assert page(manifest).rows[1] == page(manifest.kernels).rows[1] == row


def test_a_list_of_kernels_does_not_keep_the_operands():
    import weakref

    a, b, out = (torch.zeros(4, 4) for _ in range(3))
    kernels = cutlass_api.get_kernels(GemmArguments(a, b, out, "float32"), cc=90)
    gone = weakref.ref(a)
    del a
    assert gone() is None and page(kernels).rows[1][-1]


def test_names_are_escaped():
    class Named(cutlass_api.Kernel):
        def __init__(self):
            super().__init__(metadata.KernelMetadata("<b>&", Named, 80, "<o>", None))

    assert page(KernelList([Named()])).rows[1][0] == "<b>&"
    shown = page(Named().metadata)
    assert shown.outside == "<b>&" and ["operands", "'<o>'"] in shown.rows
    assert page(RESULT).rows[1:] == [["2.00", "1.000", "<kernel>"], ["3.00", "1.500", "b"]]
    assert page(RESULT).outside == "exact gemm on a GPU"
    assert page(profiling.Comparison({"<ours>": TIMING})).rows[1][-1] == "<ours>"
    shown = page(cutlass_api.get_kernels(gemm(), providers=["nvrtc"]))
    assert "<GemmArguments A=" in shown.outside


def test_metadata_is_a_table():
    described = kernel("sm90", fake_gemm()).metadata
    shown = page(described)
    assert shown.outside == described.kernel_name
    cells = dict(shown.rows)
    assert cells["kernel_class"] == "Sm90GemmKernel" and cells["min_cc"] == "90"
    assert cells["A"] == repr(described.operands.A)
    assert cells["tile_shape"] == repr(described.design.tile_shape)
    assert cells["epilogue"] == "None"


def test_an_estimate_is_a_table():
    estimate = kernel("sm90", fake_gemm()).estimate(fake_gemm(), cc=90)
    shown = page(estimate)
    assert shown.rows[1] == ["total", f"{1e6 * estimate.total_seconds:.2f}"]
    assert [row[0] for row in shown.rows[2:]] == ["arithmetic", "memory", "cache", "launch"]
    assert shown.outside == f"{estimate.waves:.2f} waves, {estimate.bytes:.0f} bytes"


def test_stored_results_are_a_table(monkeypatch):
    row = ("a GPU", 12, "exact gemm", "<kernel>", "f00d", 2e-6)
    monkeypatch.setattr(_core, "tuning_results", lambda: [row] * 60)
    results = tuning.stored_results()
    assert results == [STORED] * 60
    shown = page(results)
    assert shown.rows[1] == ["2.00", "<kernel>", "exact gemm", "a GPU"]
    assert (len(shown.rows), shown.outside) == (51, "10 more")
    assert pickle.loads(pickle.dumps(results)) == results
