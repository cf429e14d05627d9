"""Ranks, process groups, devices, and the only differences between CPU and GPU."""
