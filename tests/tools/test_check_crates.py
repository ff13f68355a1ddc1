"""`scripts/check_crates.py`: what `deny.toml` denies."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("tomllib", reason="needs Python 3.11")
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import check_crates

REGISTRY = "https://github.com/rust-lang/crates.io-index"
POLICY = {
    "licenses": {"allow": ["MIT", "Unicode-3.0", "A WITH B"]},
    "sources": {"allow-registry": [REGISTRY]},
    "bans": {"deny": [{"crate": "unwanted"}]},
}


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0/MIT", True),
        ("MIT AND Unicode-3.0", True),
        ("MIT AND GPL-3.0", False),
        ("GPL-3.0 AND MIT OR MIT", True),
        ("MIT OR MIT AND GPL-3.0", True),
        ("(MIT OR GPL-3.0) AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", True),
        ("A WITH B", True),
        ("A", False),
    ],
)
def test_licences(expression: str, allowed: bool) -> None:
    assert check_crates.is_allowed(expression, {"MIT", "Unicode-3.0", "A WITH B"}) == allowed


def crate(name: str = "one", licence: str | None = "MIT", source=f"registry+{REGISTRY}", needs=()):
    dependencies = [{"name": needed, "req": req} for needed, req in needs]
    return {
        "name": name,
        "version": "1.0",
        "license": licence,
        "source": source,
        "dependencies": dependencies,
    }


def test_what_is_denied() -> None:
    ours = crate("ours", None, None, [("one", "^1"), ("two", "*")])
    assert check_crates.complaints([ours], POLICY) == ["ours 1.0 asks for any version of two"]
    # Another's wildcard is not ours to change.
    assert check_crates.complaints([crate(needs=[("two", "*")])], POLICY) == []
    crates = [crate("unwanted"), crate(licence=None), crate("of git", source="git+https://x")]
    assert check_crates.complaints(crates, POLICY) == [
        "unwanted 1.0 is banned",
        "one 1.0 is licensed under None",
        "of git 1.0 comes from git+https://x",
    ]
