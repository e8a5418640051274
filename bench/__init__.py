"""The benchmarks: `python -m bench`, or `./dev bench`.

Broker, producer and consumer are processes of their own, on a log store in a folder of its own. The machine's limits
are measured in the same run, and each figure stands beside its target.
"""
