"""Delayed messages at work: `scheduler` takes in, moves nearer and delivers; `journal` keeps its events;
`queries` lists, cancels and moves; `delivered_ids` leads from an old id to the lane."""
