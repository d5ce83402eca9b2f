//! Report: polars tables, SVG plots, minijinja templates -> one HTML and one Markdown file.
