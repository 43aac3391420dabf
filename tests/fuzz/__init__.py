"""Tests that draw what they are given."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the small worlds of the learners' tests
