"""Side by side with the peers, as ratios in one run.

    python -m benchmarks                      all of it
    python -m benchmarks market --quick       one workload, as a smoke
    python -m benchmarks check                do the peers' adapters still work? (needs no lakepond)

measure.py      best-of timing with contestants taking turns, memory in a fresh process
report.py       tables, bars, the machine it ran on
market.py       16 agents over a panel, windows of (504, 108, 9) float32 (what they record: market_steps.py)
atari.py        real frames, 8 environments, beside cpprb, SB3, TorchRL and tianshou
random_data.py  nothing repeats: what does the search for repeats cost?
peers.py        one adapter a contestant, the same verbs
frames.py       plays the games once and keeps the frames under .cache/bench
"""
