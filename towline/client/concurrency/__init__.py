"""The primitives in which both clients differ, by the same names: `tasks` of asyncio, `threads` of the blocking one."""
