"""The runtime: data, schedules, launches, training. Imports neither TVM nor Lark on the GPU path."""
