//! Numeric kernels of the CPU engine on plain slices: packed weights, products, vector functions.
