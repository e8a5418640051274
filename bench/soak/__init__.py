"""An hour of a broker's life, or a few minutes of it: many kinds of load at once, and what they do to a bystander.

    probes ──┐                    ┌── gauges (memory, processor, files, disk)
             ├── worker ──▶ broker ┤
    loads ───┘      │             └── its log
                    └── notes ──▶ record ──▶ figures, by tenths of the run

Each load and each probe is a process of its own, of moderate and bounded rate. A probe measures how long something
takes: a send by a client that has nothing to do with the others, and beside it the machine's own sleep and disk, so
that a stall of the machine is told from one of the broker.
"""
