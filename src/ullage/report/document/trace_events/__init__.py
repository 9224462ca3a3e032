"""Documents in the trace event format, for ui.perfetto.dev and chrome://tracing."""
