"""The arrows, one file and one verb each.

agents ──record──▶ pond
agents ◀──sample── pond
"""
