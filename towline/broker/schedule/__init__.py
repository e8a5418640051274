"""Delayed messages at work.

scheduler     books, moves, delivers                      journal         its events and records on streams
queries       list, cancel, reschedule                    timer_loop      steps at given times
refused_messages   held, because the store refuses them   delivered_ids   from an old id to the lane
"""
