"""Writing: a unit takes its place at the tail, the writer commits in groups, the sealer finishes segments.

unit        frames that are appended together             tail            the open segment
writer      group commit                                  sealer          index of a full segment
disk        write, sync, room                             lock            one broker a folder
"""
