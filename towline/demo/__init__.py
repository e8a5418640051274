"""Towline at work, in a minute: `./dev demo`.

A shop sends orders to a broker, urgent and not, some of them for later, some in transactions, one of which is aborted.
Two groups consume them: `billing` with two consumers, `shipping` with one. On the way a handler fails and its orders
are tried again, one order dies and is brought back, a consumer is killed with kill -9, and so is the broker itself. At
the end every order was handled by both groups, and none that should not be, or the exit code is not 0. Then Spark, if
it is installed, archives it all, traces every order and makes a page of charts.

Broker and consumers are real processes. `scenes` is the list of what happens; `consumer` is a consumer process, `shop`
the producer, `story` what all scenes share, `picture` what is drawn at the end, `pipeline` the part of Spark.
"""
