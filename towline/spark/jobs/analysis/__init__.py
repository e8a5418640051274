"""Jobs over archives.

trace             the life of messages                    delivery_events    events of pull logs, as rows
reconcile         sent against settled                    message_outcomes   by range of messages
report            figures of a topic                      report_html, report_charts   as a page
"""
