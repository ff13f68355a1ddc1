#!/usr/bin/env bash
# Expected: CPython discards the bytecode of a module that it cannot write in full, as on a full
# disk (here: under a limit of the size of files).
# True: it imports the module and keeps the part of the bytecode that fitted. Once there is room
# again, each later import of the module raises EOFError until somebody deletes the file.
# Seen with: CPython 3.11.7 and six 1.16.0: "first import succeeds, bytecode of 4096 bytes, second
# import: EOFError: marshal data too short".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONDONTWRITEBYTECODE
python3 -m pip install --quiet --root-user-action ignore --no-compile --no-deps --target "$folder" six==1.16.0
cat > "$folder/first.py" <<'EOF'
import resource
import signal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
import six

assert six.__version__ == "1.16.0"
EOF
cd "$folder"
python3 first.py
bytes=$(stat -c %s __pycache__/six.*.pyc)
found=$(python3 -c 'import six' 2>&1 | tail -1 || true)
echo "$(python3 --version): first import succeeds, bytecode of $bytes bytes, second import: $found"
[ "$bytes" = 4096 ] && [ "$found" = "EOFError: marshal data too short" ]
