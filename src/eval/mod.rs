//! Evaluation: sampling records, pass@k, maj@k, intervals and paired tests. Pure figures; files are the stage's.
