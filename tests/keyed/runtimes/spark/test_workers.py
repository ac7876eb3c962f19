"""keyed's settings of Spark's worker processes."""

import subprocess
import sys

# In a process of its own, because what is frozen stays so.
SETTLED = """
import gc
from keyed.runtimes.garbage import freeze_modules

freeze_modules()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
freeze_modules()
second = gc.get_freeze_count()
import wave
freeze_modules()
print(first > 5_000, second == first, gc.get_freeze_count() > second + 1000)
"""


def test_modules_are_frozen_once_and_again_when_there_are_more():
    done = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, check=False)
    assert done.stdout == "True True True\n", done
