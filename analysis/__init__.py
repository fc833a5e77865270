"""Reads profiler dumps of Ascend training runs and says what they mean. Knows no Django, no network."""
