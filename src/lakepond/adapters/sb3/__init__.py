"""Stable-Baselines3: replay buffers that store each distinct row once, and algorithms that use priorities.

```python
DQN("CnnPolicy", env, replay_buffer_class=LakepondReplayBuffer, replay_buffer_kwargs={"path": "runs/a/lake"})
```
"""

from lakepond.adapters.sb3.buffer import LakepondReplayBuffer
from lakepond.adapters.sb3.her import LakepondHerReplayBuffer
from lakepond.adapters.sb3.prioritized import PrioritizedDQN, PrioritizedSAC

__all__ = ["LakepondReplayBuffer", "LakepondHerReplayBuffer", "PrioritizedDQN", "PrioritizedSAC"]
