"""XLA's options for the tests of JAX."""

import os

# LLVM's optimizations of small programs take a quarter of the time of these tests.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
).strip()
