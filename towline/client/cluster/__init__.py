"""Many brokers as one, sans I/O: `brokers` that are there, `routing` of requests, `merge` of answers, `ids` that know
their broker, `drift` of settings, `handover` of nacks, `reshard` when a topic's shards change."""
