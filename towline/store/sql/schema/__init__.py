"""The schema of a database.

tables          every table                               topic_tables    those of each topic
migrate         made, and brought to this version         privileges      that are needed
server_checks   settings of the server
"""
