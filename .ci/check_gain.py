"""Reads a Markdown report and fails unless every row gained at least N points: check_gain.py REPORT.md N."""
import re
import sys

path, need = sys.argv[1], float(sys.argv[2])
lines = open(path, encoding="utf-8").read().split("## Accuracy", 1)[1].splitlines()
table = [line for line in lines if line.startswith("|")]
header = [cell.strip() for cell in table[0].strip("|").split("|")]
column = next(i for i, name in enumerate(header) if name.endswith("gain"))
rows = 0
for line in table[2:]:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if len(cells) != len(header):
        break
    gain = float(re.match(r"[+-]?[0-9.]+", cells[column]).group())
    print(f"{cells[0]}: {gain:+.1f} points")
    if gain < need:
        sys.exit(f"{cells[0]} gained {gain:+.1f} points, {need} are required")
    rows += 1
if rows < 4:
    sys.exit(f"only {rows} rows in {path}")
