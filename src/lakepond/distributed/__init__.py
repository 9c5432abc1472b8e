"""Many machines: Ray runs the processes, the lake holds the data. `pip install 'lakepond[ray]'`.

ray_cluster   start Ray on this machine or connect to a cluster, and check that it has what is needed
"""
