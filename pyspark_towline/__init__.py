"""Lets Spark find `format("towline")` by itself: it looks into top-level packages whose names begin with `pyspark_`."""

try:
    from towline.spark.data_source import TowlineSource as DefaultSource
except ImportError:
    # Without the extra `towline[spark]` there is nothing to find; an error here would hide other people's sources.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
