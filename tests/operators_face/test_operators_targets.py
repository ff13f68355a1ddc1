"""Targets: text, portability, and the operators that a target runs."""

from types import SimpleNamespace

import pytest
from cutlass_api import operators as ops
from cutlass_api.operators import metadata, mma
from operators_face.face import fake_arguments


def test_text_and_parts():
    hopper = ops.TargetSm("90a")
    assert hopper == ops.TargetSm(cc=90) == ops.TargetSm.ensure("90a")
    assert (hopper.cc, hopper.major, hopper.minor, str(hopper)) == (90, 9, 0, "90a")
    assert hopper.portability is ops.ArchPortability.ArchConditional
    assert str(ops.TargetSm(cc=80)) == "80" and str(ops.TargetSm("100f")) == "100f"
    assert {hopper: 1}[ops.TargetSm("90a")] == 1
    assert ops.TargetSm.ensure(None) is None and ops.TargetSm.ensure(hopper) is hopper


@pytest.mark.parametrize("text", ["", "a", "sm_90a", "90x", "80a", "90f", "90aa"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="pass"):
        ops.TargetSm(text)


def test_parts_are_checked():
    with pytest.raises(ValueError, match="pass sm_str alone"):
        ops.TargetSm()
    with pytest.raises(ValueError, match="pass sm_str alone"):
        ops.TargetSm("90a", cc=90)
    with pytest.raises(TypeError, match="target_sm is 90"):
        ops.TargetSm.ensure(90)


#: Code for the first target runs on the second one.
RUNS = [("80", "90a"), ("80", "80"), ("90", "100f"), ("100f", "103a"), ("90a", "90a")]
FAILS = [("90a", "90"), ("90a", "100a"), ("100f", "110f"), ("90", "80"), ("103f", "100f")]


@pytest.mark.parametrize(("code", "target"), RUNS + FAILS)
def test_portability(code, target):
    runs = (code, target) in RUNS
    assert ops.TargetSm(code).is_portable_to(target) is runs
    assert ops.TargetSm(target).supports_operators_from([code]) is runs


def test_targets_of_a_design():
    design = metadata.BLASDesignMetadata(
        mma_instruction_type=mma.HopperWgmma, tile_shape=(128, 128, 64), cluster_shape=(1, 1, 1)
    )
    design.tile_scheduler = metadata.StaticPersistentTileSchedulerMetadata()
    assert ops.TargetSm.get_supported_targets(design, None) == [ops.TargetSm("90a")]
    groups = [[ops.TargetSm("80")], [ops.TargetSm("90a"), ops.TargetSm("100f")]]
    assert ops.TargetSm.intersect_supported_targets(groups) == groups[1]


def families(target):
    found = ops.get_operators(fake_arguments(512, 256, 768), target_sm=target)
    for operator in found:
        supported = operator.metadata.supported_targets
        assert ops.TargetSm(target).supports_operators_from(supported)
    return {type(operator).__name__.replace("EFC", "") for operator in found}


def test_operators_of_a_target():
    assert "Sm90GemmOperator" in families("90a")
    everywhere = {"Sm80GemmOperator", "SimtGemmOperator"}
    for target in ("80", "86", "89", "90", "100a", "120f"):
        assert families(target) <= everywhere | {"SkinnyGemmOperator"}


@pytest.mark.parametrize("target", ["70", "75"])
def test_a_target_without_operators_names_the_nearest(target):
    with pytest.raises(NotImplementedError, match=f"target_sm is {target}.*'80' and '90a'"):
        ops.get_operators(fake_arguments(64, 64, 64), target_sm=target)


def test_another_provider_may_serve_a_target_that_this_package_does_not():
    class Other(ops.Provider):
        @classmethod
        def generate_operators(cls, metadata_filter=None, **searched):
            accepts = lambda args, target_sm: True  # noqa: E731
            return [SimpleNamespace(target=searched["target_sm"], _supports=accepts)]

    ops.register_provider("other")(Other)
    try:
        found = ops.get_operators(fake_arguments(64, 64, 64), target_sm="75")
    finally:
        del ops.available_providers["other"]
    assert [each.target for each in found] == [ops.TargetSm("75")]


@pytest.mark.parametrize("target", ["80", "90a"])
def test_operators_support_their_targets_without_arguments(target):
    for operator in ops.get_operators(fake_arguments(512, 256, 768), target_sm=target):
        assert operator.supports(None, target)
        assert not operator.supports(None, "75")
