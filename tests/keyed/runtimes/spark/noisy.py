"""A program of its own that runs and fails: what does its user see? `test_noise.py` starts it with a mode."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import keyed

mode, folder = sys.argv[1], Path(sys.argv[2])
spark = keyed.spark_session(master="local[2]", parallelism=2, quiet=mode != "loud")
sys.stderr.write("started\n")


class Divide(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        sys.stdout.write("in the worker\n")
        if mode == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        yield value.word, self.quotient(value.n) if mode == "function" else 1

    def quotient(self, n):
        return 10 // n


def lookup(frame, batch_id):
    frame.select("price").collect()


frame = spark.createDataFrame([("a", 0)], "word string, n int")
frame.write.parquet(str(folder / "in"))
words = spark.readStream.schema(frame.schema).parquet(str(folder / "in"))
divided = keyed.stream(words).key_by("word").process(Divide(), output="word string, quotient long")
sinks: dict[str, Any] = {"sink": lookup, "path": "/dev/null/out"}
divided.run(sinks.get(mode), checkpoint=folder / "checkpoint")
