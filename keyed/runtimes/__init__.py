"""The runtimes, with the same engine.

- `local`: in this process. `spark`: on Spark. Each calls the other modules.
- `transforming`: steps without state. `initial_frames`: initial state. `recording`: the input, for replay.
- `kept_tables`: the state tables of ``tables=``. `recovering`: flush, verify and restore of checkpoints.
- `job_metrics`, `metrics_export`: exported metrics. `run_reports`: progress and warnings.
- `stop_signals`: Ctrl-C and SIGTERM. `garbage`: settings of the cyclic garbage collector.
"""
