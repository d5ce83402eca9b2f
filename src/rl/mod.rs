//! The RL itself, on the host and in f64 where it matters: losses and their derivatives, advantages, rewards,
//! noise and learning-rate schedules, dynamic sampling, the trainer over any [`crate::engine::Engine`].
