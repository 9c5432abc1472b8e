"""chains ──follow──▶ pond: the steps of all writers of a lake, each once, while they are being written.

chains      the commits of each writer, on disk or in a bucket
arrivals    which steps of which chain are in the pond, in the order of their arrival
follower    the thread that looks for new commits and appends their steps
limits      `sample` waits for enough steps, and for the limit of samples per insert
positions   how far a learner is, for collectors that wait for it
lag         how far behind each writer the follower is
snapshots   one consistent view of all chains, stored with the lake under a number
"""
