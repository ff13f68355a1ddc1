#!/usr/bin/env bash
# Expected: a primitive of JAX with a lowering rule for each platform is exported for two platforms,
# whether its rules are cached or not.
# True: with rules that are not cached (cacheable=False), export raises TypeError inside JAX. Cached
# rules, and one rule for all platforms, are exported. A cached rule does not see which operation
# made its operand.
# Seen with: jax 0.10.2 on a CPU: "can only concatenate list (not "tuple") to list".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "jax==${JAX:-0.10.2}"
cat > "$folder/demo.py" <<'EOF'
import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

twice = mlir.lower_fun(lambda x: 2 * x, multiple_results=False)
producers = []


def outcome(name, platforms, cacheable):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)

    def rule(ctx, x):
        producers.append((cacheable, type(x.owner).__name__))
        return twice(ctx, x)

    for platform in platforms:
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=cacheable)
    double = jax.jit(lambda x: primitive.bind(x.T))
    try:
        program = jax.export.export(double, platforms=["cpu", "cuda"])(jnp.ones((2, 3)))
        return program.call(jnp.ones((2, 3))).shape
    except TypeError as error:
        return str(error)


found = [
    outcome("cached", ["cpu", "cuda"], True),
    outcome("uncached", ["cpu", "cuda"], False),
    outcome("of_all", [None], False),
]
print(jax.__version__, found, producers)
assert found == [(3, 2), 'can only concatenate list (not "tuple") to list', (3, 2)], found
# Behind a cached rule, the operand is an argument of a function.
assert {each for of, each in producers if of} == {"Block"}
assert producers[-1] == (False, "TransposeOp")
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
