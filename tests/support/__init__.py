"""What several test files share: helpers, checks that run in processes of their own, and a user's
kernel.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.extend(str(TESTS / folder) for folder in ("gpu", "pytorch", "reference"))
