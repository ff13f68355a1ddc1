#!/usr/bin/env bash
# Installs a wheel or a source distribution, with NVRTC and NumPy, in an empty environment, and runs
# the demo there, outside of the checkout.
set -euo pipefail
distribution=$(realpath "$1")
demo=$(realpath "$(dirname "$0")/demo.py")
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv bare
bare/bin/pip install --quiet "$distribution[cuda]" numpy
bare/bin/python "$demo"
bare/bin/python -c 'from cutlass_api.bench import products; print(len(products.table("public")))'
bare/bin/python -c 'import cutlass.operators as ops; print(ops.get_operators(target_sm="90a")[0])'
