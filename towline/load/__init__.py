"""Load: processes that send and consume at full speed or at a steady pace, and what they measured.

`towline bench` and the benchmarks in `bench/` are built from these: a *job* says what one process is to do, a *worker*
is that process, and a *crew* starts workers, lets them go at the same moment and gathers their *tallies*.
"""
