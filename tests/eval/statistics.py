"""Writes statistics.json: the figures of src/eval/stats.rs by scipy and statsmodels.

pip install scipy statsmodels; python tests/eval/statistics.py > tests/eval/statistics.json
"""

import json

import numpy as np
import scipy
import scipy.stats as st
import statsmodels
import statsmodels.api as sm
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

WILSON = [(0, 5), (7, 10), (30, 30), (11, 30), (37, 100), (412, 500), (1000, 1319)]
DISCORDANT = [(5, 1), (3, 3), (12, 4), (30, 12), (0, 6), (61, 90), (0, 0)]
PASS = [(8, 3, 1), (8, 3, 4), (8, 0, 8), (8, 8, 2), (16, 1, 8), (64, 5, 10), (256, 17, 32), (8, 6, 4)]
CLUSTERS = [[3, 0, 4, 1, 2], [0, 0, 0, 1], [4, 4, 2, 3, 0, 1, 4, 2, 2, 3]]

wilson = []
for hits, n in WILSON:
    low, high = proportion_confint(hits, n, method="wilson")
    ci = st.binomtest(hits, n).proportion_ci(method="wilson")
    assert abs(ci.low - low) < 1e-12 and abs(ci.high - high) < 1e-12
    wilson.append([hits, n, float(low), float(high)])

# pass@k: the chance that k drawn of n without putting back hold at least one of the c right ones.
passes = [[n, c, k, float(st.hypergeom.sf(0, n, c, k))] for n, c, k in PASS]

tests = []
for a, b in DISCORDANT:
    p = float(mcnemar([[0, a], [b, 0]], exact=True).pvalue) if a + b else 1.0
    tests.append([a, b, p])

errors = []
for right in CLUSTERS:
    y = np.array([[1.0] * c + [0.0] * (4 - c) for c in right])
    groups = np.repeat(np.arange(len(right)), 4)
    # The correction asked for is G/(G-1) alone, without (N-1)/(N-K).
    fit = sm.OLS(y.ravel(), np.ones(y.size)).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}
    )
    g = len(right)
    errors.append([right, float(fit.bse[0] * np.sqrt(g / (g - 1)))])

students = [[n, float(st.t.ppf(0.975, n))] for n in (1, 2, 5, 30, 31, 40, 120, 1000)]

# Two models on the same 120 questions, four completions each: a percentile bootstrap of the mean difference.
draw = np.random.default_rng(1)
a = draw.integers(0, 5, 120) / 4
b = np.clip(a + draw.integers(-1, 3, 120) / 4, 0, 1)
found = st.bootstrap((b - a,), np.mean, n_resamples=100_000, method="percentile", rng=2)
one = st.bootstrap((a,), np.mean, n_resamples=100_000, method="percentile", rng=3)
paired = {
    "a": a.tolist(),
    "b": b.tolist(),
    "difference": float(np.mean(b - a)),
    "low": float(found.confidence_interval.low),
    "high": float(found.confidence_interval.high),
    "low_a": float(one.confidence_interval.low),
    "high_a": float(one.confidence_interval.high),
}

made = {"scipy": scipy.__version__, "statsmodels": statsmodels.__version__}
out = {"made": made, "wilson": wilson, "pass_at": passes, "mcnemar": tests, "clustered": errors, "t95": students}
print(json.dumps(out | {"paired": paired}, indent=1))
