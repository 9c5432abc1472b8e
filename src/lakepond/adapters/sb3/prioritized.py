"""DQN and SAC that weigh their losses by importance and update the priorities of what they sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.utils import polyak_update
from torch.nn import functional

from lakepond.adapters.sb3.buffer import LakepondReplayBuffer, PrioritizedSamples
from lakepond.errors import SpecError

ALPHA, BETA = 0.6, 0.4
"""the exponents of Schaul et al. (2016); beta rises to 1 over the training"""


class Prioritized:
    """Gives an algorithm a prioritised `LakepondReplayBuffer`, and n-step returns where it asks for them."""

    def _setup_model(self) -> None:
        algorithm: Any = self
        if algorithm.replay_buffer_class is None:
            algorithm.replay_buffer_class = LakepondReplayBuffer
        kind = algorithm.replay_buffer_class
        options = {"alpha": ALPHA, "beta": BETA, **algorithm.replay_buffer_kwargs}
        if not issubclass(kind, LakepondReplayBuffer) or options["alpha"] is None:
            raise SpecError(
                f"{type(self).__name__} needs a LakepondReplayBuffer with alpha, not {kind.__name__} with "
                f"alpha={options['alpha']}; leave replay_buffer_class and alpha out."
            )
        if algorithm.n_steps > 1:
            options |= {"n_steps": algorithm.n_steps, "gamma": algorithm.gamma}
            algorithm.n_steps = 1  # SB3 would warn that it does not hand it over
        algorithm.replay_buffer_kwargs = options
        super()._setup_model()  # type: ignore[misc]

    def _draw(self, batch_size: int) -> tuple[PrioritizedSamples, Any]:
        """A batch, and the discount of the value that follows it; beta is that of the progress so far."""
        algorithm: Any = self
        buffer = algorithm.replay_buffer
        start = algorithm.replay_buffer_kwargs["beta"]
        buffer.beta = 1.0 - (1.0 - start) * algorithm._current_progress_remaining
        batch = buffer.sample(batch_size, env=algorithm._vec_normalize_env)
        return batch, algorithm.gamma if batch.discounts is None else batch.discounts


class PrioritizedDQN(Prioritized, DQN):
    """SB3's DQN with prioritised replay: `PrioritizedDQN("CnnPolicy", env, n_steps=3)`."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Sample, weigh, descend, and give each step its new priority."""
        policy, losses = self.policy, []
        policy.set_training_mode(True)
        self._update_learning_rate(policy.optimizer)
        for _ in range(gradient_steps):
            batch, discount = self._draw(batch_size)
            with torch.no_grad():
                best = self.q_net_target(batch.next_observations).amax(dim=1, keepdim=True)
                target = batch.rewards + (1 - batch.dones) * discount * best
            value = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = (batch.weights * functional.smooth_l1_loss(value, target, reduction="none")).mean()
            policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), self.max_grad_norm)
            policy.optimizer.step()
            self.replay_buffer.update_priorities(batch.step_ids, (value - target).detach().abs()[:, 0])
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/beta", self.replay_buffer.beta)


class PrioritizedSAC(Prioritized, SAC):
    """SB3's SAC with prioritised replay; a step's priority is the mean TD error of its critics."""

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Update temperature, critics, actor and targets; give each step its new priority."""
        learned = self.ent_coef_optimizer is not None
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        self.policy.set_training_mode(True)
        self._update_learning_rate([*optimizers, self.ent_coef_optimizer] if learned else optimizers)
        history: dict[str, list[float]] = {"ent_coef": [], "actor_loss": [], "critic_loss": []}
        for step in range(gradient_steps):
            batch, discount = self._draw(batch_size)
            if self.use_sde:
                self.actor.reset_noise()
            actions, log_prob = self.actor.action_log_prob(batch.observations)
            log_prob = log_prob.reshape(-1, 1)
            temperature = self.ent_coef_tensor if not learned else self.log_ent_coef.detach().exp()
            if learned:
                loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
                _descend(self.ent_coef_optimizer, loss)
                history.setdefault("ent_coef_loss", []).append(loss.item())
            with torch.no_grad():
                following, entropy = self.actor.action_log_prob(batch.next_observations)
                values = torch.cat(self.critic_target(batch.next_observations, following), dim=1)
                value = values.amin(dim=1, keepdim=True) - temperature * entropy.reshape(-1, 1)
                target = batch.rewards + (1 - batch.dones) * discount * value
            errors = [q - target for q in self.critic(batch.observations, batch.actions)]
            critic_loss = 0.5 * sum((batch.weights * error.square()).mean() for error in errors)
            _descend(self.critic.optimizer, critic_loss)
            values = torch.cat(self.critic(batch.observations, actions), dim=1)
            actor_loss = (temperature * log_prob - values.amin(dim=1, keepdim=True)).mean()
            _descend(self.actor.optimizer, actor_loss)
            if step % self.target_update_interval == 0:
                polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
            td = torch.cat([error.detach().abs() for error in errors], dim=1).mean(dim=1)
            self.replay_buffer.update_priorities(batch.step_ids, td)
            for name, number in (
                ("ent_coef", temperature),
                ("actor_loss", actor_loss),
                ("critic_loss", critic_loss),
            ):
                history[name].append(number.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/beta", self.replay_buffer.beta)
        for name, numbers in history.items():
            self.logger.record(f"train/{name}", np.mean(numbers))


def _descend(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
