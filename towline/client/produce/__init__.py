"""Producing, sans I/O.

encode          messages checked and made frames            sharding        shards of an ordered topic
accumulator     messages gathered into a batch              batch_sender    batches sent, answers dealt out
spooled_sender, frame_spool   on disk while no broker answers     reshard   a spooled frame, cut by shards
transaction, transaction_buffer   all or nothing            receipts        where sent messages are
"""
