"""Many machines: Ray runs the processes, the lake holds the data. `pip install 'lakepond[ray]'`.

collector     environments, a policy and a writer of the lake, in one process; needs no Ray
collectors    any number of them as Ray actors, and the broadcast of weights
ray_cluster   start Ray on this machine or connect to a cluster, and check that it has what is needed
weights       weights in a file, for collectors without Ray
workers       Ray actors that do the tasks of trainers, each of which is done in spite of dead workers
reaper        folders that end with their process, and with them what a killed driver leaves of its Ray
"""

from lakepond.distributed.collectors import Collectors
from lakepond.distributed.weights import save_weights

__all__ = ["Collectors", "save_weights"]
