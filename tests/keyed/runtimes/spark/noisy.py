"""A program of its own whose queries run or fail: what does its user see? `test_noise.py` starts it."""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import keyed

mode, folder = sys.argv[1], Path(sys.argv[2])
spark = keyed.spark_session(master="local[2]", parallelism=2, quiet=mode != "loud")
sys.stderr.write("started\n")


class Divide(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)

    def __init__(self, trouble):
        self.trouble = trouble

    def process_element(self, value, ctx):
        sys.stdout.write("in the worker\n")
        if self.trouble == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        yield value.word, self.quotient(value.n) if self.trouble == "function" else 1

    def quotient(self, n):
        return 10 // n


def lookup(frame, batch_id):
    frame.select("price").collect()


SINKS: dict[str, Any] = {"sink": lookup, "path": "/dev/null/out"}
frame = spark.createDataFrame([("a", 0)], "word string, n int")
frame.write.parquet(str(folder / "in"))
for trouble in ["function", "exit", "sink", "path"] if mode == "failing" else [""]:
    words = spark.readStream.schema(frame.schema).parquet(str(folder / "in"))
    divided = keyed.stream(words).key_by("word").process(Divide(trouble), output="word string, quotient long")
    try:
        divided.run(SINKS.get(trouble), checkpoint=folder / f"checkpoint{trouble}")
    except keyed.KeyedError:
        sys.stderr.write(f"== {trouble}\n")
        traceback.print_exc()
