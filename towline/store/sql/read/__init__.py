"""Reading from a database: `streams` in memory, recent frames (`cache`), ranges by primary key (`range_reader`)."""
