"""Stable-Baselines3's first example: PPO learns CartPole, then plays."""

import gymnasium as gym
from stable_baselines3 import PPO

env = gym.make("CartPole-v1")
model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, device="cuda", verbose=1)
model.learn(total_timesteps=256)
observation, _ = env.reset(seed=0)
for _ in range(20):
    action, _ = model.predict(observation, deterministic=True)
    observation, reward, ended, truncated, _ = env.step(action)
    if ended or truncated:
        observation, _ = env.reset()
print("played")
