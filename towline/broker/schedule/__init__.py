"""Delayed messages at work: `scheduler` books, moves and delivers them; `journal` keeps its events; `queries` lists,
cancels and reschedules; `refused_messages` holds those that the store refuses; `delivered_ids` leads from an old id to
the lane; `timer_loop` runs the scheduler's steps."""
