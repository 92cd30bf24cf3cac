"""The GPU kit: what encoders and Arlo do on one GPU, measured in minutes on a machine without a network.

    benchmarks/gpu/offline/run.sh 560 --out DIR       every stage in turn: facts, table, mixes, serve, ort
    python -m benchmarks.gpu table --out DIR          one stage
    python -m benchmarks.gpu report DIR               summary, pictures and profiles from the stages' results

Each stage writes DIR/STAGE.json after every cell, so a run that is cut short keeps what it measured.
"""
