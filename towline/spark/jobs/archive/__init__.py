"""The archive of messages and delivery events.

archive     the job                                       archive_folder  on any file system
manifest    the commits of an archive                     parquet         frames as files
compact     small files joined                            verify, digest  against the log
hold        retention waits for the archive
"""
