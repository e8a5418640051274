"""Reading.

streams         bounds and recent records, in memory      sealed_segments files and their indexes
range_reader    records of a stream                       key_search      by hashes of keys
"""
