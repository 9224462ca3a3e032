"""The times of kernels: NVIDIA's measurements, condensed to tables, and the tables' errors."""
