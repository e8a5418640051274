"""Many brokers as one, sans I/O.

brokers     known brokers, and the choice among them      routing     the parts of a request for each
merge       answers of several made into one              ids         ids that know their broker
drift       settings that differ                          rank        a consumer among those of its group
handover    nacks whose broker is away                    reshard     another number of shards
"""
