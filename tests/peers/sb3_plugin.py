"""A plugin for pytest that puts lakepond's buffers in the place of SB3's, before its tests import them."""

import stable_baselines3
import torch
from stable_baselines3.common import buffers, off_policy_algorithm
from stable_baselines3.her import her_replay_buffer

from lakepond.adapters.sb3 import LakepondHerReplayBuffer, LakepondReplayBuffer

torch.set_num_threads(1)


class DictBuffer(LakepondReplayBuffer):
    """The tests use the class as a key, so it is another one."""


class NStepBuffer(LakepondReplayBuffer):
    """n_steps is 3 if it is not given, as with SB3."""

    def __init__(self, *args, n_steps=3, **kwargs):
        super().__init__(*args, n_steps=n_steps, **kwargs)


REPLACED = {
    "ReplayBuffer": LakepondReplayBuffer,
    "DictReplayBuffer": DictBuffer,
    "NStepReplayBuffer": NStepBuffer,
    "HerReplayBuffer": LakepondHerReplayBuffer,
}
for module in (buffers, off_policy_algorithm, her_replay_buffer, stable_baselines3.her, stable_baselines3):
    for name, replacement in REPLACED.items():
        if hasattr(module, name):
            setattr(module, name, replacement)
