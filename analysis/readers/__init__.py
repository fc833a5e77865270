"""One module per kind of profiler file: a path in, a frame with our columns out."""
