"""``env`` and ``cache``: this machine and installation."""

import argparse
from typing import Any

from cutlass_api import _core, inspection
from cutlass_api.bench import options, report


def add(commands: Any) -> None:
    env = commands.add_parser("env", help="print what a bug report needs: versions, GPUs, caches")
    env.set_defaults(run=_env)
    cache = commands.add_parser("cache", help="print or reduce the cache of compiled programs")
    cache.set_defaults(run=_cache)
    reduce = cache.add_mutually_exclusive_group()
    reduce.add_argument("--clear", action="store_true", help="remove all programs")
    reduce.add_argument(
        "--limit",
        type=int,
        metavar="MIB",
        help="remove the programs that were used longest ago, until MIB mebibytes are left",
    )
    cache.add_argument(
        "--json", type=options.output, metavar="FILE", help="write the numbers as JSON"
    )
    env.add_argument("--json", type=options.output, metavar="FILE", help="write it as JSON")


def _cache(arguments: argparse.Namespace) -> None:
    folder = _core.cache_directory()
    if folder is None:
        raise SystemExit("programs are not cached: this system has no folder for caches")
    if refusal := _core.cache_refusal():
        raise SystemExit(f"programs are not cached in {folder}: {refusal}")
    if arguments.limit is not None and arguments.limit < 0:
        raise SystemExit(f"--limit is {arguments.limit}; it must be at least 0")
    try:
        limit = _core.cache_limit()
    except ValueError as error:
        raise SystemExit(str(error)) from None
    numbers: dict[str, Any] = {"folder": str(folder), "limit": limit}
    if arguments.clear or arguments.limit is not None:
        numbers["removed"], freed = _core.trim_cache((arguments.limit or 0) << 20)
        print(f"removed {numbers['removed']} files, {freed / 2**20:.1f} MiB")
    numbers["files"], numbers["bytes"] = _core.cache_usage()
    print(f"{folder}: {numbers['files']} files, {numbers['bytes'] / 2**20:.1f} MiB")
    print(f"limit: {limit >> 20} MiB (CUTLASS_API_CACHE_LIMIT)")
    report.write_json(arguments.json, numbers)


def _env(arguments: argparse.Namespace) -> None:
    facts = inspection.environment()
    for name, fact in facts.items():
        print(f"{name}: {fact}")
    report.write_json(arguments.json, facts)


__all__ = ["add"]
