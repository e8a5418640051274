"""Monitoring.

stats         a walk over all topics and groups           time_series     recent figures, for charts
listing       lists by pages, sorted                      prometheus      metrics
alarms        rules at work                               mail, webhooks  notices
disk          files and room                              monitor         all of these of one broker
"""
