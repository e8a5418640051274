# %% [markdown]
# # Towline and Spark, step by step
#
# A notebook as a script: run it whole (`python examples/spark_tutorial.py`), or cell by cell in an editor that knows
# `# %%`. It needs `pip install 'towline[spark]'` and Java 17, starts a broker of its own in a temporary folder, and
# leaves nothing behind. `spark` and `broker_url` are taken over if they exist already.

# %%
from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql.functions import window

import towline
from towline.load.broker import BrokerProcess
from towline.spark import register

given: dict[str, Any] = globals()
folder = Path(tempfile.mkdtemp(prefix="towline-tutorial-"))
broker = None if "broker_url" in given else BrokerProcess(f"file:{folder / 'data'}", durability="os")
if broker is not None:
    broker.start()
url: str = broker.url if broker is not None else given["broker_url"]

if "spark" in given:
    spark = given["spark"]
else:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)  # not needed where towline is installed: Spark finds it by itself

# %% [markdown]
# ## Something to work with
# A shop: 2,000 orders of 20 customers, as JSON.

# %%
with towline.connect(url) as mq:
    items = ("rope", "anchor", "buoy")
    orders = [{"customer": f"c{n % 20}", "item": items[n % 3], "price": n % 50} for n in range(2000)]
    mq.send_many("orders", [json.dumps(order).encode() for order in orders], keys=[one["customer"] for one in orders])

# %% [markdown]
# ## A topic as a table
# The schema that is asked for is what is read: columns left out cost nothing.

# %%
table = spark.read.format("towline").option("url", url).option("topic", "orders")
rows = table.schema("seq long, key string, body string").load()
print("orders:", rows.count())
spent = rows.selectExpr("key", "cast(get_json_object(body, '$.price') as int) as price").groupBy("key").sum("price")
print("spent by c7:", spent.where("key = 'c7'").collect()[0][1])

# %% [markdown]
# A part of it: from one number to another (or from one time to another), or all messages with a key.

# %%
part = table.option("from", "500").option("to", "600").load()
mine = spark.read.format("towline").option("url", url).option("topic", "orders").option("key", "c7").load()
print("in the middle:", part.count(), "of c7:", mine.count())

# %% [markdown]
# ## A stream
# What is sold in each minute, with a watermark: a minute is over when messages two minutes younger have come.
# `availableNow` reads what is there and ends; without it the query runs on.

# %%
source = spark.readStream.format("towline").option("url", url).option("topic", "orders")
live = source.option("maxMessagesPerTrigger", "1000").load()
sold = (
    live.selectExpr("get_json_object(string(body), '$.item') as item", "appended_at")
    .withWatermark("appended_at", "2 minutes")
    .groupBy("item", window("appended_at", "1 minute"))
    .count()
)
query = (
    sold.writeStream.outputMode("complete")
    .format("memory")
    .queryName("sold")
    .option("checkpointLocation", str(folder / "sold"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
counts = {row.item: row.n for row in spark.sql("select item, sum(count) as n from sold group by item").collect()}
print("sold:", counts)

# %% [markdown]
# ## Rows become messages
# Expensive orders go to a topic of their own, with high priority. The query can be stopped, killed and started again:
# each order arrives there once.

# %%
expensive = live.where("cast(get_json_object(string(body), '$.price') as int) >= 45")
sink = expensive.selectExpr("body", "key", "'high' as priority", "map('via', 'spark') as headers").writeStream
sink = sink.format("towline").option("url", url).option("topic", "expensive")
sink.option("checkpointLocation", str(folder / "expensive")).trigger(availableNow=True).start().awaitTermination()

with towline.connect(url) as mq:
    forwarded = mq.browse("expensive", "high", max_messages=1000)
    print("expensive:", len(forwarded), "first:", forwarded[0].headers, json.loads(forwarded[0].body))

# %% [markdown]
# ## Leaving

# %%
if broker is not None:
    spark.stop()
    broker.stop()
