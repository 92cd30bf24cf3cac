"""The paper's evaluation, experiment by experiment, beside the paper's numbers: `make figures`.

An experiment is a module here that registry.py names. It has

    NAME, TITLE     its name on the command line, its heading in the report
    TEXT            a paragraph: what the paper does, what is done here
    PAPER           the paper's values as experiment.Target, by key
    run(context)    the experiment: an Outcome with a Row for each target, plots, parameters, sensitivity

Results are kept as JSON in benchmarks/results/figures; the report (report.py) and docs/evaluation.md (document.py) are
made from these files alone.
"""
