"""Bytes on disk.

record      one frame of the message log                  segment         files of records
index       where the records of each stream are          keys            hashes of keys
scan        reading without an index                      damage          bytes that are no record
folder      names, permissions, format of a folder
"""
