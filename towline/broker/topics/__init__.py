"""Topics.

topics            by name: find, make, change, count      topic           at work: lanes and groups
catalog           on file, with the groups                shards          checks for ordered topics
oldest_messages   not consumed yet                        gone_streams, uncatalogued   traces of deleted and lost ones
"""
