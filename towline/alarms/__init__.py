"""Alarms, pure.

rule        kind, scope, threshold, recipients            book            rules with the times of their changes
watch       readings in, notices out                      notice          the text of a notice
"""
