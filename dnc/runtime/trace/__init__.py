"""Timelines of launches: recorded by a session, written as a Chrome trace, summed up from one."""
