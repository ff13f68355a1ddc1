"""What several test files share: helpers, checks that run in processes of their own, and a user's
kernel.
"""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
