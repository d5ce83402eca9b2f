//! Plan: a fingerprint per instance and whether it is cached or must run, with the reason.
