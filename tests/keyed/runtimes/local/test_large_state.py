"""State on disk may be larger than the memory of the process that uses it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import keyed

ROOT = Path(__file__).parents[4]
KEYS = 250_000
VALUE_BYTES = 2_000
ALLOWED_MIB = 320

PROGRAM = f"""
import sys
import keyed
from tests.keyed.runtimes.local.test_large_state import Remember


def events():
    for round in range(2):
        for key in range({KEYS}):
            yield {{"key": key, "round": round}}


def main(folder):
    out = keyed.stream(events()).key_by("key").process(Remember(), store="rocksdb")
    result = out.run(
        keyed.collect_sink(), checkpoint=folder + "/checkpoint", local_dir=folder + "/stores", rows_per_batch=5_000
    )
    counters = result.metrics["Remember"]
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("entries", counters["live_entries"], "bytes", counters["live_bytes"], "wrong", len(result.values))
    print("peak", int(peak.split()[1]) // 1024)


main(sys.argv[1])
"""


class Remember(keyed.KeyedProcessFunction):
    """Keeps two kilobytes a key, and emits the keys whose value is not the one that was kept."""

    kept = keyed.ValueState(bytes)

    def process_element(self, value, ctx):
        expected = value["key"].to_bytes(8, "big") * (VALUE_BYTES // 8)
        if value["round"] == 0:
            self.kept.update(expected)
        elif self.kept.value() != expected:
            yield value["key"]


@pytest.mark.long
def test_half_a_gigabyte_of_state_is_kept_in_less_memory(tmp_path):
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of memory is read from /proc, which this system does not have")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    run = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", run.stdout)}
    assert found["entries"] == KEYS
    assert found["bytes"] > KEYS * VALUE_BYTES
    assert found["wrong"] == 0
    assert found["peak"] < ALLOWED_MIB, found
