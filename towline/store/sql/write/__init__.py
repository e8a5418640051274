"""Writing to a database.

writer      jobs gathered into one transaction after the other   job         records and trims to be written
transaction the statements of one                         rows, encoding  frames as rows; rows as bytes
projection  topics, groups and progress as tables         trim            rows that retention drops
"""
