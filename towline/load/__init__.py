"""Load: processes that send and consume at full speed or at a steady pace, and their figures.

`towline bench` and the benchmarks in `bench/` are built from these: a *job* (`job`) is the task of one process, a
*worker* (`worker`; `producers`, `consumers`) is that process with its pipe to the `foreman`, and a *crew* (`crew`)
starts workers, lets them go at the same moment and gathers their *tallies*. `broker` is a broker process to load.
"""
