"""Checks the crates that the core is built from against ``deny.toml``: licences, wildcard versions
and sources. cargo-deny reads the same file, and needs minutes to be built.

Run by ``make lint``.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parent.parent


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression permits use under some of these licences. AND binds tighter than
    OR.
    """
    tokens = re.findall(r"[()]|[^()\s]+(?: WITH [^()\s]+)?", expression.replace("/", " OR "))

    def alternatives() -> bool:
        found = requirements()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            found = requirements() or found
        return found

    def requirements() -> bool:
        found = licence()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            found = licence() and found
        return found

    def licence() -> bool:
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        found = alternatives()
        tokens.pop(0)
        return found

    return alternatives()


def complaints(packages: list[dict[str, Any]], policy: dict[str, Any]) -> list[str]:
    """What the policy denies. ``packages``: of ``cargo metadata``. A crate without a source is part
    of this repository.
    """
    allowed = set(policy["licenses"]["allow"])
    registries = {f"registry+{address}" for address in policy["sources"]["allow-registry"]}
    banned = {each["crate"] for each in policy["bans"].get("deny", [])}
    found = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        found += [
            f"{name} asks for any version of {needed['name']}"
            for needed in package["dependencies"]
            if package["source"] is None and needed["req"] == "*" and not needed.get("path")
        ]
        if package["source"] is None:
            continue
        if package["source"] not in registries:
            found.append(f"{name} comes from {package['source']}")
        if package["name"] in banned:
            found.append(f"{name} is banned")
        if not is_allowed(package["license"] or "none", allowed):
            found.append(f"{name} is licensed under {package['license']}")
    return found


def main() -> None:
    listed = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    policy = tomllib.loads((ROOT / "deny.toml").read_text())
    found = complaints(json.loads(listed.stdout)["packages"], policy)
    if found:
        sys.exit("\n".join([*found, "deny.toml has the policy"]))


if __name__ == "__main__":
    main()
