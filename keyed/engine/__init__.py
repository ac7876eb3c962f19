"""One key group's work: state overlay, timers, driver, commit. Pure Python; clock, store and log are parameters."""
