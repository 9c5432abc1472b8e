"""Choose steps, in RAM or on disk: uniformly, by priority, as sequences; follow them for n-step returns.

A source of steps has ids [oldest, recorded); step `id` is at place `id % ring` of every array with one entry
per step. A pond is such a source; a lake is one whose ring has as many places as there are live steps.
"""
