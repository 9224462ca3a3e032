"""PPO in one file, as CleanRL writes it: vectorised CartPole, a Categorical policy, GAE.

After the documentation of github.com/vwxyzjn/cleanrl (docs.cleanrl.dev, ppo.py).
"""

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical

ENVS, STEPS, MINIBATCHES, EPOCHS, UPDATES = 4, 32, 4, 2, 4


def layer(inputs, outputs, std=2**0.5):
    linear = nn.Linear(inputs, outputs)
    torch.nn.init.orthogonal_(linear.weight, std)
    torch.nn.init.constant_(linear.bias, 0.0)
    return linear


class Agent(nn.Module):
    def __init__(self, size, actions):
        super().__init__()
        self.critic = nn.Sequential(
            layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def main():
    torch.manual_seed(1)
    device = torch.device("cuda")
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(ENVS)])
    agent = Agent(4, 2).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((STEPS, ENVS, 4), device=device)
    actions, logprobs, rewards, dones, values = (
        torch.zeros((STEPS, ENVS), device=device) for _ in range(5)
    )
    next_obs = torch.Tensor(envs.reset(seed=1)[0]).to(device)
    next_done = torch.zeros(ENVS, device=device)
    for update in range(UPDATES):
        for step in range(STEPS):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            new, reward, ended, truncated, _ = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs = torch.Tensor(new).to(device)
            next_done = torch.Tensor(np.logical_or(ended, truncated)).to(device)
        with torch.no_grad():
            next_value = agent.critic(next_obs).reshape(1, -1)
            advantages, last = torch.zeros_like(rewards), 0
            for t in reversed(range(STEPS)):
                alive = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
                following = next_value if t == STEPS - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * following * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
            returns = advantages + values
        flat = [t.flatten() for t in (logprobs, actions, advantages, returns)]
        b_obs, fractions = obs.reshape(-1, 4), []
        indices = np.arange(STEPS * ENVS)
        for _epoch in range(EPOCHS):
            np.random.shuffle(indices)
            for part in np.split(indices, MINIBATCHES):
                _, new_log, entropy, new_value = agent.get_action_and_value(
                    b_obs[part], flat[1].long()[part]
                )
                logratio = new_log - flat[0][part]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    fractions += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
                gain = flat[2][part]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                pg_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
                v_loss = 0.5 * ((new_value.view(-1) - flat[3][part]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            if approx_kl > 0.5:
                break
        y_pred, y_true = values.flatten().cpu().numpy(), flat[3].cpu().numpy()
        variance = np.var(y_true)
        explained = np.nan if variance == 0 else 1 - np.var(y_true - y_pred) / variance
        print(f"update {update} clip {np.mean(fractions):.3f} explained {explained:.3f}")
    envs.close()


main()
