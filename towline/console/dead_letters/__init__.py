"""Dead letters of a group for people: by pages, by filter, counted by reason, sent again at a rate."""
