"""Producing: from a frame on the wire to a unit in the store.

append        checks, places and appends                  placement       without duplicates
producers     sequence numbers, dedup ids                 producers_file  the same on file
transactions, transaction_checks   prepared ones          staging         frames of sinks, until they are published
frame_journal frames kept out of sight, and their marks: for both
handback      messages that another broker's consumer could not give back there
"""
