"""Planning: pure functions from the observed state to the wanted one (paper, sections 3.3 and 4).

Nothing here reads a clock, a file or a socket; `now_s` and measurements are arguments. Latencies are in milliseconds.
"""
