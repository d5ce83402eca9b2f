//! The executor: a scheduler over a plan, with locks, progress and a clean stop.
