"""Environment variables of NVIDIA's operators that choose how operands are read."""

import pytest
from cutlass_api import _core, config
from cutlass_api import operators as ops
from support.helpers import run_python

OPERATORS, DSL = "CUTLASS_OPERATORS_USE_TVM_FFI", "CUTE_DSL_ENABLE_TVM_FFI"


@pytest.fixture
def first_options(monkeypatch):
    """Constructs options as the first call in a process does, with environment variables."""
    before = _core.get_use_c_exchange()
    for name in (OPERATORS, DSL):
        monkeypatch.delenv(name, raising=False)

    def construct(**environment):
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setattr(ops.GlobalOptions, "_instance", None)
        return ops.GlobalOptions()

    yield construct
    _core.set_use_c_exchange(before)


@pytest.mark.parametrize("is_on", [True, False])
def test_words(first_options, is_on):
    words = ("1", "true", "Yes", " ON ") if is_on else ("0", "False", "no", "off")
    for word in words:
        config.GlobalOptions().use_tvm_ffi = not is_on
        assert first_options(**{OPERATORS: word}).use_tvm_ffi is is_on
        assert config.GlobalOptions().use_tvm_ffi is is_on


def test_without_the_variable_nothing_changes(first_options):
    config.GlobalOptions().use_tvm_ffi = False
    assert not first_options(**{DSL: "1"}).use_tvm_ffi


@pytest.mark.parametrize("text", ["", "2", "ture", "yes please"])
def test_other_text_is_refused(first_options, text):
    with pytest.raises(ValueError, match=f"{OPERATORS} is '{text}'; set one of 1, true"):
        first_options(**{OPERATORS: text})


def test_contradictions_are_refused(first_options):
    with pytest.raises(ValueError, match=f"{OPERATORS} and {DSL} contradict"):
        first_options(**{OPERATORS: "1", DSL: "0"})
    assert first_options(**{OPERATORS: "1", DSL: "on"}).use_tvm_ffi


def test_an_assignment_has_the_last_word(first_options):
    options = first_options(**{OPERATORS: "0"})
    options.use_tvm_ffi = True
    assert ops.GlobalOptions().use_tvm_ffi


def test_the_import_reads_the_variable():
    """And warns of nothing where TVM FFI is not installed."""
    code = """
        from cutlass_api import _core
        import cutlass_api.operators
        print(_core.get_use_c_exchange())
    """
    assert run_python(code, flags=("-W", "error"), **{OPERATORS: "off"}) == "False\n"
